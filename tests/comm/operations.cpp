// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/operations.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace {

using zero::detail::work_range;
using zero::detail::WorkRange;

constexpr bool ranges_cover(std::int64_t count, std::int64_t element_bytes, int ranks) {
  std::int64_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    WorkRange const range = work_range(count, element_bytes, ranks, rank);
    if (range.begin != next || range.end < range.begin) return false;
    if (range.size() > 0 && (range.begin * element_bytes) % 64 != 0) return false;
    next = range.end;
  }
  return next == count;
}

constexpr bool ranges_cover_everything() {
  for (std::int64_t count : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 1000, 4099}) {
    for (std::int64_t bytes : {1, 2, 4, 8, 16, 48, 64, 100}) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        if (64 % bytes == 0 && !ranges_cover(count, bytes, ranks)) return false;
      }
    }
  }
  return true;
}
static_assert(ranges_cover_everything());
static_assert(ranges_cover((std::int64_t{1} << 40) + 7, 4, 7));

// The formulas of the table of placements, at sizes that divide.
static_assert(zero::AllGather<float>{.count = 256}.received_bytes(4, 2) == 3 * 1024);
static_assert(zero::ReduceScatter<zero::bf16>{.count = 256}.received_bytes(4, 2) == 3 * 512);
static_assert(zero::AllReduce<float>{.count = 1024}.received_bytes(4, 2) == 2 * 4096 * 3 / 4);
static_assert(zero::AllToAll<double>{.count = 10}.received_bytes(4, 0) == 240);
static_assert(zero::Broadcast<float>{.count = 10, .root = 1}.received_bytes(4, 1) == 0);
static_assert(zero::Broadcast<float>{.count = 10, .root = 1}.received_bytes(4, 0) == 40);
static_assert(zero::Barrier{}.received_bytes(4, 0) == 0 && zero::Announce{}.received_bytes(4, 0) == 0);

constexpr std::int64_t all_reduce_total(std::int64_t count, int ranks) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += zero::AllReduce<float>{.count = count}.received_bytes(ranks, rank);
  return sum;
}
// Whatever the split, the ranks together receive 2 n (N - 1) elements.
static_assert(all_reduce_total(1, 8) == 2 * 1 * 7 * 4 && all_reduce_total(1001, 7) == 2 * 1001 * 6 * 4 && all_reduce_total(1001, 1) == 0);
static_assert(zero::AllGather<float>{.count = std::int64_t{1} << 33}.received_bytes(3, 0) == std::int64_t{1} << 36);

}  // namespace

TEST_CASE("subjects and kinds have names") {
  CHECK(std::string(zero::name(zero::Subject::optimizer_states)) == "optimizer states");
  CHECK(std::string(zero::name(static_cast<zero::Subject>(99))) == "unknown");
  CHECK(std::string(zero::name(zero::OperationKind::split)) == "split");
  CHECK(zero::AllGather<float>::name == std::string(zero::name(zero::AllGather<float>::kind)));
  CHECK(zero::Announce::name == std::string(zero::name(zero::Announce::kind)));
}

TEST_CASE("a default label serves the user and has no index") {
  CHECK(zero::Label{} == zero::Label{zero::Subject::user, -1});
  CHECK_FALSE(zero::Label{zero::Subject::control, 1} == zero::Label{zero::Subject::control, 2});
}
