// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The plans of the four stages for a model, and how many ranks a memory size asks for.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <zero/zero.hpp>

namespace plan {

enum class Numbers { bf16, fp32 };

/// Plans of Stage0 to Stage3.
using StagePlans = std::array<zero::Plan, 4>;

template <class Precision>
constexpr StagePlans plans_of(zero::Partition const& partition, zero::Schedule const& schedule) {
  return {zero::plan<zero::Stage0, Precision, zero::AdamW>(partition, schedule),
          zero::plan<zero::Stage1, Precision, zero::AdamW>(partition, schedule),
          zero::plan<zero::Stage2, Precision, zero::AdamW>(partition, schedule),
          zero::plan<zero::Stage3, Precision, zero::AdamW>(partition, schedule)};
}

/// AdamW; bf16 parameters and gradients with fp32 masters (2 + 2 + 12 bytes, as in the ZeRO paper), or everything in fp32 (4 + 4 + 8).
constexpr StagePlans plans_of(zero::ParameterLayout const& layout, int ranks, Numbers numbers, zero::Schedule const& schedule = {}) {
  zero::Partition const partition(layout, ranks);
  return numbers == Numbers::bf16 ? plans_of<zero::Precision<zero::bf16>>(partition, schedule)
                                  : plans_of<zero::Precision<float>>(partition, schedule);
}

/// The least number of ranks, up to `most`, at which each stage's whole plan fits into `memory` bytes a rank; 0 where none does.
inline std::array<int, 4> ranks_that_fit(zero::ParameterLayout const& layout, Numbers numbers, zero::Schedule const& schedule,
                                         std::int64_t memory, int most = 1 << 16) {
  std::array<int, 4> result{};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    auto const fits = [&](int ranks) { return plans_of(layout, ranks, numbers, schedule)[stage].bytes() <= memory; };
    int high = 1;
    while (high <= most && !fits(high)) high *= 2;
    if (high > most) continue;
    int low = high / 2;  // does not fit
    while (high - low > 1) {
      int const middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    result[stage] = high;
  }
  return result;
}

}  // namespace plan
