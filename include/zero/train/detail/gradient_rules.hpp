// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What follows for gradients from a stage and a precision: used by the code that runs and by the plan.

#include <cstdint>
#include <type_traits>

#include <zero/layout/partition.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/stage.hpp>

namespace zero::detail {

template <Stage S, PrecisionPolicy P>
struct GradientRules {
  using gradient = typename P::gradient;
  using wire = typename P::wire;
  using accumulator = typename P::accumulator;

  /// Gradients accumulate as local sums and are reduced once a step.
  static constexpr bool partial = std::is_same_v<typename S::gradients, Partial>;
  /// Backward writes into the accumulator itself; else into scratch.
  static constexpr bool direct = partial && std::is_same_v<gradient, accumulator>;
  /// Where the reduced gradient lies when the step begins.
  using Reduced = std::conditional_t<partial, typename S::optimizer_states, typename S::gradients>;
  /// What is rounded to the wire type: the accumulated sum where Partial, else the gradient as written.
  using Sent = std::conditional_t<partial, accumulator, gradient>;
  /// The step gathers the reduced gradient (rule 3, S -> R).
  static constexpr bool gathers_for_step = Conversion<Reduced, typename S::optimizer_states>::communicates;

  /// Bytes of the staging buffer: the largest trainable segment, for a cast to the wire type or for a gathered gradient.
  [[nodiscard]] static constexpr std::int64_t staging_bytes(Partition const& partition) {
    std::int64_t largest = 0;
    for (SegmentId id : partition.segments()) {
      Segment const& segment = partition.segment(id);
      if (segment.trainable && segment.padded_elements > largest) largest = segment.padded_elements;
    }
    std::int64_t size = 0;
    if (!std::is_same_v<Sent, wire>) size = static_cast<std::int64_t>(sizeof(wire));
    if (gathers_for_step && partition.ranks() > 1 && size < static_cast<std::int64_t>(sizeof(accumulator))) {
      size = static_cast<std::int64_t>(sizeof(accumulator));
    }
    return largest * size;
  }

  /// 2^-floor(log2 N) on a half wire, so that a sum over ranks stays below the largest finite half wherever its terms do; else 1.
  [[nodiscard]] static constexpr float wire_factor(int ranks) noexcept {
    float factor = 1.0f;
    if (element_traits<wire>::type == ElementType::half) {
      for (int n = ranks; n > 1; n /= 2) factor *= 0.5f;
    }
    return factor;
  }
};

}  // namespace zero::detail
