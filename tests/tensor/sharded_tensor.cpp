// SPDX-License-Identifier: Apache-2.0
#include <zero/tensor/sharded_tensor.hpp>

#include <doctest/doctest.h>

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/self.hpp>

#include "support/ranks.hpp"

namespace {

using zero::Partial;
using zero::Replicated;
using zero::Sharded;
using zero::ShardedTensor;

using Group = zero::Counting<zero::Borrowed<zero::ThreadCommunicator>>;

static_assert(std::movable<ShardedTensor<float, Sharded>> && !std::copyable<ShardedTensor<float, Sharded>>);

template <class To, class Tensor>
using Converted = decltype(zero::convert<To>(std::declval<Group&>(), std::declval<zero::HostStreamRef>(), std::declval<Tensor>()));

// Owners where bytes move, views where none do.
static_assert(std::is_same_v<Converted<Replicated, ShardedTensor<float, Sharded>&>, ShardedTensor<float, Replicated>>);
static_assert(std::is_same_v<Converted<Sharded, ShardedTensor<float, Partial>&>, ShardedTensor<float, Sharded>>);
static_assert(std::is_same_v<Converted<Sharded, ShardedTensor<float, Replicated>&>, zero::TensorRef<float, Sharded>>);
static_assert(std::is_same_v<Converted<Replicated, ShardedTensor<float, Replicated>&>, zero::TensorRef<float, Replicated>>);
static_assert(std::is_same_v<Converted<Replicated, ShardedTensor<float, Sharded>>, ShardedTensor<float, Replicated>>);

zero::HostStreamRef here() { return zero::HostStreamRef::calling_thread(); }

}  // namespace

TEST_CASE("a tensor goes through all its placements, in sizes that do not divide") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& threads) {
    zero::Traffic traffic;
    Group group{zero::Borrowed{threads}, traffic};
    zero::CountingResource memory{zero::host_memory()};
    for (std::int64_t n : {0, 1, 2, 5, 127, 128, 131, 1021, 4099}) {
      INFO(n, " elements");
      ShardedTensor<float, Partial> sum{group, n, memory, zero::Purpose::gradients};
      CHECK(sum.size() == n);
      CHECK(sum.first() == 0);
      CHECK(sum.purpose() == zero::Purpose::gradients);
      CHECK(memory.live(zero::Purpose::gradients) == sum.geometry().padded_elements() * 4);
      for (std::size_t i = 0; i < sum.local().size(); ++i) sum.local()[i] = static_cast<float>(i);
      auto shard = zero::convert<Sharded>(group, here(), sum);
      CHECK(shard.size() == n);
      CHECK(static_cast<std::int64_t>(shard.storage().size()) == sum.geometry().shard_elements);
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < shard.local().size(); ++i) {
        wrong +=
            shard.local()[i] != static_cast<float>(group.size()) * static_cast<float>(shard.first() + static_cast<std::int64_t>(i)) ? 1 : 0;
      }
      auto whole = zero::convert<Replicated>(group, here(), std::move(shard));
      for (std::size_t i = 0; i < whole.local().size(); ++i) {
        wrong += whole.local()[i] != static_cast<float>(group.size()) * static_cast<float>(i) ? 1 : 0;
      }
      CHECK(static_cast<std::int64_t>(whole.local().size()) == n);
      auto const view = zero::convert<Sharded>(group, here(), whole);
      CHECK(view.data() == whole.storage().data() + whole.geometry().shard_begin());
      CHECK(wrong == 0);
      ShardedTensor<float, Replicated> const moved = std::move(whole);
      CHECK(moved.ref().data() == moved.storage().data());
      CHECK(&moved.memory() == &memory);
    }
    CHECK(memory.live() == 0);
    CHECK(traffic.received_bytes() == threads.bytes_copied());
    if (group.size() == 1) CHECK(traffic.calls() == 0);
  });
}

TEST_CASE("one rank without a transport") {
  zero::SelfCommunicator self;
  ShardedTensor<double, Sharded> tensor{self, 7, zero::host_memory()};
  for (double& value : tensor.local()) value = 2;
  auto const whole = zero::convert<Replicated>(self, here(), tensor);
  CHECK(whole.local().size() == 7);
  for (double value : whole.local()) CHECK(value == 2);
}

TEST_CASE("a negative size is refused, and memory that is not there") {
  zero::SelfCommunicator self;
  CHECK_THROWS_AS((ShardedTensor<float, Sharded>{self, -1, zero::host_memory()}), zero::UsageError);
  zero::LimitedResource little{zero::host_memory(), 100};
  CHECK_THROWS_AS((ShardedTensor<float, Sharded>{self, 1000, little}), zero::MemoryError);
}
