// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer in fp32, at every stage.

#include <zero/zero.hpp>

#include "gpt/train_stage.hpp"

namespace gpt {

RunResult train_stage_fp32(int stage, World const& world, Options const& options, Text const& text) {
  return zero::with_stage(stage, [&]<class S>(S) { return train_with<S, zero::Precision<float>>(world, options, text); });
}

RunResult plan_stage_fp32(int stage, Options const& options) {
  return zero::with_stage(stage, [&]<class S>(S) { return planned<S, zero::Precision<float>>(options); });
}

}  // namespace gpt
