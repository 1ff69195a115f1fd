// SPDX-License-Identifier: Apache-2.0
#include <zero/tensor/conversion.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>

#include "support/ranks.hpp"

namespace {

using zero::Conversion;
using zero::Geometry;
using zero::Partial;
using zero::Replicated;
using zero::Sharded;
using zero::TensorRef;

using Group = zero::Counting<zero::Borrowed<zero::ThreadCommunicator>>;

static_assert(zero::ConvertibleTo<Partial, Replicated> && zero::ConvertibleTo<Partial, Sharded> &&
              zero::ConvertibleTo<Sharded, Replicated>);
static_assert(zero::ConvertibleTo<Replicated, Sharded> && zero::ConvertibleTo<Partial, Partial>);
static_assert(!zero::ConvertibleTo<Replicated, Partial> && !zero::ConvertibleTo<Sharded, Partial>, "nothing converts to Partial");
static_assert(!Conversion<Replicated, Sharded>::communicates && !Conversion<Sharded, Sharded>::communicates);

// The table, n padded elements over N ranks: 2 n (N-1)/N, n (N-1)/N, n (N-1)/N, 0, 0.
constexpr Geometry example{1000, 256, 4, 1};
static_assert(Conversion<Partial, Replicated>::received_bytes<float>(example) == 2 * 4 * 1024 * 3 / 4);
static_assert(Conversion<Partial, Sharded>::received_bytes<float>(example) == 4 * 1024 * 3 / 4);
static_assert(Conversion<Sharded, Replicated>::received_bytes<zero::bf16>(example) == 2 * 1024 * 3 / 4);
static_assert(Conversion<Replicated, Sharded>::received_bytes<float>(example) == 0);
static_assert(Conversion<Sharded, Sharded>::received_bytes<float>(example) == 0);

zero::HostStreamRef here() { return zero::HostStreamRef::calling_thread(); }

float value_of(std::int64_t i) { return static_cast<float>(i % 97 - 40); }

/// The sum over the ranks of what each adds is value_of(i).
float addend(int rank, int ranks, std::int64_t i) {
  return rank == 0 ? value_of(i) - static_cast<float>((ranks - 1) * (ranks - 2) / 2) - static_cast<float>(ranks - 1)
                   : static_cast<float>(rank);
}

constexpr std::int64_t sizes[] = {0, 1, 2, 3, 7, 127, 128, 129, 1009, 1023, 1024, 1025, 2053};

struct Tensors {
  Geometry geometry;
  std::vector<float> shard, whole, other;

  Tensors(Group& group, std::int64_t n)
      : geometry(zero::geometry(group, n)),
        shard(static_cast<std::size_t>(geometry.shard_elements), -1.0f),
        whole(static_cast<std::size_t>(geometry.padded_elements()), -1.0f),
        other(whole) {}

  void fill(int rank) {
    for (std::int64_t i = 0; i < geometry.elements; ++i) whole[static_cast<std::size_t>(i)] = addend(rank, geometry.ranks, i);
  }
  template <class Policy>
  bool right(TensorRef<float, Policy> tensor) const {
    for (std::size_t i = 0; i < tensor.local().size(); ++i) {
      if (tensor.local()[i] != value_of(tensor.first() + static_cast<std::int64_t>(i))) return false;
    }
    return true;
  }
};

template <class Body>
void with_counted_ranks(Body const& body) {
  zero::run_ranks(zero::test::ranks(), [&](zero::ThreadCommunicator& threads) {
    zero::Traffic traffic;
    Group group{zero::Borrowed{threads}, traffic};
    body(group, traffic, threads);
  });
}

}  // namespace

TEST_CASE("field case 118: in place and out of place, each conversion gives the value and receives its bytes") {
  with_counted_ranks([](Group& group, zero::Traffic& traffic, zero::ThreadCommunicator& threads) {
    bool const alone = group.size() == 1;
    std::int64_t copied = threads.bytes_copied();
    for (std::int64_t n : sizes) {
      INFO(n, " elements");
      auto const received = [&](std::int64_t bytes) {
        CHECK(traffic.received_bytes() == bytes);
        CHECK(threads.bytes_copied() - copied == bytes);
        copied = threads.bytes_copied();
        CHECK(traffic.calls() == (alone || n == 0 ? 0 : 1));
        traffic.reset();
      };
      traffic.reset();
      Tensors t(group, n);
      TensorRef<float, Sharded> const shard{t.shard.data(), t.geometry};

      // Partial -> Sharded, then Sharded -> Replicated.
      t.fill(group.rank());
      TensorRef<float, Partial> const sum{t.whole.data(), t.geometry};
      zero::convert_into(group, here(), sum, shard);
      received(alone ? 0 : Conversion<Partial, Sharded>::received_bytes<float>(t.geometry));
      CHECK(t.right(shard));
      TensorRef<float, Replicated> const other{t.other.data(), t.geometry};
      zero::convert_into(group, here(), shard, other);
      received(alone ? 0 : Conversion<Sharded, Replicated>::received_bytes<float>(t.geometry));
      CHECK(t.right(other));

      // Partial -> Sharded in place, and back up in place.
      t.fill(group.rank());
      zero::convert_into(group, here(), sum, zero::in_place<Sharded>(sum));
      received(alone ? 0 : Conversion<Partial, Sharded>::received_bytes<float>(t.geometry));
      CHECK(t.right(zero::in_place<Sharded>(sum)));
      zero::convert_into(group, here(), zero::in_place<Sharded>(sum), TensorRef<float, Replicated>{t.whole.data(), t.geometry});
      received(alone ? 0 : Conversion<Sharded, Replicated>::received_bytes<float>(t.geometry));
      CHECK(t.right(TensorRef<float, Replicated>{t.whole.data(), t.geometry}));

      // Partial -> Replicated, out of place and in place.
      t.fill(group.rank());
      t.other.assign(t.other.size(), -1.0f);
      zero::convert_into(group, here(), sum, other);
      received(alone ? 0 : Conversion<Partial, Replicated>::received_bytes<float>(t.geometry));
      CHECK(t.right(other));
      zero::convert_into(group, here(), sum, zero::in_place<Replicated>(sum));
      received(alone ? 0 : Conversion<Partial, Replicated>::received_bytes<float>(t.geometry));
      CHECK(t.right(zero::in_place<Replicated>(sum)));

      // Replicated -> Sharded and X -> X: local.
      t.shard.assign(t.shard.size(), -1.0f);
      zero::convert_into(group, here(), other, shard);
      CHECK(t.right(shard));
      t.whole.assign(t.whole.size(), -1.0f);
      zero::convert_into(group, here(), other, TensorRef<float, Replicated>{t.whole.data(), t.geometry});
      CHECK(t.right(TensorRef<float, Replicated>{t.whole.data(), t.geometry}));
      zero::convert_into(group, here(), shard, shard);
      CHECK(t.right(shard));
      CHECK(traffic.calls() == 0);
    }
  });
}

TEST_CASE("a read-only source converts, and a factor multiplies the sum before it is rounded") {
  with_counted_ranks([](Group& group, zero::Traffic&, zero::ThreadCommunicator&) {
    Geometry const g = zero::geometry(group, 5);
    // On more than one rank the sum overflows half, its half does not. The sum over one rank is multiplied too.
    std::vector<zero::half> addends(static_cast<std::size_t>(g.padded_elements()),
                                    zero::half(60000.0f / static_cast<float>(group.size() > 1 ? group.size() : 2) * 2));
    std::vector<zero::half> result(static_cast<std::size_t>(g.shard_elements));
    zero::convert_into(group, here(), TensorRef<zero::half const, Partial>{addends.data(), g},
                       TensorRef<zero::half, Sharded>{result.data(), g}, {}, 0.5f);
    float const expected = static_cast<float>(addends[0]) * static_cast<float>(group.size()) * 0.5f;
    for (zero::half value : TensorRef<zero::half, Sharded>{result.data(), g}.local()) {
      CHECK(static_cast<float>(value) == static_cast<float>(zero::half(expected)));
    }
  });
}

TEST_CASE("tensors that are cut differently, or over another group, are refused before anything is enqueued") {
  with_counted_ranks([](Group& group, zero::Traffic& traffic, zero::ThreadCommunicator&) {
    Geometry const g = zero::geometry(group, 1000);
    std::vector<float> a(static_cast<std::size_t>(g.padded_elements() + 128));
    std::vector<float> b(a);
    TensorRef<float, Partial> const from{a.data(), g};
    Geometry other = g;
    other.elements = 999;
    CHECK_THROWS_AS(zero::convert_into(group, here(), from, TensorRef<float, Replicated>{b.data(), other}), zero::UsageError);
    other = g;
    other.shard_elements += 1;
    CHECK_THROWS_AS(zero::convert_into(group, here(), from, TensorRef<float, Replicated>{b.data(), other}), zero::UsageError);
    other = g;
    other.ranks += 1;
    CHECK_THROWS_AS(
        zero::convert_into(group, here(), TensorRef<float, Partial>{a.data(), other}, TensorRef<float, Replicated>{b.data(), other}),
        zero::UsageError);
    other = g;
    other.rank = (g.rank + 1) % (g.ranks + 1);
    CHECK_THROWS_AS(
        zero::convert_into(group, here(), TensorRef<float, Partial>{a.data(), other}, TensorRef<float, Replicated>{b.data(), other}),
        zero::UsageError);
    CHECK(traffic.calls() == 0);
    try {
      zero::convert_into(group, here(), from, TensorRef<float, Replicated>{b.data(), other});
    } catch (zero::UsageError const& error) {
      CHECK(error.rank() == group.rank());
      CHECK(std::string(error.where().file).find("conversion.cpp") != std::string::npos);
    }
  });
}
