// SPDX-License-Identifier: Apache-2.0
#include <zero/tensor/tensor_ref.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

namespace {

using zero::Geometry;
using zero::Partial;
using zero::Replicated;
using zero::Sharded;
using zero::TensorRef;

/// What `geometry` asks of a group.
struct Place {
  int rank_;
  int size_;
  constexpr int rank() const { return rank_; }
  constexpr int size() const { return size_; }
};

static_assert(std::is_trivially_copyable_v<TensorRef<float, Sharded>>);
static_assert(std::is_convertible_v<TensorRef<float, Sharded>, TensorRef<float const, Sharded>>);
static_assert(!std::is_convertible_v<TensorRef<float const, Sharded>, TensorRef<float, Sharded>>);
static_assert(!std::is_convertible_v<TensorRef<float, Partial>, TensorRef<float, Replicated>>, "a pending sum is not its value");

template <class To, class From>
concept SeenInPlace = requires(TensorRef<float, From> tensor) { zero::in_place<To>(tensor); };
static_assert(SeenInPlace<Sharded, Replicated>);
static_assert(SeenInPlace<Sharded, Partial>);
static_assert(SeenInPlace<Sharded, Sharded>);
static_assert(!SeenInPlace<Replicated, Sharded>, "a shard's memory does not hold the whole value");

static_assert(zero::geometry(Place{1, 3}, 300, 128) == Geometry{300, 128, 3, 1});
static_assert(zero::geometry(Place{0, 1}, 0) == Geometry{0, 0, 1, 0});
static_assert(zero::geometry(Place{0, 4}, std::int64_t{1} << 40, 1).shard_elements == std::int64_t{1} << 38);

}  // namespace

TEST_CASE("every element is in exactly one rank's local part, and every part is a multiple of the alignment") {
  for (int ranks : {1, 2, 3, 7, 8, 64}) {
    for (std::int64_t alignment : {1, 8, 128}) {
      for (std::int64_t n : {0, 1, 2, 7, 63, 127, 128, 129, 1023, 1024, 1025, 8191, 8193}) {
        std::int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          Geometry const g = zero::geometry(Place{rank, ranks}, n, alignment);
          CHECK(g.elements == n);
          CHECK(g.shard_elements % alignment == 0);
          CHECK(g.padded_elements() >= n);
          CHECK(g.padded_elements() - n < alignment * ranks);
          if (g.local_elements() > 0) CHECK(g.first() == next);
          CHECK(g.local_elements() >= 0);
          CHECK(g.local_elements() <= g.shard_elements);
          next += g.local_elements();
        }
        CHECK(next == n);
      }
    }
  }
}

TEST_CASE("local() excludes padding, storage() includes it") {
  std::vector<float> memory(384);
  Geometry const last{300, 128, 3, 2};
  TensorRef<float, Sharded> const shard{memory.data(), last};
  CHECK(shard.local().size() == 44);
  CHECK(shard.storage().size() == 128);
  CHECK(shard.local().data() == memory.data());
  CHECK(shard.first() == 256);
  CHECK(shard.size() == 300);
  TensorRef<float, Replicated> const whole{memory.data(), last};
  CHECK(whole.local().size() == 300);
  CHECK(whole.storage().size() == 384);
  CHECK(whole.first() == 0);
  TensorRef<float, Partial> const sum{memory.data(), last};
  CHECK(sum.local().size() == 300);
  CHECK(sum.storage().size() == 384);
  TensorRef<float const, Partial> const read_only = sum;
  CHECK(read_only.data() == memory.data());
}

TEST_CASE("field case 2: a rank without own elements holds padding only") {
  Geometry const g{3, 128, 8, 5};
  std::vector<float> memory(128);
  TensorRef<float, Sharded> const shard{memory.data(), g};
  CHECK(shard.local().empty());
  CHECK(shard.storage().size() == 128);
  CHECK(shard.first() == 3);
}

TEST_CASE("field case 11: the size of the whole is stored, not inferred from a shard") {
  for (int rank : {0, 1}) CHECK(zero::geometry(Place{rank, 2}, 5, 1).elements == 5);
}

TEST_CASE("in place, a shard is the own part of the whole") {
  std::vector<float> memory(384);
  TensorRef<float, Partial> const sum{memory.data(), Geometry{300, 128, 3, 1}};
  CHECK(zero::in_place<Sharded>(sum).data() == memory.data() + 128);
  CHECK(zero::in_place<Replicated>(sum).data() == memory.data());
  CHECK(zero::in_place<Sharded>(TensorRef<float, Sharded>{memory.data(), sum.geometry()}).data() == memory.data());
}

TEST_CASE("sizes and alignments that are negative, or whose padded sum would overflow, are refused") {
  CHECK_THROWS_AS(static_cast<void>(zero::geometry(Place{0, 2}, -1)), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(zero::geometry(Place{0, 2}, 5, 0)), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(zero::geometry(Place{0, 2}, zero::max_elements + 1)), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(zero::geometry(Place{0, 2}, 5, std::int64_t{1} << 31)), zero::UsageError);
  CHECK(zero::geometry(Place{0, 2}, zero::max_elements).padded_elements() == zero::max_elements);
}
