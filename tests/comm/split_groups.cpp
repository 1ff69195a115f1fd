// SPDX-License-Identifier: Apache-2.0
/// @file
/// Groups made by split conform, while the other half of the ranks does the same.

#include <doctest/doctest.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

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

namespace {

/// What each of four ranks is told. They are two halves, each ordered backwards: rank 0 is number 1 of its half, rank 2 of the other one.
template <class Body>
std::vector<std::string> told(Body const& body, zero::RunOptions options = {}) {
  std::vector<std::string> texts(4);
  auto const keep = [&](zero::ThreadCommunicator& world) {
    try {
      zero::ThreadCommunicator half = world.split(world.rank() / 2, -world.rank());
      try {
        body(world, half);
      } catch (...) {
        half.abort(std::current_exception());  // The half must not end as one that is left by an exception.
        world.abort(std::current_exception());
        throw;
      }
    } catch (zero::Error const& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
      CHECK(error.rank_in_first_group() == world.rank());
      throw;
    }
  };
  CHECK_THROWS(zero::run_ranks(4, keep, options));
  return texts;
}

zero::HostStreamRef here() { return zero::HostStreamRef::calling_thread(); }

}  // namespace

TEST_CASE("ranks in errors are those of the group of the call, with the number in the first group beside them") {
  std::vector<std::string> const texts = told([](zero::ThreadCommunicator& world, zero::ThreadCommunicator& half) {
    try {
      half.enqueue(here(), zero::Broadcast<float>{.root = 2});
    } catch (zero::UsageError const& error) {
      CHECK(error.rank() == half.rank());
      std::string const wanted = half.rank() == world.rank() ? "" : " (rank " + std::to_string(world.rank()) + " of the first group)";
      CHECK(std::string(error.what()).find("zero: rank " + std::to_string(half.rank()) + wanted + ": broadcast: the root is 2") == 0);
      throw;
    }
  });
  for (std::string const& text : texts) CHECK(text.find("broadcast: the root is 2") != std::string::npos);
}

TEST_CASE("a mismatch in one group is told by its numbers there, and to the other groups by those of the first") {
  std::vector<std::string> const texts = told([](zero::ThreadCommunicator& world, zero::ThreadCommunicator& half) {
    if (world.rank() < 2) {
      for (;;) half.enqueue(here(), zero::Barrier{});
    }
    half.enqueue(here(), zero::Barrier{.label = {.index = world.rank()}});
  });
  CHECK(texts[2].find("zero: rank 1 (rank 2 of the first group): the ranks do not call the same thing: rank 1 (rank 2 of the first group) "
                      "calls barrier for user 2, rank 0 (rank 3 of the first group) calls barrier for user 3") == 0);
  CHECK(texts[3].find("zero: rank 0 (rank 3 of the first group): the ranks do not call the same thing: rank 0 (rank 3 ") == 0);
  CHECK(texts[0].find("zero: rank 1 (rank 0 of the first group): rank ") == 0);
  CHECK(texts[0].find(" of the first group says: zero: rank ") != std::string::npos);
  CHECK(texts[0].find("calls barrier for user 3") != std::string::npos);
}

TEST_CASE("a peer's failure names it in the group of the call, or in the first group to those that are not with it") {
  std::vector<std::string> const texts = told([](zero::ThreadCommunicator& world, zero::ThreadCommunicator& half) {
    if (world.rank() == 3) throw std::runtime_error("the reason");
    try {
      for (;;) half.enqueue(here(), zero::Barrier{});
    } catch (zero::PeerError const& error) {
      CHECK(error.rank() == half.rank());
      CHECK(error.peer() == (world.rank() == 2 ? 0 : -1));
      CHECK(error.peer_in_first_group() == 3);
      throw;
    }
  });
  CHECK(texts[2] == "zero: rank 1 (rank 2 of the first group): rank 0 (rank 3 of the first group) failed first: the reason");
  CHECK(texts[1] == "zero: rank 0 (rank 1 of the first group): rank 3 of the first group failed first: the reason");
}

TEST_CASE("the deadline in a split group lists ranks of the first group") {
  std::vector<std::string> const texts = told(
      [](zero::ThreadCommunicator& world, zero::ThreadCommunicator& half) {
        if (world.rank() != 3) half.enqueue(here(), zero::Barrier{});
        world.enqueue(here(), zero::Barrier{});
      },
      {.deadline_ms = 60});
  // Two groups wait, each for ranks that wait in the other; whichever is found first is told to everybody.
  for (std::string const& text : texts) {
    CAPTURE(text);
    bool const of_half = text.find("missing 3; waiting 2 (ranks of the first group)") != std::string::npos;
    bool const of_world = text.find("missing 2; waiting 0, 1, 3") != std::string::npos;
    CHECK((of_half || of_world));
  }
}
