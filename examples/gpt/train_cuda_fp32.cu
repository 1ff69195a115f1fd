// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer on GPUs in fp32, at every stage.

#include <zero/zero.hpp>

#include "gpt/train_cuda.hpp"
#include "gpt/train_stage.hpp"

namespace gpt {

RunResult train_stage_cuda_fp32(int stage, World const& world, Options const& options, Text const& text) {
  return zero::with_stage(stage, OnGpus<zero::Precision<float>>{world, options, text});
}

}  // namespace gpt
