// SPDX-License-Identifier: Apache-2.0
/// @file
/// Groups made by split conform, while the other half of the ranks does the same.

#include <doctest/doctest.h>

#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>

#include "comm/conformance.hpp"
#include "support/ranks.hpp"

namespace {

/// Two halves of neighbours, each ordered backwards.
struct Halves {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(2 * ranks, [&](zero::ThreadCommunicator& world) {
      zero::ThreadCommunicator half = world.split(world.rank() / ranks, -world.rank());
      CHECK(half.rank() == ranks - 1 - world.rank() % ranks);
      body(half);
    });
  }
};

/// Every second rank: what the far axis of a mesh is.
struct Strided {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(2 * ranks, [&](zero::ThreadCommunicator& world) {
      zero::ThreadCommunicator part = world.split(world.rank() % 2);
      CHECK(part.rank() == world.rank() / 2);
      body(part);
    });
  }
};

}  // namespace

TEST_CASE("halves conform") { zero::test::conformance<Halves>(zero::test::ranks()); }
TEST_CASE("strided groups conform") { zero::test::conformance<Strided>(zero::test::ranks()); }

TEST_CASE("field case 63: groups of both axes of a mesh, in one order everywhere") {
  int const near_ranks = zero::test::ranks();
  zero::run_ranks(2 * near_ranks, [&](zero::ThreadCommunicator& world) {
    zero::ThreadCommunicator near = world.split(world.rank() / near_ranks);
    zero::ThreadCommunicator far = world.split(world.rank() % near_ranks);
    zero::HostStream stream;
    std::int64_t value = world.rank();
    for (int round = 0; round < 50; ++round) {
      value = world.rank();
      near.enqueue(stream, zero::AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
      far.enqueue(stream, zero::AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
      stream.synchronize();
    }
    CHECK(value == 2 * near_ranks * (2 * near_ranks - 1) / 2);
  });
}

TEST_CASE("a rank that is done with its group does not disturb the others") {
  int const ranks = 2 * zero::test::ranks();
  zero::run_ranks(ranks, [&](zero::ThreadCommunicator& world) {
    zero::ThreadCommunicator part = world.split(world.rank() % 2);
    zero::HostStreamRef const here = zero::HostStreamRef::calling_thread();
    // The ranks of one group return early; those of the other go on.
    for (int i = 0; i < (world.rank() % 2 == 0 ? 1 : 200); ++i) part.enqueue(here, zero::Barrier{});
  });
}
