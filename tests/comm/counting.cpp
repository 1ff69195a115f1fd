// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/counting.hpp>

#include <doctest/doctest.h>

#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/run_ranks.hpp>

#include "comm/conformance.hpp"
#include "support/ranks.hpp"

namespace {

struct CountingThreads {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::ThreadCommunicator& comm) {
      zero::Traffic traffic;
      zero::Counting counting{zero::Borrowed{comm}, traffic};
      body(counting);
      // Whatever ran, what was counted is what was really moved; split groups are counted in, and moved in their own groups.
      CHECK(traffic.received_bytes() >= comm.bytes_copied());
      CHECK(traffic.calls() > 0);
    });
  }
};

static_assert(zero::Performs<zero::Counting<zero::ThreadCommunicator>, zero::AllGather<float>>);
static_assert(!zero::Performs<zero::Counting<zero::ThreadCommunicator>, zero::Announce>);
static_assert(zero::Performs<zero::Counting<zero::Checked<zero::ThreadCommunicator>>, zero::Announce>);

}  // namespace

TEST_CASE("counting threads conform") { zero::test::conformance<CountingThreads>(zero::test::ranks()); }

TEST_CASE("counts by subject what each rank really receives") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& comm) {
    using zero::Subject;
    zero::Traffic traffic;
    zero::Counting counting{zero::Borrowed{comm}, traffic};
    zero::HostStreamRef const here = zero::HostStreamRef::calling_thread();
    std::int64_t const n = comm.size();
    std::vector<float> values(static_cast<std::size_t>(n * 101));
    std::vector<float> part(101);
    auto moved = [&, before = std::int64_t{0}]() mutable {
      std::int64_t const now = comm.bytes_copied();
      std::int64_t const difference = now - before;
      before = now;
      return difference;
    };
    counting.enqueue(
        here, zero::AllGather<float>{.send = part.data(), .receive = values.data(), .count = 101, .label = {Subject::parameters, 3}});
    CHECK(traffic.received_bytes(Subject::parameters) == moved());
    CHECK(traffic.received_bytes(Subject::parameters) == 404 * (n - 1));
    counting.enqueue(
        here, zero::ReduceScatter<float>{.send = values.data(), .receive = part.data(), .count = 101, .label = {Subject::gradients, 3}});
    CHECK(traffic.received_bytes(Subject::gradients) == moved());
    counting.enqueue(here, zero::AllReduce<float>{.send = part.data(), .receive = part.data(), .count = 101, .label = {Subject::control}});
    counting.enqueue(here, zero::AllReduce<float>{.send = part.data(), .receive = part.data(), .count = 1, .label = {Subject::control}});
    CHECK(traffic.received_bytes(Subject::control) == moved());
    counting.enqueue(here, zero::Broadcast<float>{.buffer = part.data(), .count = 7, .label = {Subject::optimizer_states}});
    CHECK(traffic.received_bytes(Subject::optimizer_states) == moved());
    CHECK(traffic.calls(Subject::control) == 2);
    CHECK(traffic.calls() == 5);
    CHECK(traffic.received_bytes() == comm.bytes_copied());
    CHECK(traffic.model_bytes() + traffic.received_bytes(Subject::control) == traffic.received_bytes());
    traffic.reset();
    CHECK(traffic.calls() == 0);
    CHECK(traffic.received_bytes() == 0);
  });
}

TEST_CASE("split groups count into the same place") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& comm) {
    zero::Traffic traffic;
    zero::Counting counting{zero::Borrowed{comm}, traffic};
    auto child = counting.split(comm.rank() / 2);
    std::int64_t value = 1;
    child.enqueue(zero::HostStreamRef::calling_thread(), zero::AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
    CHECK(value == child.size());
    CHECK(traffic.calls() == 1);
    CHECK(traffic.received_bytes() == zero::AllReduce<std::int64_t>{.count = 1}.received_bytes(child.size(), child.rank()));
  });
}

TEST_CASE("a call that is refused is not counted") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& comm) {
    zero::Traffic traffic;
    zero::Counting counting{zero::Borrowed{comm}, traffic};
    CHECK_THROWS_AS(counting.enqueue(zero::HostStreamRef::calling_thread(), zero::Broadcast<float>{.count = -1}), zero::UsageError);
    CHECK(traffic.calls() == 0);
  });
}
