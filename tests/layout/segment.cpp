// SPDX-License-Identifier: Apache-2.0
#include <zero/layout/segment.hpp>

#include <doctest/doctest.h>

namespace {

using zero::ElementRange;
using zero::PartitionOptions;

static_assert(PartitionOptions{}.shard_alignment == 128 && PartitionOptions{}.parameter_alignment == 32);
static_assert(PartitionOptions{.shard_alignment = 64} != PartitionOptions{});

TEST_CASE("a_range_knows_its_size_beyond_two_to_the_31") {
  ElementRange const range{5, std::int64_t{1} << 40};
  CHECK(range.size() == (std::int64_t{1} << 40) - 5);
  CHECK_FALSE(range.empty());
  CHECK(ElementRange{7, 7}.empty());
  CHECK(ElementRange{1, 2} != ElementRange{1, 3});
}

}  // namespace
