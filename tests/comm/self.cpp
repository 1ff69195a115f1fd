// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/self.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/conformance.hpp"

namespace {

struct Self {
  template <class Body>
  static void run(int, Body const& body) {
    zero::SelfCommunicator comm;
    body(comm);
  }
};

}  // namespace

TEST_CASE("one rank conforms") { zero::test::conformance<Self>(1); }

TEST_CASE("one rank in place copies nothing and still applies the factor") {
  zero::SelfCommunicator comm;
  zero::HostStreamRef const here = zero::HostStreamRef::calling_thread();
  std::vector<zero::bf16> values(5, zero::bf16(3.0f));
  comm.enqueue(here, zero::AllReduce<zero::bf16>{.send = values.data(), .receive = values.data(), .count = 5, .factor = 0.5f});
  CHECK(float(values[4]) == 1.5f);
  comm.enqueue(here, zero::ReduceScatter<zero::bf16>{.send = values.data(), .receive = values.data(), .count = 5});
  CHECK(float(values[4]) == 1.5f);
}

TEST_CASE("an aborted group of one rank throws the first cause from every later call") {
  zero::SelfCommunicator comm;
  comm.abort(std::make_exception_ptr(std::runtime_error("first")));
  comm.abort(std::make_exception_ptr(std::runtime_error("second")));
  CHECK_THROWS_WITH_AS(comm.enqueue(zero::HostStreamRef::calling_thread(), zero::Barrier{}), "first", std::runtime_error);
  zero::SelfCommunicator without_cause;
  without_cause.abort(nullptr);
  CHECK_THROWS_AS(without_cause.enqueue(zero::HostStreamRef::calling_thread(), zero::Barrier{}), zero::CommunicationError);
}

TEST_CASE("any thread may abort a group of one rank, and a copy keeps the cause") {
  zero::SelfCommunicator comm;
  zero::HostStreamRef const here = zero::HostStreamRef::calling_thread();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&comm] { comm.abort(std::make_exception_ptr(std::runtime_error("from outside"))); });
  }
  std::string text;
  while (text.empty()) {  // Ends when an abort is seen; the thread sanitizer looks on.
    try {
      comm.enqueue(here, zero::Barrier{});
    } catch (std::runtime_error const& error) {
      text = error.what();
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(text == "from outside");
  zero::SelfCommunicator const copy = comm;
  zero::SelfCommunicator assigned;
  assigned = copy;
  zero::SelfCommunicator moved = std::move(assigned);
  CHECK_THROWS_WITH_AS(moved.enqueue(here, zero::Barrier{}), "from outside", std::runtime_error);
  CHECK_THROWS_WITH_AS(moved.split(0).enqueue(here, zero::Barrier{}), "from outside", std::runtime_error);
  moved = zero::SelfCommunicator{};
  moved.enqueue(here, zero::Barrier{});
}
