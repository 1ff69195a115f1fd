// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Medians with their spread, shared by the benchmarks.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
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

/// Processor time of this thread: what other programs take of the cores does not count (what they take of the memory's bandwidth does).
template <class F>
double thread_seconds(F&& f) {
  auto const now = [] {
    std::timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  double const begin = now();
  f();
  return now() - begin;
}

}  // namespace bench
