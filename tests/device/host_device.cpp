// SPDX-License-Identifier: Apache-2.0
/// @file
/// The host as a device: what every device does, on a worker, on the calling thread, and on the calling thread with options; and what only the
/// host does.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/memory.hpp>

#include "device/conformance.hpp"
#include "support/gate.hpp"

namespace {

using zero::HostDevice;
using zero::HostStream;
using zero::HostStreamRef;

/// Two streams with workers, delayed.
struct Workers {
  using Device = HostDevice;
  static constexpr char const* name = "workers with delays";

  explicit Workers(std::uint64_t seed)
      : streams_{HostStream{{.delay_seed = seed, .max_delay_us = 300}}, HostStream{{.delay_seed = seed + 100, .max_delay_us = 20}}} {}
  HostStreamRef stream(std::size_t i) const { return streams_[i]; }
  zero::MemoryResource& memory() const { return zero::host_memory(); }
  void finish() const {
    for (HostStream const& stream : streams_) stream.synchronize();
  }

private:
  std::array<HostStream, 2> streams_;
};

/// One stream whose queue has one slot.
struct NarrowWorker {
  using Device = HostDevice;
  static constexpr char const* name = "a worker with a queue of one slot and delays";

  explicit NarrowWorker(std::uint64_t seed) : stream_{{.capacity = 1, .delay_seed = seed, .max_delay_us = 50}} {}
  HostStreamRef stream(std::size_t) const { return stream_; }
  zero::MemoryResource& memory() const { return zero::host_memory(); }
  void finish() const { stream_.synchronize(); }

private:
  HostStream stream_;
};

struct DelayedCallingThread {
  using Device = HostDevice;
  static constexpr char const* name = "the calling thread with options";

  explicit DelayedCallingThread(std::uint64_t seed) : stream_{{.worker = false, .delay_seed = seed, .max_delay_us = 50}} {}
  HostStreamRef stream(std::size_t) const { return stream_; }
  zero::MemoryResource& memory() const { return zero::host_memory(); }
  void finish() const {}

private:
  HostStream stream_;
};

struct CallingThread {
  using Device = HostDevice;
  static constexpr char const* name = "the calling thread";

  explicit CallingThread(std::uint64_t) {}
  HostStreamRef stream(std::size_t) const { return HostStreamRef::calling_thread(); }
  zero::MemoryResource& memory() const { return zero::host_memory(); }
  void finish() const {}
};

/// Runs a check on every kind of stream.
template <class F>
void on_every_kind_of_stream(F f) {
  Workers const workers(7);
  f(workers.stream(0));
  NarrowWorker const narrow(7);
  f(narrow.stream(0));
  DelayedCallingThread const delayed(3);
  f(delayed.stream(0));
  f(HostStreamRef::calling_thread());
}

template <std::size_t Bytes>
struct Sized {
  std::array<unsigned char, Bytes> content;
  void operator()(std::int64_t) const {}
};
struct NotTrivial {
  std::shared_ptr<int> content;
  void operator()(std::int64_t) const {}
};

static_assert(zero::detail::HostFunctor<zero::test::SmallUpdate>);
static_assert(zero::detail::HostFunctor<Sized<248>>);
static_assert(!zero::detail::HostFunctor<Sized<249>>);
static_assert(!zero::detail::HostFunctor<NotTrivial>);

}  // namespace

ZERO_TEST_DEVICE(Workers, NarrowWorker, DelayedCallingThread, CallingThread);

TEST_CASE("accumulate_runs_in_order_and_may_share_integers") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    std::uint64_t digest = 0;
    std::uint64_t sum = 0;
    HostDevice::accumulate(stream, 1000, [&digest, &sum](std::int64_t i) {
      digest = digest * 31 + static_cast<std::uint64_t>(i);
      sum += static_cast<std::uint64_t>(i);
    });
    HostDevice::synchronize(stream);
    std::uint64_t expected = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) expected = expected * 31 + i;
    CHECK(digest == expected);
    CHECK(sum == 499500);
  });
}

namespace {

/// Adds up how it was called: one call for each range, or for each index.
struct Ranged {
  static constexpr bool does_ranges = true;

  std::int64_t* calls;
  std::int64_t* sum;
  void operator()(std::int64_t i) const { (*this)(i, i + 1); }
  void operator()(std::int64_t begin, std::int64_t end) const {
    ++*calls;
    for (std::int64_t i = begin; i < end; ++i) *sum += i;
  }
};
static_assert(zero::RangeFunctor<Ranged>);

}  // namespace

TEST_CASE("a_functor_that_does_ranges_is_called_once") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    std::int64_t calls = 0;
    std::int64_t sum = 0;
    HostDevice::for_each(stream, 1000, Ranged{&calls, &sum});
    HostDevice::accumulate(stream, 1000, Ranged{&calls, &sum});
    HostDevice::for_each(stream, 0, Ranged{&calls, &sum});
    HostDevice::synchronize(stream);
    CHECK(calls == 2);
    CHECK(sum == 2 * 499500);
  });
}

TEST_CASE("functors_are_copied_when_enqueued") {
  zero::test::Gate gate;
  HostStream stream;
  zero::test::OpenAtEnd const end{gate};
  std::array<int, 4> out{};
  stream.enqueue([&gate] { gate.pass(); });
  {
    struct {
      int* to;
      int value;
      void operator()(std::int64_t i) const { to[i] = value; }
    } f{out.data(), 5};
    HostDevice::for_each(stream, 4, f);
    f.value = 6;
  }
  gate.open();
  stream.synchronize();
  CHECK(out == std::array<int, 4>{5, 5, 5, 5});
}

TEST_CASE("a_functor_that_throws_fails_the_stream") {
  HostStream const stream;
  int ran = 0;
  HostDevice::run(stream, [] { throw zero::Error("in a functor"); });
  try {
    HostDevice::run(stream, [&ran] { ++ran; });
  } catch (zero::Error const&) {
  }
  CHECK_THROWS_WITH(HostDevice::synchronize(stream), "zero: in a functor");
  CHECK(ran == 0);
}

TEST_CASE("field case 48: memory goes back after the event of its last use") {
  zero::PoisoningResource poisoning{zero::host_memory()};
  zero::test::Gate gate;
  std::vector<float> out(64, 0.0f);
  HostStream const stream;
  zero::test::OpenAtEnd const end{gate};
  zero::Buffer<float> buffer{poisoning, 64, zero::Purpose::gathered};
  HostDevice::fill(stream, buffer.data(), 64, 2.0f);
  stream.enqueue([&gate] { gate.pass(); });
  HostDevice::copy(stream, out.data(), buffer.data(), buffer.bytes());
  zero::HostEvent const last_use = HostDevice::record(stream);
  gate.wait_for_arrival();
  CHECK_FALSE(last_use.ready());
  gate.open();
  HostDevice::synchronize(last_use);
  buffer.reset();
  CHECK(out == std::vector<float>(64, 2.0f));
}
