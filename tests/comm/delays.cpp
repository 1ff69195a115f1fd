// SPDX-License-Identifier: Apache-2.0
/// @file
/// Streams that are delayed at random, also between the parts of a collective, change no result.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>
#include <zero/core/hash.hpp>

#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Broadcast;
using zero::HostStream;
using zero::ReduceScatter;
using zero::ThreadCommunicator;

constexpr std::int64_t part = 333;

/// Real numbers: another order of additions, or a part read too early, shows.
float noise(int rank, std::int64_t i) {
  return static_cast<float>(static_cast<std::int64_t>(zero::mixed_bits(static_cast<std::uint64_t>(rank * 100'000 + i)) >> 40)) * 1e-3f -
         8000.0f;
}

/// A chain of collectives in which each uses what the one before gave, in buffers that are used again, on two streams.
std::vector<float> chain(ThreadCommunicator& comm, std::uint64_t seed) {
  int const n = comm.size();
  std::uint64_t const own = seed == 0 ? 0 : 1000 * seed + 2 * static_cast<std::uint64_t>(comm.rank()) + 1;
  HostStream first({.delay_seed = own, .max_delay_us = 60});
  HostStream second({.delay_seed = own == 0 ? 0 : own + 1, .max_delay_us = 60});
  std::vector<float> whole(static_cast<std::size_t>(n * part));
  std::vector<float> other(whole.size());
  for (std::int64_t i = 0; i < n * part; ++i) whole[static_cast<std::size_t>(i)] = noise(comm.rank(), i);
  float* const own_part = whole.data() + comm.rank() * part;
  ThreadCommunicator child = comm.split(comm.rank() % 2);
  for (int round = 0; round < 2; ++round) {
    comm.enqueue(first, ReduceScatter<float>{.send = whole.data(), .receive = own_part, .count = part, .factor = 0.3f});
    comm.enqueue(first, AllGather<float>{.send = own_part, .receive = whole.data(), .count = part});
    comm.enqueue(second, AllToAll<float>{.send = whole.data(), .receive = other.data(), .count = part});
    comm.enqueue(first, AllReduce<float>{.send = other.data(), .receive = other.data(), .count = n * part, .factor = 0.4f});
    comm.enqueue(second, AllReduce<float>{.send = other.data(), .receive = whole.data(), .count = n * part, .factor = 0.7f});
    comm.enqueue(first, Broadcast<float>{.buffer = own_part, .count = part, .root = round % n});
    child.enqueue(first, AllReduce<float>{.send = whole.data(), .receive = whole.data(), .count = n * part, .factor = 0.6f});
  }
  first.synchronize();
  second.synchronize();
  return whole;
}

using Results = std::vector<std::vector<float>>;

/// The results of all ranks for the seeds [first, end), one after the other.
std::vector<Results> run(std::uint64_t first, std::uint64_t end) {
  std::vector<Results> results(end - first, Results(static_cast<std::size_t>(zero::test::ranks())));
  zero::run_ranks(zero::test::ranks(), [&](ThreadCommunicator& comm) {
    for (std::uint64_t seed = first; seed < end; ++seed) results[seed - first][static_cast<std::size_t>(comm.rank())] = chain(comm, seed);
  });
  return results;
}

}  // namespace

TEST_CASE("field case 50: 200 seeds of delays give the bits of the undelayed run") {
  Results const expected = run(0, 1)[0];
  bool moved = false;
  for (float value : expected[0]) moved = moved || (value != 0 && value != expected[0][0]);
  CHECK(moved);
  int different = 0;
  for (Results const& results : run(1, 201)) different += results == expected ? 0 : 1;
  CHECK(different == 0);
}
