// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer in bf16, at every stage.

#include <zero/zero.hpp>

#include "gpt/train_stage.hpp"

namespace gpt {

RunResult train_stage_bf16(int stage, World const& world, Options const& options, Text const& text) {
  return zero::with_stage(stage, [&]<class S>(S) { return train_with<S, zero::Precision<zero::bf16>>(world, options, text); });
}

RunResult plan_stage_bf16(int stage, Options const& options) {
  return zero::with_stage(stage, [&]<class S>(S) { return planned<S, zero::Precision<zero::bf16>>(options); });
}

}  // namespace gpt
