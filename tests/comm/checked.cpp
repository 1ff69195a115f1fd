// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/checked.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>

#include "comm/conformance.hpp"
#include "support/ranks.hpp"

namespace {

using zero::Announce;
using zero::Subject;

struct CheckedThreads {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::ThreadCommunicator& comm) {
      zero::Checked checked{zero::Borrowed{comm}};
      body(checked);
    });
  }
};

static_assert(zero::Performs<zero::Checked<zero::ThreadCommunicator>, Announce>);

/// Runs a body that must fail on every rank, and returns the texts of the mismatches.
template <class Body>
std::vector<std::string> mismatches(int ranks, Body body) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  CHECK_THROWS_AS(zero::run_ranks(ranks,
                                  [&](zero::ThreadCommunicator& comm) {
                                    try {
                                      zero::Checked checked{zero::Borrowed{comm}};
                                      body(checked);
                                    } catch (zero::MismatchError const& error) {
                                      texts[static_cast<std::size_t>(comm.rank())] = error.what();
                                      throw;
                                    }
                                  },
                                  {.deadline_ms = 20'000}),
                  zero::MismatchError);
  return texts;
}

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("checked threads conform") { zero::test::conformance<CheckedThreads>(zero::test::ranks()); }

TEST_CASE("field cases 57, 58, 62: announcements that differ are found on every rank, with both in words") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const worker : {false, true}) {
    CAPTURE(worker);
    std::vector<std::string> const texts = mismatches(ranks, [&](auto& checked) {
      zero::HostStream stream({.worker = worker});
      checked.enqueue(stream, Announce{{Subject::parameters, 1}, "gather"});
      checked.enqueue(stream, Announce{{Subject::parameters, checked.rank() == checked.size() - 1 ? 5 : 2}, "gather"});
      stream.synchronize();
    });
    for (int rank = 0; rank < ranks; ++rank) {
      std::string const& text = texts[static_cast<std::size_t>(rank)];
      CAPTURE(text);
      CHECK(contains(text, "announcement 'gather' for parameters 5"));
      CHECK(contains(text, "announcement 'gather' for parameters 2"));
      CHECK(contains(text, "rank " + std::to_string(ranks - 1) + " calls"));
      CHECK(contains(text, "rank " + std::to_string(rank == ranks - 1 ? 0 : rank) + " calls"));
    }
  }
}

TEST_CASE("field case 59: an announcement on one rank against a collective on another") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const worker : {false, true}) {
    std::vector<std::string> const texts = mismatches(ranks, [&](auto& checked) {
      zero::HostStream stream({.worker = worker});
      float value = 1;
      if (checked.rank() == 0) {
        checked.enqueue(stream, Announce{{Subject::gradients, 0}, "no gradient"});
      } else {
        checked.enqueue(stream, zero::AllReduce<float>{.send = &value, .receive = &value, .count = 1, .label = {Subject::gradients, 0}});
      }
      stream.synchronize();
    });
    for (std::string const& text : texts) {
      CAPTURE(text);
      CHECK(contains(text, "announcement 'no gradient' for gradients 0"));
      CHECK(contains(text, "all-reduce (sum) of 1 fp32 for gradients 0"));
    }
  }
}

TEST_CASE("all-to-alls with and without own parts do not belong together") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  std::vector<std::string> const texts = mismatches(ranks, [&](auto& checked) {
    std::vector<float> const send(static_cast<std::size_t>(ranks));
    std::vector<float> receive(send.size());
    checked.enqueue(
        zero::HostStreamRef::calling_thread(),
        zero::AllToAll<float>{.send = send.data(), .receive = receive.data(), .count = 1, .own_part = checked.rank() != ranks - 1});
  });
  for (std::string const& text : texts) {
    CAPTURE(text);
    CHECK(contains(text, "all-to-all of 1 fp32 per pair for"));
    CHECK(contains(text, "all-to-all of 1 fp32 per pair of different ranks for"));
  }
}

TEST_CASE("the checks cost 72 bytes a peer, labelled control, and nothing at one rank") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& comm) {
    zero::Traffic traffic;
    zero::Checked checked{zero::Counting{zero::Borrowed{comm}, traffic}};
    zero::HostStreamRef const here = zero::HostStreamRef::calling_thread();
    std::array<float, 3> values{1, 2, 3};
    checked.enqueue(here,
                    zero::AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 3, .label = {Subject::gradients}});
    checked.enqueue(here, Announce{{}, "here"});
    CHECK(traffic.received_bytes(Subject::control) == 2 * 72 * (comm.size() - 1));
    CHECK(traffic.calls(Subject::control) == (comm.size() > 1 ? 2 : 0));
    CHECK(traffic.calls(Subject::gradients) == 1);
    CHECK(values[2] == 3.0f * static_cast<float>(comm.size()));
  });
}

TEST_CASE("the host does not wait for the comparison") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& comm) {
    zero::Checked checked{zero::Borrowed{comm}};
    std::atomic<bool> released = false;
    zero::HostStream stream;
    stream.enqueue([&released] { released.wait(false); });
    for (int i = 0; i < 20; ++i) checked.enqueue(stream, Announce{{Subject::control, i}, "queued"});
    CHECK_FALSE(stream.record().ready());
    released.store(true);
    released.notify_one();
    stream.synchronize();
  });
}
