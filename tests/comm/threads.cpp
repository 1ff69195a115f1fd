// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/threads.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zero/comm/run_ranks.hpp>

#include "comm/conformance.hpp"
#include "support/allocations.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Barrier;
using zero::Broadcast;
using zero::HostStream;
using zero::HostStreamRef;
using zero::Max;
using zero::ReduceScatter;
using zero::ThreadCommunicator;
using zero::test::allocations;
using zero::test::counts_allocations;

struct Threads {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, body);
  }
};

}  // namespace

TEST_CASE("threads conform; field case 118: in place equals out of place") { zero::test::conformance<Threads>(zero::test::ranks()); }

TEST_CASE("every operation moves exactly the bytes of its formula") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    HostStreamRef const here = HostStreamRef::calling_thread();
    int const n = comm.size();
    auto const moves = [&](auto const& operation) {
      std::int64_t const before = comm.bytes_copied();
      comm.enqueue(here, operation);
      comm.enqueue(here, Barrier{});  // Peers push: what they count is seen after they have met again.
      return comm.bytes_copied() - before == operation.received_bytes(n, comm.rank());
    };
    for (std::int64_t const count : zero::test::odd_counts) {
      std::vector<float> send(static_cast<std::size_t>(count * n), 1.0f);
      std::vector<float> receive(send.size());
      std::vector<zero::bf16> narrow(static_cast<std::size_t>(count));
      CHECK(moves(AllGather<float>{.send = send.data(), .receive = receive.data(), .count = count}));
      CHECK(moves(AllGather<float>{.send = receive.data() + comm.rank() * count, .receive = receive.data(), .count = count}));
      CHECK(moves(ReduceScatter<float>{.send = send.data(), .receive = receive.data(), .count = count}));
      CHECK(moves(AllReduce<float>{.send = send.data(), .receive = send.data(), .count = count}));
      CHECK(moves(AllReduce<float, Max>{.send = send.data(), .receive = receive.data(), .count = count}));
      CHECK(moves(AllReduce<zero::bf16>{.send = narrow.data(), .receive = narrow.data(), .count = count}));
      CHECK(moves(AllToAll<float>{.send = send.data(), .receive = receive.data(), .count = count}));
      for (int root = 0; root < n; ++root) CHECK(moves(Broadcast<float>{.buffer = receive.data(), .count = count, .root = root}));
    }
    if (n == 1) CHECK(comm.bytes_copied() == 0);
  });
}

TEST_CASE("results larger than the caches arrive whole, at odd places too") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    HostStreamRef const here = HostStreamRef::calling_thread();
    std::int64_t const n = comm.size();
    std::int64_t const count = zero::detail::streaming_bytes / 4 / n + 13;
    for (std::int64_t const shift : {0, 1, 3}) {
      std::vector<float> memory(static_cast<std::size_t>(n * count + shift + 1), -1.0f);
      std::vector<float> source(static_cast<std::size_t>(n * count), static_cast<float>(comm.rank()));
      float* const receive = memory.data() + shift;
      bool passed = true;
      comm.enqueue(here, AllGather<float>{.send = source.data(), .receive = receive, .count = count});
      for (std::int64_t i = 0; i < n * count; ++i) passed = passed && receive[i] == static_cast<float>(i / count);
      std::fill(memory.begin(), memory.end(), -1.0f);
      comm.enqueue(here, AllToAll<float>{.send = source.data(), .receive = receive, .count = count});
      for (std::int64_t i = 0; i < n * count; ++i) passed = passed && receive[i] == static_cast<float>(i / count);
      comm.enqueue(here, Broadcast<float>{.buffer = receive, .count = n * count, .root = static_cast<int>(n) - 1});
      for (std::int64_t i = 0; i < n * count; ++i) passed = passed && receive[i] == static_cast<float>(i / count);
      comm.enqueue(here, AllReduce<float>{.send = source.data(), .receive = receive, .count = n * count});
      for (std::int64_t i = 0; i < n * count; ++i) passed = passed && receive[i] == static_cast<float>(n * (n - 1) / 2);
      CHECK(passed);
      CHECK(memory.back() == -1.0f);
      if (shift > 0) CHECK(memory[static_cast<std::size_t>(shift - 1)] == -1.0f);
    }
  });
}

TEST_CASE("operations of one communicator keep the order of their calls over two streams") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    HostStream first({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 1)});
    HostStream second({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 100)});
    int const n = comm.size();
    bool passed = true;
    for (int round = 0; round < 50; ++round) {
      std::int64_t a = 1;
      std::int64_t b = 2;
      std::int64_t c = 3;
      comm.enqueue(first, AllReduce<std::int64_t>{.send = &a, .receive = &a, .count = 1, .label = {.index = 3 * round}});
      comm.enqueue(second, AllReduce<std::int64_t>{.send = &b, .receive = &b, .count = 1, .label = {.index = 3 * round + 1}});
      comm.enqueue(first, AllReduce<std::int64_t>{.send = &c, .receive = &c, .count = 1, .label = {.index = 3 * round + 2}});
      first.synchronize();
      second.synchronize();
      passed = passed && a == n && b == 2 * n && c == 3 * n;
    }
    CHECK(passed);
  });
}

TEST_CASE("no collective allocates") {
  if (!counts_allocations) {
    MESSAGE("skipped: allocations cannot be counted under this sanitizer");
    return;
  }
  for (bool const worker : {false, true}) {
    std::atomic<std::int64_t> counted = -1;
    zero::run_ranks(zero::test::ranks(), [&](ThreadCommunicator& comm) {
      HostStream stream({.worker = worker});
      int const n = comm.size();
      std::vector<float> send(static_cast<std::size_t>(300 * n));
      std::vector<float> receive(send.size());
      auto const all_of_them = [&] {
        comm.enqueue(stream, AllGather<float>{.send = send.data(), .receive = receive.data(), .count = 300});
        comm.enqueue(stream, ReduceScatter<float>{.send = send.data(), .receive = receive.data(), .count = 300});
        comm.enqueue(stream, AllReduce<float>{.send = send.data(), .receive = send.data(), .count = 300});
        comm.enqueue(stream, Broadcast<float>{.buffer = send.data(), .count = 300});
        comm.enqueue(stream, AllToAll<float>{.send = send.data(), .receive = receive.data(), .count = 300});
        comm.enqueue(stream, Barrier{});
      };
      all_of_them();
      stream.synchronize();
      HostStreamRef const here = HostStreamRef::calling_thread();
      comm.enqueue(here, Barrier{});
      std::int64_t const before = allocations();
      comm.enqueue(here, Barrier{});
      for (int i = 0; i < 100; ++i) all_of_them();
      stream.synchronize();
      comm.enqueue(here, Barrier{});
      if (comm.rank() == 0) counted = allocations() - before;
      comm.enqueue(here, Barrier{});
    });
    CHECK(counted.load() == 0);
  }
}

TEST_CASE("a communicator that is moved from one place to another is the same rank") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    ThreadCommunicator child = comm.split(0);
    HostStream stream;
    std::int64_t value = 1;
    child.enqueue(stream, AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
    ThreadCommunicator moved = std::move(child);
    moved.enqueue(stream, AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
    moved = comm.split(0);  // The former group ends here; what was enqueued to it completes.
    stream.synchronize();
    CHECK(value == comm.size() * comm.size());
    CHECK(moved.rank() == comm.rank());
  });
}

TEST_CASE("an operation on a stream may outlive its communicator") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    HostStream stream({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 1)});
    std::int64_t value = 1;
    {
      ThreadCommunicator child = comm.split(0);
      for (int i = 0; i < 20; ++i) child.enqueue(stream, AllReduce<std::int64_t, Max>{.send = &value, .receive = &value, .count = 1});
    }
    stream.synchronize();
    CHECK(value == 1);
  });
}

TEST_CASE("one stream with a worker for all ranks is refused on every rank, not waited for") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  HostStream shared;
  std::atomic<int> refused = 0;
  std::atomic<int> named = 0;
  auto const body = [&](ThreadCommunicator& comm) {
    try {
      comm.enqueue(shared, Barrier{});
      shared.synchronize();
    } catch (zero::UsageError const& error) {
      ++refused;
      std::string const text = error.what();
      named += text.find("a stream with a worker serves one rank: rank ") != std::string::npos &&
               text.find("tests/comm/threads.cpp:") != std::string::npos;
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(ranks, body, {.deadline_ms = 20'000}), zero::UsageError);
  CHECK(refused.load() == ranks);
  CHECK(named.load() == ranks);
}

TEST_CASE("two ranks of different groups on one stream are refused too: whether they would be done depends on timing") {
  if (zero::test::ranks() < 4) return;
  HostStream shared;
  std::atomic<bool> rank_2_has_called = false;
  auto const body = [&](ThreadCommunicator& comm) {
    ThreadCommunicator pair = comm.split(comm.rank() / 2);
    HostStream own;
    // Nobody joins rank 0 before rank 2 has been refused.
    if (comm.rank() == 0) pair.enqueue(shared, Barrier{});
    comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
    if (comm.rank() == 2) {
      try {
        pair.enqueue(shared, Barrier{});
      } catch (...) {
        rank_2_has_called = true;
        throw;
      }
      rank_2_has_called = true;
    }
    if (comm.rank() == 1) {  // Its return would be a failure, too.
      while (!rank_2_has_called) std::this_thread::yield();
    } else {
      comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
    }
  };
  CHECK_THROWS_WITH_AS(zero::run_ranks(zero::test::ranks(), body, {.deadline_ms = 20'000}), doctest::Contains("rank 0 of the first group"),
                       zero::UsageError);
}

TEST_CASE("a stream without a worker may be shared, and one with a worker handed on when its collectives are done") {
  HostStream inline_stream({.worker = false});
  HostStream handed_on;
  zero::run_ranks(zero::test::ranks(), [&](ThreadCommunicator& comm) {
    std::int64_t value = 1;
    AllReduce<std::int64_t> const sum{.send = &value, .receive = &value, .count = 1};
    comm.enqueue(inline_stream, sum);
    CHECK(value == comm.size());
    value = 1;
    HostStream own;
    for (int user = 0; user < comm.size(); ++user) {
      HostStreamRef const stream = comm.rank() == user ? HostStreamRef(handed_on) : HostStreamRef(own);
      comm.enqueue(stream, sum);
      stream.synchronize();
      comm.enqueue(inline_stream, Barrier{});
      CHECK(value == comm.size());
      value = 1;
    }
  });
}

TEST_CASE("a collective that a stream refuses, inside one of its own tasks, was not called") {
  zero::run_ranks(zero::test::ranks(),
                  [](ThreadCommunicator& comm) {
                    if (comm.size() == 1) return;
                    HostStream stream;
                    std::int64_t value = 1;
                    bool refused = false;
                    stream.enqueue([&] {
                      try {
                        comm.enqueue(stream, Barrier{{.index = 9}});
                      } catch (zero::UsageError const&) {
                        refused = true;
                      }
                    });
                    stream.synchronize();
                    CHECK(refused);
                    comm.enqueue(stream, AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
                    stream.synchronize();
                    CHECK(value == comm.size());
                  },
                  {.deadline_ms = 20'000});
}
