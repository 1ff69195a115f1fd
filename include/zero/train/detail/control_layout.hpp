// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The small device memory that decisions and the comparison of ranks need: its layout and its bytes.

#include <cstdint>

#include <zero/core/element.hpp>
#include <zero/train/exact_sum.hpp>
#include <zero/train/step_report.hpp>
#include <zero/train/step_state.hpp>

namespace zero::detail {

/// The sum of squares, the latest decision, and those few that stay readable.
template <class Sum>
struct DecisionMemory {
  Sum sum;
  StepState latest;  // where each step finds the counts of the one before, also in a graph, which knows no other address
  StepState states[decisions_kept];
};

/// An optimizer's own part of steps. Captured steps read its options here, others carry them in the kernel's arguments.
template <class O>
struct UpdateMemory {
  UpdateState<O> state;
  O options;
};

/// 64-bit words that a rank shows its peers when they compare themselves.
inline constexpr int fingerprint_words = 4;

/// Bytes for decisions on gradients of that type.
template <RealElement Accumulator>
inline constexpr std::int64_t decision_bytes =
    static_cast<std::int64_t>((sizeof(DecisionMemory<exact_square_sum_t<Accumulator>>) + 63) / 64 * 64);

/// Bytes for the words of all ranks.
[[nodiscard]] constexpr std::int64_t fingerprint_bytes(int ranks) noexcept {
  return std::int64_t{ranks} * fingerprint_words * static_cast<std::int64_t>(sizeof(std::int64_t));
}

template <RealElement Accumulator>
[[nodiscard]] constexpr std::int64_t control_bytes(int ranks) noexcept {
  return decision_bytes<Accumulator> + fingerprint_bytes(ranks);
}

}  // namespace zero::detail
