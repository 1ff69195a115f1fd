// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/self.hpp>

#include <doctest/doctest.h>

#include <stdexcept>

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
