// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/separate_communicators.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/host_stream.hpp>

#include "comm/conformance.hpp"
#include "support/gate.hpp"
#include "support/outcomes.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::Announce;
using zero::Barrier;
using zero::Borrowed;
using zero::HostStreamRef;
using zero::SeparateCommunicators;
using zero::ThreadCommunicator;
using zero::test::is;
using zero::test::what_of;

// Models for the conformance.

struct SeparateThreads {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
      SeparateCommunicators group{Borrowed{comm}, comm.split(0, comm.rank())};
      body(group);
    });
  }
};

struct OrderedReductions {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
      SeparateCommunicators group{Borrowed{comm}, zero::Ordered{comm.split(0, comm.rank()), zero::host_memory(), {.staging_bytes = 4096}}};
      body(group);
    });
  }
};

struct CheckedAround {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
      zero::Checked group{SeparateCommunicators{Borrowed{comm}, comm.split(0, comm.rank())}};
      body(group);
    });
  }
};

/// A rank in name only, which writes down what it is asked for. As NCCL does, it refuses what is called inside of another one's group.
template <bool Announces = false>
class Recorder {
public:
  using Device = zero::HostDevice;

  Recorder(std::string name, std::string& log, int rank = 0, int size = 2) : name_(std::move(name)), log_(&log), rank_(rank), size_(size) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  void abort(std::exception_ptr cause) noexcept { write(what_of(cause)); }

  template <class Operation>
    requires(Announces || !std::is_same_v<Operation, Announce>)
  void enqueue(HostStreamRef, Operation const&) {
    if (!in_group.empty() && in_group != name_) throw zero::UsageError("inside of another one's group");
    write(Operation::name);
  }
  template <class Body>
  void group(HostStreamRef, Body&& body) {
    write("(");
    std::string const before = std::exchange(in_group, name_);
    try {
      body();
    } catch (...) {
      in_group = before;
      throw;
    }
    in_group = before;
    write(")");
  }
  template <class Launch>
  void watch(HostStreamRef, Launch&& launch, zero::SourceLocation = zero::SourceLocation::current()) {
    launch();
    write("watched");
  }
  [[nodiscard]] Recorder split(int color, int) { return {name_ + std::to_string(color), *log_, rank_, size_}; }

private:
  void write(std::string const& what) { *log_ += name_ + " " + what + "; "; }

  static inline std::string in_group;

  std::string name_;
  std::string* log_;
  int rank_, size_;
};

struct GathersFloats {
  using Device = zero::HostDevice;
  int rank() const noexcept { return 0; }
  int size() const noexcept { return 2; }
  void abort(std::exception_ptr) noexcept {}
  void enqueue(HostStreamRef, AllGather<float> const&) {}
};

struct Recorded {
  std::string log;
  SeparateCommunicators<Recorder<>, Recorder<>> group{Recorder<>{"g", log}, Recorder<>{"r", log}};
  HostStreamRef stream = HostStreamRef::calling_thread();
  float values[8] = {};
  AllGather<float> gather{.send = values, .receive = values, .count = 1};
  AllReduce<float> sum{.send = values, .receive = values, .count = 1};
};

template <class Gathers, class Reductions>
constexpr bool announces = zero::Performs<SeparateCommunicators<Gathers, Reductions>, Announce>;

static_assert(zero::check_communicator<SeparateCommunicators<ThreadCommunicator, ThreadCommunicator>>());
static_assert(!zero::WatchesLaunches<SeparateCommunicators<ThreadCommunicator, ThreadCommunicator>>);
static_assert(zero::WatchesLaunches<SeparateCommunicators<Recorder<>, ThreadCommunicator>>);
static_assert(!announces<ThreadCommunicator, ThreadCommunicator>);
static_assert(announces<zero::Checked<ThreadCommunicator>, ThreadCommunicator>);
static_assert(announces<ThreadCommunicator, zero::Checked<ThreadCommunicator>>);
// What the one that is asked does not perform is not performed by way of the other.
static_assert(!zero::Performs<SeparateCommunicators<ThreadCommunicator, GathersFloats>, Barrier>);
static_assert(!zero::Performs<SeparateCommunicators<GathersFloats, ThreadCommunicator>, zero::Broadcast<float>>);
static_assert(zero::Performs<SeparateCommunicators<GathersFloats, ThreadCommunicator>, AllGather<float>>);
static_assert(!zero::Groups<SeparateCommunicators<GathersFloats, ThreadCommunicator>>);
static_assert(!zero::Splits<SeparateCommunicators<GathersFloats, ThreadCommunicator>>);

}  // namespace

TEST_CASE("two communicators of threads conform") { zero::test::conformance<SeparateThreads>(zero::test::ranks()); }
TEST_CASE("two communicators of threads conform where one adds in order") {
  zero::test::conformance<OrderedReductions>(zero::test::ranks());
}
TEST_CASE("two communicators of threads conform where calls of both are checked") {
  zero::test::conformance<CheckedAround>(zero::test::ranks());
}

TEST_CASE("what hands out goes to the first communicator, everything else to the second") {
  Recorded r;
  r.group.enqueue(r.stream, r.gather);
  r.group.enqueue(r.stream, zero::Broadcast<float>{});
  r.group.enqueue(r.stream, zero::ReduceScatter<float>{});
  r.group.enqueue(r.stream, r.sum);
  r.group.enqueue(r.stream, AllReduce<std::int64_t, zero::Max>{});
  r.group.enqueue(r.stream, zero::AllToAll<float>{});
  r.group.enqueue(r.stream, Barrier{});
  CHECK(r.log == "g all-gather; g broadcast; r reduce-scatter; r all-reduce; r all-reduce; r all-to-all; r barrier; ");
}

TEST_CASE("an announcement goes to one that compares, once") {
  std::string log;
  HostStreamRef const stream = HostStreamRef::calling_thread();
  SeparateCommunicators both{Recorder<true>{"g", log}, Recorder<true>{"r", log}};
  both.enqueue(stream, Announce{});
  SeparateCommunicators second{Recorder<false>{"g", log}, Recorder<true>{"r", log}};
  second.enqueue(stream, Announce{});
  CHECK(log == "g announcement; r announcement; ");
}

TEST_CASE("reductions inside a group follow at its end, in a group of their own, and what is wrong with them is said in the call") {
  Recorded r;
  r.group.group(r.stream, [&] {
    r.group.enqueue(r.stream, r.sum);
    r.group.enqueue(r.stream, r.gather);
    r.group.group(r.stream, [&] { r.group.enqueue(r.stream, Barrier{}); });
    CHECK_THROWS_AS(r.group.enqueue(r.stream, AllReduce<float>{.send = r.values, .receive = r.values, .count = -1}), zero::UsageError);
  });
  CHECK(r.log == "g (; g all-gather; g (; g ); g ); r (; r all-reduce; r barrier; r ); ");
  r.log.clear();
  r.group.group(r.stream, [&] { r.group.enqueue(r.stream, r.gather); });
  r.group.enqueue(r.stream, r.sum);
  CHECK(r.log == "g (; g all-gather; g ); r all-reduce; ");
}

TEST_CASE("what was called in a group whose body throws is enqueued, as it is by a communicator alone") {
  Recorded r;
  CHECK_THROWS_AS(r.group.group(r.stream,
                                [&] {
                                  r.group.enqueue(r.stream, r.sum);
                                  throw zero::Error("in the body");
                                }),
                  zero::Error);
  r.group.enqueue(r.stream, Barrier{});
  CHECK(r.log == "g (; r (; r all-reduce; r ); r barrier; ");
}

TEST_CASE("launches are watched, and failures told, by both") {
  Recorded r;
  r.group.watch(r.stream, [&] { r.log += "launched; "; });
  r.group.abort(std::make_exception_ptr(zero::Error("cause")));
  CHECK(r.log == "launched; r watched; g watched; g zero: cause; r zero: cause; ");
}

TEST_CASE("a group that is split off has two communicators too") {
  Recorded r;
  auto child = r.group.split(7);
  child.enqueue(r.stream, r.gather);
  child.enqueue(r.stream, r.sum);
  CHECK(r.log == "g7 all-gather; r7 all-reduce; ");
}

TEST_CASE("two communicators in which this rank is not the same are refused") {
  std::string log;
  auto const text_of = [&](int rank, int size) -> std::string {
    try {
      SeparateCommunicators const group{Recorder<>{"g", log, 1, 3}, Recorder<>{"r", log, rank, size}};
    } catch (zero::UsageError const& error) {
      CHECK(std::string(error.what()).find("separate_communicators.cpp") != std::string::npos);
      return error.what();
    }
    return {};
  };
  CHECK(text_of(1, 3).empty());
  CHECK(text_of(2, 3).find("rank 1 of 3 for gathers and rank 2 of 3 for reductions") != std::string::npos);
  CHECK(text_of(1, 2).find("rank 1 of 3 for gathers and rank 1 of 2 for reductions") != std::string::npos);
}

TEST_CASE("a gather passes a reduction that is held up, which it cannot on one communicator") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const separate : {true, false}) {
    CAPTURE(separate);
    zero::test::Gate gate;
    zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
      zero::HostStream gathers({.worker = true});
      zero::HostStream reductions({.worker = true});
      zero::test::OpenAtEnd const open(gate);
      ThreadCommunicator second = comm.split(0, comm.rank());
      SeparateCommunicators group{Borrowed{comm}, Borrowed{separate ? second : comm}};
      std::int64_t sum = 1;
      std::int64_t const own = comm.rank();
      std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
      if (comm.rank() == ranks - 1) HostStreamRef(reductions).enqueue([&gate] { gate.pass(); });
      group.enqueue(reductions, AllReduce<std::int64_t>{.send = &sum, .receive = &sum, .count = 1});
      group.enqueue(gathers, AllGather<std::int64_t>{.send = &own, .receive = all.data(), .count = 1});
      gate.wait_for_arrival();
      if (separate) CHECK(zero::test::comes(gathers.record()));
      else CHECK_FALSE(gathers.record().ready());
      CHECK_FALSE(reductions.record().ready());
      (separate ? comm : second).enqueue(HostStreamRef::calling_thread(), Barrier{});
      gate.open();
      gathers.synchronize();
      reductions.synchronize();
      for (int r = 0; r < ranks; ++r) CHECK(all[static_cast<std::size_t>(r)] == r);
      CHECK(sum == ranks);
    });
  }
}

TEST_CASE("a rank that fails ends what peers wait for on both communicators") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const in_a_task : {false, true}) {
    CAPTURE(in_a_task);
    std::array<std::exception_ptr, 2> ends[8];
    auto const outcomes = zero::test::outcomes_of(
        ranks,
        [&](ThreadCommunicator& comm) {
          ThreadCommunicator second = comm.split(0, comm.rank());
          zero::HostStream gathers({.worker = true});
          zero::HostStream reductions({.worker = true});
          SeparateCommunicators group{Borrowed{comm}, Borrowed{second}};
          std::int64_t sum = 1;
          std::int64_t const own = 0;
          std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
          if (comm.rank() == 0) {
            if (!in_a_task) throw zero::Error("planned");
            HostStreamRef(reductions).enqueue([] { throw zero::Error("planned"); });
          }
          // Streams and groups may have failed when they are called, or fail later.
          auto& mine = ends[comm.rank()];
          auto const keep = [&](std::size_t i, auto const& call) {
            try {
              call();
            } catch (...) {
              mine[i] = std::current_exception();
            }
          };
          keep(1, [&] { group.enqueue(reductions, AllReduce<std::int64_t>{.send = &sum, .receive = &sum, .count = 1}); });
          if (comm.rank() > 0) {
            keep(0, [&] { group.enqueue(gathers, AllGather<std::int64_t>{.send = &own, .receive = all.data(), .count = 1}); });
          }
          keep(0, [&] { gathers.synchronize(); });
          keep(1, [&] { reductions.synchronize(); });
          if (mine[1] != nullptr) std::rethrow_exception(mine[1]);
        },
        {.deadline_ms = 20'000});
    CHECK(what_of(outcomes.run).find("planned") != std::string::npos);
    for (int rank = 1; rank < ranks; ++rank) {
      CAPTURE(rank);
      for (std::exception_ptr const& end : ends[rank]) CHECK(is<zero::PeerError>(end));
    }
  }
}

TEST_CASE("a gather on one rank and a reduction on another: found where Checked is around both, else ended by the deadline") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  auto const diverge = [ranks](auto& group) {
    zero::HostStream stream({.worker = true});
    std::int64_t own = 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
    if (group.rank() == 0) group.enqueue(stream, AllGather<std::int64_t>{.send = &own, .receive = all.data(), .count = 1});
    else group.enqueue(stream, AllReduce<std::int64_t>{.send = &own, .receive = &own, .count = 1});
    stream.synchronize();
  };
  auto const checked = zero::test::outcomes_of(ranks,
                                               [&](ThreadCommunicator& comm) {
                                                 zero::Checked group{SeparateCommunicators{Borrowed{comm}, comm.split(0, comm.rank())}};
                                                 diverge(group);
                                               },
                                               {.deadline_ms = 20'000});
  for (std::exception_ptr const& end : checked.rank) CHECK(is<zero::MismatchError>(end));
  auto const unchecked = zero::test::outcomes_of(ranks,
                                                 [&](ThreadCommunicator& comm) {
                                                   SeparateCommunicators group{Borrowed{comm}, comm.split(0, comm.rank())};
                                                   diverge(group);
                                                 },
                                                 {.deadline_ms = 300});
  CHECK(is<zero::DeadlineError>(unchecked.run));
}
