// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a step is told, checked and hashed.

#include <bit>
#include <cstdint>
#include <string>

#include <zero/core/hash.hpp>
#include <zero/train/arithmetic.hpp>
#include <zero/train/step_report.hpp>

namespace zero::detail {

/// What is wrong with the options of a step, or an empty text.
[[nodiscard]] inline std::string invalid_step_options(StepOptions const& options) {
  if (!(options.max_norm >= 0)) return "max_norm is " + std::to_string(options.max_norm) + "; it must not be negative";
  if (options.micro_batches < 1) return "micro_batches is " + std::to_string(options.micro_batches) + "; it must be positive";
  if (!(options.loss_scale > 0) || !is_finite(options.loss_scale)) {
    return "loss_scale is " + std::to_string(options.loss_scale) + "; it must be positive and finite";
  }
  return {};
}

/// A step whose options differ over the ranks would be decided differently.
[[nodiscard]] inline std::uint64_t step_options_hash(StepOptions const& options) noexcept {
  return Hasher{}
      .add(std::bit_cast<std::uint64_t>(options.max_norm))
      .add(std::bit_cast<std::uint64_t>(options.loss_scale))
      .add(static_cast<std::uint64_t>(options.micro_batches))
      .add(std::uint64_t{options.mean_over_ranks})
      .add(std::uint64_t{options.skip_non_finite})
      .value();
}

}  // namespace zero::detail
