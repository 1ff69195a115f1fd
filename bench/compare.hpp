// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The time of a call through the library against the raw call, in turns in one run.

#include <cstdio>
#include <vector>

#include "timing.hpp"

namespace bench {

/// How long the raw call takes, and the library's as multiples of it.
struct Comparison {
  Spread raw_us;     ///< A raw call [microseconds].
  Spread zero;       ///< The library's call over the raw one.
  Spread raw_again;  ///< The raw call over itself in the same turns: how much such a ratio says.
};

/// Measures the raw call, the library's and the raw one again, so many times; what makes the machine slower for a while hits all three.
/// @param raw, zero  do it, and return how long a call took [seconds].
template <class Raw, class Zero>
Comparison compare(int rounds, Raw const& raw, Zero const& zero) {
  std::vector<double> raw_us, ratios, again;
  for (int round = -1; round < rounds; ++round) {
    double const before = raw();
    double const ours = zero();
    double const after = raw();
    if (round < 0) continue;  // The first calls connect ranks.
    raw_us.push_back((before + after) / 2 * 1e6);
    ratios.push_back(2 * ours / (before + after));
    again.push_back(after / before);
  }
  return {spread(raw_us), spread(ratios), spread(again)};
}

inline void print_head() {
  std::printf("%-32s %10s  %-22s %-22s median [10 %%, 90 %%]; goal: at most 1.01\n", "", "raw [us]", "zero over raw", "raw over itself");
}

inline void print(char const* what, Comparison const& c) {
  std::printf("%-32s %10.2f  %.3f [%.3f, %.3f]   %.3f [%.3f, %.3f]   %s\n", what, c.raw_us.median, c.zero.median, c.zero.low, c.zero.high,
              c.raw_again.median, c.raw_again.low, c.raw_again.high, c.zero.median <= 1.01 ? "met" : "NOT met");
  std::fflush(stdout);
}

}  // namespace bench
