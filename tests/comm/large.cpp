// SPDX-License-Identifier: Apache-2.0
/// @file
/// More than 2^31 elements and more than 2^31 bytes at a time, between threads.

#include <zero/comm/run_ranks.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <zero/comm/threads.hpp>

#include "comm/large_counts.hpp"

TEST_CASE("field case 108: counts over 2^31; field case 109: nothing is written beside the buffers") {
  constexpr int needed_gib = 6;
  std::int64_t const available = zero::test::available_memory();
  if (available < std::int64_t{needed_gib} << 30) {
    std::printf("SKIPPED: %.1f GiB of memory are free here, %d are needed\n", static_cast<double>(available) / (1 << 30), needed_gib);
    std::fflush(stdout);
    std::_Exit(77);
  }
  CHECK_NOTHROW(zero::run_ranks(2, [](zero::ThreadCommunicator& comm) { zero::test::LargeCounts<zero::ThreadCommunicator>(comm).run(); }));
}
