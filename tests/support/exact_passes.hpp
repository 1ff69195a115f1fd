// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Gradients whose sums over ranks and micro-batches are exact in any order.

#include <cstdint>

#include <zero/core/hash.hpp>

#include "support/training_passes.hpp"

namespace zero::test {

/// The largest integer below which the precision's gradients hold every integer.
[[nodiscard]] inline double exact_limit(PrecisionName precision) {
  if (precision == PrecisionName::fp32 || precision == PrecisionName::fp64) return 16777216;
  return precision == PrecisionName::half ? 2048 : 256;
}

/// Integer gradients, small enough for every sum to be exact; some units are skipped by all ranks, some by one.
[[nodiscard]] inline Passes integer_passes(std::uint64_t seed, int ranks, std::int64_t micro_batches, bool odd_uses) {
  std::int64_t const terms = ranks * micro_batches;
  int const one_in = terms > 64 ? static_cast<int>(terms / 64) : 2;
  int const largest = terms > 64 ? 1 : 3;
  Passes passes;
  passes.micro_batches = micro_batches;
  passes.rule = [=](int rank, std::int64_t m, Unit unit, ParameterId id) {
    auto const key = Hasher{}
                         .add(seed)
                         .add(static_cast<std::uint64_t>(rank))
                         .add(static_cast<std::uint64_t>(m))
                         .add(static_cast<std::uint64_t>(to_index(unit)))
                         .add(static_cast<std::uint64_t>(to_index(id)))
                         .value();
    return GradientRule::integers(key, one_in, largest);
  };
  if (odd_uses) {
    passes.use = [=](int rank, std::int64_t m, Unit unit) {
      auto const bits = Hasher{}.add(seed).add(static_cast<std::uint64_t>(m)).add(static_cast<std::uint64_t>(to_index(unit))).value();
      if (bits % 5 == 0) return Use::skips;
      return Hasher{}.add(bits).add(static_cast<std::uint64_t>(rank)).value() % 4 == 0 ? Use::nothing : Use::adds;
    };
  }
  return passes;
}

}  // namespace zero::test
