// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Medians with their spread, shared by the benchmarks.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace bench {

/// The median of some measurements, and the tenth and ninetieth hundredth beside it.
struct Spread {
  double low, median, high;
};

/// @param values  At least one.
inline Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::size_t const n = values.size();
  return {values[n / 10], values[n / 2], values[n - 1 - n / 10]};
}

/// Seconds that f takes by the clock on the wall.
template <class F>
double wall_seconds(F&& f) {
  auto const begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace bench
