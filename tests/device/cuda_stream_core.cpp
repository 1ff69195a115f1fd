// SPDX-License-Identifier: Apache-2.0
/// @file
/// The ring of events behind a CUDA stream and the failure that it keeps, by tickets, over the stand-in runtime.

#include <zero/device/cuda_stream_core.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>

#include "support/gate.hpp"
#include "support/standin/standin_cuda.hpp"

namespace {

using zero::detail::CudaStreamCore;

struct End {
  void operator()(CudaStreamCore* core) const noexcept {
    core->end();
    core->remove_reference();
  }
};
using Owner = std::unique_ptr<CudaStreamCore, End>;

Owner make(int events) { return Owner(CudaStreamCore::make(nullptr, 0, 0, events, {})); }

/// Holds a stream back until the gate is open.
void hold(CudaStreamCore& core, zero::test::Gate& gate) {
  REQUIRE(zero::standin::launch(core.native(), [&gate] { gate.pass(); }) == cudaSuccess);
}

}  // namespace

TEST_CASE("tickets count up, and are complete when their point is") {
  zero::standin::reset();
  Owner const core = make(4);
  zero::test::Gate gate;
  zero::test::OpenAtEnd const open(gate);
  std::uint64_t const first = core->record();
  hold(*core, gate);
  std::uint64_t const second = core->record();
  CHECK(second == first + 1);
  core->wait_until(first, {});
  CHECK(core->reached(first));
  CHECK(core->known_complete(first));
  CHECK_FALSE(core->reached(second));
  CHECK_FALSE(core->known_complete(second));
  gate.open();
  core->wait_until_idle({});
  CHECK(core->known_complete(second));
}

TEST_CASE("a ticket whose place in the ring was used again is complete, or stands for the later point") {
  zero::standin::reset();
  Owner const core = make(2);
  std::uint64_t const early = core->record();
  REQUIRE(cudaStreamSynchronize(core->native()) == cudaSuccess);  // Behind the core's back.
  CHECK_FALSE(core->known_complete(early));
  zero::test::Gate gate;
  zero::test::OpenAtEnd const open(gate);
  hold(*core, gate);
  std::uint64_t const held = core->record();
  for (int i = 0; i < 5; ++i) static_cast<void>(core->record());
  CHECK(core->known_complete(early));
  CHECK_FALSE(core->reached(held));
  gate.open();
  core->wait_until(held, {});
  CHECK(core->reached(held));
}

TEST_CASE("a failure is of the tickets that were not complete, and reaches whoever waits for one of them") {
  zero::standin::reset();
  Owner const core = make(4);
  Owner const waits = make(4);
  Owner const waited_before = make(4);
  std::uint64_t const good = core->record();
  core->wait_until(good, {});
  zero::test::Gate gate;
  zero::test::OpenAtEnd const open(gate);
  hold(*core, gate);
  std::uint64_t const lost = core->record();
  core->let_wait(*waited_before, good, {});
  core->let_wait(*waits, lost, {});
  auto const cause = std::make_exception_ptr(std::runtime_error("cause"));
  core->fail(cause);
  core->fail(std::make_exception_ptr(std::runtime_error("later")));
  CHECK(core->failure() == cause);
  CHECK(core->failure_at(good) == nullptr);
  CHECK(core->failure_at(lost) == cause);
  CHECK(waits->failure() == cause);
  CHECK(waited_before->failure() == nullptr);
  CHECK_THROWS_WITH_AS(core->throw_if_failed(), "cause", std::runtime_error);
  // What is marked afterwards carries it too.
  std::uint64_t const after = core->record();
  CHECK(core->failure_at(after) == cause);
  core->let_wait(*waited_before, after, {});
  CHECK(waited_before->failure() == cause);
  gate.open();
  CHECK(cudaStreamSynchronize(core->native()) == cudaSuccess);  // The gate must not end before who stands at it.
}

TEST_CASE("a core lives as long as somebody refers to it, and gives back what CUDA holds when its owner ends") {
  zero::standin::reset();
  auto const before = zero::standin::live();
  CudaStreamCore* core = CudaStreamCore::make(nullptr, 0, 0, 3, {});
  CHECK(zero::standin::live().streams == before.streams + 1);
  CHECK(zero::standin::live().events == before.events + 3);
  core->add_reference();
  std::uint64_t const ticket = core->record();
  core->end();
  core->remove_reference();
  CHECK(zero::standin::live() == before);
  CHECK(core->reached(ticket));
  core->remove_reference();
}
