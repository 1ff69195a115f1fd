// SPDX-License-Identifier: Apache-2.0
/// @file
/// Waits that a test takes out by their id.

#include <doctest/doctest.h>

#include <atomic>

#include <zero/device/host_device.hpp>
#include <zero/device/wait_id.hpp>

#include "support/gate.hpp"

namespace {

using zero::HostDevice;
using zero::HostStream;
using zero::WaitId;

static_assert(sizeof(WaitId) == 1);
static_assert(WaitId{} == WaitId::none);

constexpr WaitId other_id{200};  // ids are an open set: the parts of the library add theirs

/// One stream produces behind a gate, another waits for it and looks.
struct Pair {
  explicit Pair(zero::HostStreamOptions options) : consumer(options) {
    producer.enqueue([this] {
      gate.pass();
      produced = true;
    });
  }
  ~Pair() { gate.open(); }

  void consume(WaitId id) {
    HostDevice::wait(consumer, HostDevice::record(producer), id);
    HostDevice::run(consumer, [this] { saw = produced.load(); });
  }

  std::atomic<bool> produced = false;
  std::atomic<bool> saw = false;
  zero::test::Gate gate;
  HostStream producer;
  HostStream consumer;
};

}  // namespace

TEST_CASE("a_wait_with_another_id_holds") {
  for (WaitId const id : {WaitId::none, other_id}) {
    Pair pair{{.skip_wait = WaitId::user}};
    pair.consume(id);
    pair.gate.wait_for_arrival();
    CHECK_FALSE(pair.consumer.record().ready());
    pair.gate.open();
    pair.consumer.synchronize();
    CHECK(pair.saw);
  }
}

TEST_CASE("no_wait_is_skipped_by_default") {
  for (WaitId const id : {WaitId::none, WaitId::user, other_id}) {
    Pair pair{{}};
    pair.consume(id);
    pair.gate.wait_for_arrival();
    CHECK_FALSE(pair.consumer.record().ready());
    pair.gate.open();
    pair.consumer.synchronize();
    CHECK(pair.saw);
  }
}

TEST_CASE("a_skipped_wait_lets_the_stream_run_ahead") {
  Pair pair{{.skip_wait = other_id}};
  pair.consume(other_id);
  pair.consumer.synchronize();  // the gate is closed: returns only because nothing is waited for
  CHECK_FALSE(pair.saw);
}

TEST_CASE("a_stream_without_a_worker_skips_waits_too") {
  Pair pair{{.worker = false, .skip_wait = WaitId::user}};
  pair.consume(WaitId::user);
  CHECK_FALSE(pair.saw);
  pair.gate.open();
  pair.consume(other_id);
  CHECK(pair.saw);
}

TEST_CASE("only_the_waiting_stream_s_option_counts") {
  HostStream skipping{{.skip_wait = WaitId::user}};
  HostStream plain;
  zero::test::Gate gate;
  zero::test::OpenAtEnd const end{gate};
  std::atomic<bool> produced = false;
  std::atomic<bool> saw = false;
  skipping.enqueue([&] {
    gate.pass();
    produced = true;
  });
  plain.wait(skipping.record(), WaitId::user);
  plain.enqueue([&] { saw = produced.load(); });
  gate.wait_for_arrival();
  CHECK_FALSE(plain.record().ready());
  gate.open();
  plain.synchronize();
  CHECK(saw);
}
