// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer on GPUs in bf16, at every stage.

#include <zero/zero.hpp>

#include "gpt/train_cuda.hpp"
#include "gpt/train_stage.hpp"

namespace gpt {

namespace {

struct OnGpus {
  World const& world;
  Options const& options;
  Text const& text;

  template <class S>
  RunResult operator()(S) const {
    return train_with_gpus<S, zero::Precision<zero::bf16>>(world, options, text);
  }
};

}  // namespace

RunResult train_stage_cuda_bf16(int stage, World const& world, Options const& options, Text const& text) {
  return zero::with_stage(stage, OnGpus{world, options, text});
}

}  // namespace gpt
