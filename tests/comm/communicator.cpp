// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/communicator.hpp>

#include <doctest/doctest.h>

#include <exception>
#include <string>

#include <zero/comm/checked.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/self.hpp>
#include <zero/comm/threads.hpp>

namespace {

using zero::Borrowed;
using zero::Checked;
using zero::Counting;
using zero::SelfCommunicator;
using zero::ThreadCommunicator;

static_assert(zero::Communicator<SelfCommunicator> && zero::Communicator<ThreadCommunicator>);
static_assert(zero::Communicator<Borrowed<ThreadCommunicator>> && zero::Communicator<Counting<ThreadCommunicator>>);
static_assert(zero::Communicator<Counting<Checked<Borrowed<ThreadCommunicator>>>> &&
              zero::Communicator<Checked<Counting<SelfCommunicator>>>);
static_assert(!zero::Communicator<int> && !zero::RankGroup<zero::HostStream>);
static_assert(!std::is_copy_constructible_v<ThreadCommunicator>);

// A group that gathers and nothing else: adaptors perform what the inner one performs, no more.
struct GathersFloats {
  using Device = zero::HostDevice;
  int rank() const noexcept { return 0; }
  int size() const noexcept { return 2; }
  void abort(std::exception_ptr) noexcept {}
  void enqueue(zero::HostStreamRef, zero::AllGather<float> const&) { ++calls; }
  int calls = 0;
};
static_assert(zero::RankGroup<GathersFloats> && zero::GathersAll<GathersFloats, float>);
static_assert(!zero::GathersAll<GathersFloats, double> && !zero::ReduceScatters<GathersFloats, float> &&
              !zero::Synchronizes<GathersFloats>);
static_assert(!zero::Groups<GathersFloats> && !zero::Splits<GathersFloats> && !zero::Communicator<GathersFloats>);
static_assert(zero::GathersAll<Counting<GathersFloats>, float> && !zero::ReduceScatters<Counting<GathersFloats>, float>);
static_assert(!zero::Groups<Counting<GathersFloats>> && !zero::Splits<Counting<GathersFloats>> && !zero::Splits<Borrowed<GathersFloats>>);

// rank() that may throw is not enough.
struct ThrowingRank : GathersFloats {
  int rank() const { return 0; }
};
static_assert(!zero::RankGroup<ThrowingRank>);

}  // namespace

TEST_CASE("a borrowed communicator forwards to the one it borrows") {
  GathersFloats inner;
  Borrowed borrowed{inner};
  float value = 0;
  borrowed.enqueue(zero::HostStreamRef::calling_thread(), zero::AllGather<float>{.send = &value, .receive = &value});
  CHECK(inner.calls == 1);
  CHECK(borrowed.size() == 2);
}

TEST_CASE("adaptors pass on the file and line of the call") {
  SelfCommunicator comm;
  zero::Traffic traffic;
  Counting adapted{Checked{Borrowed{comm}}, traffic};
  auto const is_named = [](zero::UsageError const& error, int line) {
    return error.where().line == line && std::string(error.where().file).find("communicator.cpp") != std::string::npos;
  };
  int named = 0;
  int line = 0;
  try {
    line = __LINE__ + 1;
    adapted.enqueue(zero::HostStreamRef::calling_thread(), zero::Broadcast<float>{.root = 3});
  } catch (zero::UsageError const& error) {
    named += is_named(error, line);
  }
  try {
    line = __LINE__ + 1;
    static_cast<void>(adapted.split(-1));
  } catch (zero::UsageError const& error) {
    named += is_named(error, line);
  }
  CHECK(named == 2);
}
