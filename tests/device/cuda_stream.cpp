// SPDX-License-Identifier: Apache-2.0
/// @file
/// CUDA streams over the stand-in runtime: order, the ring of events, and how failures travel.

#include <doctest/doctest.h>

#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/device/cuda_stream.hpp>

#include "support/gate.hpp"
#include "support/standin/standin_cuda.hpp"

namespace {

using zero::CudaEvent;
using zero::CudaStream;
using zero::CudaStreamOptions;
using zero::CudaStreamRef;
using zero::standin::Live;

static_assert(std::is_trivially_copyable_v<CudaStreamRef> && std::is_trivially_copyable_v<CudaEvent>);
static_assert(!std::is_constructible_v<CudaStream, int> && !std::is_constructible_v<CudaStream, std::nullptr_t>);
static_assert(!std::is_constructible_v<CudaStreamRef, CudaStream>, "a view of a temporary");
static_assert(!std::is_copy_constructible_v<CudaStream> && std::is_nothrow_move_constructible_v<CudaStream>);

/// Runs a callable on a stream, as a kernel that the test controls.
template <class F>
void run_on(CudaStreamRef stream, F& f) {
  stream.enqueue("cudaLaunchHostFunc", zero::SourceLocation::current(), [&] {
    return cudaLaunchHostFunc(
        stream.native(), [](void* data) { (*static_cast<F*>(data))(); }, &f);
  });
}

/// Opens the gate and waits for a stream at the end of the scope: what is queued uses the test's objects.
class QuietAtEnd {
public:
  QuietAtEnd(CudaStreamRef stream, zero::test::Gate& gate) noexcept : stream_(stream), gate_(gate) {}
  QuietAtEnd(QuietAtEnd const&) = delete;
  QuietAtEnd& operator=(QuietAtEnd const&) = delete;
  ~QuietAtEnd() {
    gate_.open();
    cudaStreamSynchronize(stream_.native());
  }

private:
  CudaStreamRef stream_;
  zero::test::Gate& gate_;
};

std::exception_ptr error(std::string const& text) { return std::make_exception_ptr(zero::Error(text)); }

}  // namespace

TEST_CASE("a_stream_gives_back_what_it_made") {
  zero::standin::reset();
  {
    CudaStream stream{{.device = 1, .events = 5}};
    CHECK(stream.device() == 1);
    CHECK(zero::standin::live() == Live{.streams = 1, .events = 5});
    CudaStreamRef const view = stream;
    CudaStream const moved = std::move(stream);
    CHECK(view == moved);
    CHECK(zero::standin::live() == Live{.streams = 1, .events = 5});
  }
  CHECK(zero::standin::live() == Live{});
  int device = -1;
  cudaGetDevice(&device);
  CHECK(device == 0);
}

TEST_CASE("an_adopted_stream_stays_the_callers") {
  zero::standin::reset();
  cudaSetDevice(1);
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  cudaSetDevice(0);
  {
    CudaStream const stream = CudaStream::adopt(native);
    CHECK(stream.native() == native);
    CHECK(stream.device() == 1);
    CudaStream const again = CudaStream::adopt(native);
    CHECK(stream == again);
    CudaStream const other;
    CHECK_FALSE(stream == other);
    stream.record().synchronize();
  }
  CHECK(zero::standin::live() == Live{.streams = 1});
  cudaStreamDestroy(native);
  CHECK_THROWS_AS(static_cast<void>(CudaStream::adopt(nullptr)), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(CudaStream::adopt(cudaStreamLegacy)), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(CudaStream::adopt(cudaStreamPerThread)), zero::UsageError);
}

TEST_CASE("without_driver_or_device_construction_says_so") {
  zero::standin::reset({.driver_version = 0});
  CHECK_THROWS_WITH_AS(CudaStream(), doctest::Contains("there is no CUDA driver"), zero::DeviceError);
  zero::standin::reset({.devices = 0});
  CHECK_THROWS_WITH_AS(CudaStream(), doctest::Contains("cudaErrorNoDevice"), zero::DeviceError);
  zero::standin::reset({.devices = 1});
  CHECK_THROWS_WITH_AS(CudaStream({.device = 1}), doctest::Contains("there is no CUDA device 1"), zero::UsageError);
  CHECK_THROWS_AS(CudaStream({.events = 0}), zero::UsageError);
  CHECK(zero::standin::live() == Live{});
}

TEST_CASE("an_event_stands_for_its_own_point") {
  zero::standin::reset();
  zero::test::Gate gate;
  auto wait = [&gate] { gate.pass(); };
  CudaStream const stream;
  QuietAtEnd const end{stream, gate};
  CudaEvent const before = stream.record();
  run_on(stream, wait);
  CudaEvent const after = stream.record();
  before.synchronize();
  CHECK(before.ready());
  CHECK_FALSE(after.ready());
  gate.open();
  after.synchronize();
  CHECK(after.ready());
  CHECK(CudaEvent().ready());
  CudaEvent().synchronize();
}

TEST_CASE("an_event_that_was_complete_when_its_place_was_needed_stays_exact") {
  zero::standin::reset();
  zero::test::Gate gate;
  auto wait = [&gate] { gate.pass(); };
  CudaStream const stream{{.events = 2}};
  QuietAtEnd const end{stream, gate};
  CudaEvent const first = stream.record();
  CudaEvent const second = stream.record();
  while (!second.ready()) {
  }
  static_cast<void>(stream.record());
  run_on(stream, wait);
  CudaEvent const late = stream.record();
  first.synchronize();  // its place is taken by a point that is complete, the second's by one that is not
  second.synchronize();
  CHECK_FALSE(late.ready());
}

TEST_CASE("an_event_older_than_the_ring_waits_too_long_rather_than_too_short") {
  zero::standin::reset();
  zero::test::Gate gate;
  auto wait = [&gate] { gate.pass(); };
  int value = 0;
  auto write = [&value] { value = 7; };
  CudaStream const stream{{.events = 2}};
  QuietAtEnd const end{stream, gate};
  run_on(stream, wait);
  run_on(stream, write);
  CudaEvent const old = stream.record();
  for (int i = 0; i < 5; ++i) static_cast<void>(stream.record());
  CHECK_FALSE(old.ready());
  gate.open();
  old.synchronize();
  CHECK(value == 7);
}

TEST_CASE("a_stream_waits_for_anothers_event") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 300});
    CudaStream const a;
    CudaStream const b{{.device = 1}};
    int value = 0;
    int seen = 0;
    auto write = [&value] { value = 5; };
    auto read = [&] { seen = value; };
    run_on(a, write);
    b.wait(a.record());
    run_on(b, read);
    b.synchronize();
    CHECK(seen == 5);
  }
}

TEST_CASE("events_of_the_callers_order_streams_too") {
  zero::standin::reset();
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  {
    CudaStream const first;
    CudaStream const second;
    zero::test::Gate gate;
    QuietAtEnd const quiet(first, gate);
    bool done = false;
    bool seen = false;
    auto work = [&] {
      gate.pass();
      done = true;
    };
    auto look = [&] { seen = done; };
    run_on(first, work);
    first.record(event);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    second.wait(event);
    run_on(second, look);
    gate.open();
    second.synchronize();
    CHECK(seen);
    second.fail(error("first"));
    CHECK_THROWS_WITH_AS(second.record(event), "zero: first", zero::Error);
    CHECK_THROWS_WITH_AS(second.wait(event), "zero: first", zero::Error);
  }
  CHECK(cudaEventDestroy(event) == cudaSuccess);  // Still the caller's.
}

TEST_CASE("a_failed_stream_refuses_work_with_the_first_cause") {
  zero::standin::reset();
  CudaStream const stream;
  CudaEvent const before = stream.record();
  stream.synchronize();
  CHECK(stream.failure() == nullptr);
  stream.fail(error("first"));
  stream.fail(error("second"));
  CHECK(stream.failure() != nullptr);
  int ran = 0;
  auto count = [&ran] { ++ran; };
  CHECK_THROWS_WITH(run_on(stream, count), "zero: first");
  CHECK_THROWS_WITH(stream.wait(CudaEvent()), "zero: first");
  CHECK_THROWS_WITH(stream.synchronize(), "zero: first");
  CHECK_THROWS_WITH(stream.record().synchronize(), "zero: first");
  before.synchronize();  // a success
  CHECK(ran == 0);
  CudaStream const nameless;
  nameless.fail(nullptr);
  CHECK_THROWS_AS(nameless.synchronize(), zero::Error);
}

TEST_CASE("events_carry_a_failure_to_the_streams_that_wait_afterwards") {
  zero::standin::reset();
  CudaStream const a;
  CudaStream const b;
  CudaStream const c;
  CudaEvent const good = a.record();
  a.synchronize();
  a.fail(error("cause"));
  b.wait(good);
  b.synchronize();
  b.wait(a.record());
  CHECK_THROWS_WITH(b.synchronize(), "zero: cause");
  c.wait(b.record());
  CHECK_THROWS_WITH(c.synchronize(), "zero: cause");
}

TEST_CASE("a_failure_reaches_the_streams_that_wait_for_what_is_not_complete") {
  zero::standin::reset();
  zero::test::Gate gate;
  auto wait = [&gate] { gate.pass(); };
  CudaStream const a;
  CudaStream const b;
  CudaStream const c;
  CudaStream const other;
  QuietAtEnd const end{a, gate};
  CudaEvent const good = a.record();
  good.synchronize();
  other.wait(good);
  run_on(a, wait);
  CudaEvent const pending = a.record();
  b.wait(pending);
  CudaEvent const of_b = b.record();
  c.wait(of_b);
  a.wait(c.record());  // in a circle
  a.fail(error("cause"));
  gate.open();
  CHECK_THROWS_WITH(c.synchronize(), "zero: cause");
  CHECK_THROWS_WITH(of_b.synchronize(), "zero: cause");
  CHECK_THROWS_WITH(pending.synchronize(), "zero: cause");
  CHECK_THROWS_WITH(b.throw_if_failed(), "zero: cause");
  other.synchronize();
  good.synchronize();
}

TEST_CASE("synchronising_a_failed_stream_waits_for_what_is_queued") {
  zero::standin::reset({.delay_seed = 5, .max_delay_us = 2000});
  CudaStream const stream;
  int value = 0;
  auto write = [&value] { ++value; };
  for (int i = 0; i < 20; ++i) run_on(stream, write);
  stream.fail(error("cause"));
  CHECK_THROWS_WITH(stream.synchronize(), "zero: cause");
  CHECK(value == 20);
}

TEST_CASE("an_event_may_name_a_stream_that_waited_and_ended") {
  zero::standin::reset();
  CudaStream const a;
  zero::test::Gate gate;
  auto wait = [&gate] { gate.pass(); };
  QuietAtEnd const end{a, gate};
  run_on(a, wait);
  for (int i = 0; i < 20; ++i) {
    CudaStream const b;
    b.wait(a.record());
  }
  a.fail(error("cause"));
  gate.open();
  CHECK_THROWS_WITH(a.synchronize(), "zero: cause");
}
