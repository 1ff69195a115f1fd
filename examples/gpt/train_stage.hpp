// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The trainer for a stage and a precision that are chosen at run time. Each precision is compiled by itself: train_fp32.cpp,
/// train_bf16.cpp, and for GPUs train_cuda_fp32.cu, train_cuda_bf16.cu.

#include "gpt/options.hpp"
#include "gpt/text.hpp"
#include "gpt/trainer.hpp"

namespace gpt {

RunResult train_stage_fp32(int stage, World const& world, Options const& options, Text const& text);
RunResult train_stage_bf16(int stage, World const& world, Options const& options, Text const& text);
#if defined(ZERO_HAS_CUDA)
RunResult train_stage_cuda_fp32(int stage, World const& world, Options const& options, Text const& text);
RunResult train_stage_cuda_bf16(int stage, World const& world, Options const& options, Text const& text);
#endif
RunResult plan_stage_fp32(int stage, Options const& options);
RunResult plan_stage_bf16(int stage, Options const& options);

/// Trains at that stage.
inline RunResult train_stage(int stage, World const& world, Options const& options, Text const& text) {
  bool const bf16 = options.precision == Numbers::bf16;
#if defined(ZERO_HAS_CUDA)
  if (options.device == Processor::cuda) return (bf16 ? train_stage_cuda_bf16 : train_stage_cuda_fp32)(stage, world, options, text);
#endif
  return (bf16 ? train_stage_bf16 : train_stage_fp32)(stage, world, options, text);
}

/// What the training would need, without it.
inline RunResult plan_stage(int stage, Options const& options) {
  return options.precision == Numbers::bf16 ? plan_stage_bf16(stage, options) : plan_stage_fp32(stage, options);
}

}  // namespace gpt
