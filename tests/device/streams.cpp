// SPDX-License-Identifier: Apache-2.0
/// @file
/// The streams of a training loop.

#include <doctest/doctest.h>

#include <type_traits>

#include <zero/device/host_device.hpp>
#include <zero/device/streams.hpp>

using zero::HostDevice;
using zero::HostStream;
using zero::HostStreamRef;
using Streams = zero::Streams<HostDevice>;

static_assert(std::is_trivially_copyable_v<Streams>);

TEST_CASE("two_streams_overlap_and_the_same_one_twice_does_not") {
  HostStream a;
  HostStream b{{.worker = false}};
  CHECK(Streams{a, b}.overlap());
  CHECK_FALSE(Streams{a, a}.overlap());
  CHECK_FALSE(Streams{b, b}.overlap());
  CHECK(Streams{HostStreamRef::calling_thread(), a}.overlap());
  CHECK_FALSE(Streams{HostStreamRef::calling_thread(), HostStreamRef::calling_thread()}.overlap());
}

TEST_CASE("reductions_are_with_the_gathers_unless_they_have_a_stream_of_their_own") {
  HostStream a;
  HostStream b;
  HostStream c;
  CHECK(Streams{a, b}.reductions == HostStreamRef(b));
  CHECK(Streams{a, b, c}.reductions == HostStreamRef(c));
  CHECK(Streams{a, b, c}.overlap());
  CHECK(Streams{a, a, c}.overlap());
  CHECK(Streams{a, b, a}.overlap());
  CHECK_FALSE(Streams{a, a, a}.overlap());
}

TEST_CASE("views_the_streams_it_is_given") {
  HostStream a;
  HostStream b;
  Streams const streams{.compute = a, .communication = b};
  int x = 0;
  streams.compute.enqueue([&x] { x = 1; });
  streams.communication.wait(streams.compute.record());
  streams.communication.enqueue([&x] { x += 10; });
  b.synchronize();
  CHECK(x == 11);
}
