// SPDX-License-Identifier: Apache-2.0
/// @file
/// The host as a device: the same behaviour on a worker, on the calling thread, and on the calling thread with options.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/memory.hpp>

#include "support/gate.hpp"

namespace {

using zero::HostDevice;
using zero::HostStream;
using zero::HostStreamRef;

/// Runs a check on the three kinds of host stream.
template <class F>
void on_every_kind_of_stream(F f) {
  {
    INFO("a worker");
    HostStream const worker;
    f(HostStreamRef(worker));
  }
  {
    INFO("a worker with a queue of one slot and delays");
    HostStream const worker{{.capacity = 1, .delay_seed = 7, .max_delay_us = 50}};
    f(HostStreamRef(worker));
  }
  {
    INFO("the calling thread with options");
    HostStream const inline_stream{{.worker = false, .delay_seed = 3, .max_delay_us = 50}};
    f(HostStreamRef(inline_stream));
  }
  {
    INFO("the calling thread");
    f(HostStreamRef::calling_thread());
  }
}

/// A functor as the optimizer step has it: options and several pointers.
struct Update {
  float rate;
  float* parameter;
  float const* gradient;
  float* state;

  void operator()(std::int64_t i) const {
    state[i] = 0.5f * state[i] + gradient[i];
    parameter[i] -= rate * state[i] / (std::sqrt(std::abs(state[i])) + 1.0f);
  }
};

template <std::size_t Bytes>
struct Sized {
  std::array<unsigned char, Bytes> content;
  void operator()(std::int64_t) const {}
};
struct NotTrivial {
  std::shared_ptr<int> content;
  void operator()(std::int64_t) const {}
};

static_assert(zero::detail::HostFunctor<Update>);
static_assert(zero::detail::HostFunctor<Sized<248>>);
static_assert(!zero::detail::HostFunctor<Sized<249>>);
static_assert(!zero::detail::HostFunctor<NotTrivial>);

}  // namespace

TEST_CASE("copies_bytes") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    for (std::size_t const bytes : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4096}}) {
      std::vector<unsigned char> from(bytes + 1);
      std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
      std::vector<unsigned char> to(bytes + 1, 0);
      HostDevice::copy(stream, to.data(), from.data(), static_cast<std::int64_t>(bytes));
      HostDevice::synchronize(stream);
      CHECK(to[bytes] == 0);
      from[bytes] = 0;
      CHECK(to == from);
    }
    HostDevice::copy(stream, nullptr, nullptr, 0);
    float same = 3;
    HostDevice::copy(stream, &same, &same, sizeof same);
    HostDevice::synchronize(stream);
    CHECK(same == 3);
  });
}

TEST_CASE("fills_elements_of_any_type") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    for (std::size_t const n : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, std::size_t{200}}) {
      std::vector<float> f(n + 1, 1.0f);
      std::vector<zero::bf16> b(n + 1, zero::bf16(1.0f));
      HostDevice::fill(stream, f.data(), static_cast<std::int64_t>(n), 0);  // converted to the element type
      HostDevice::fill(stream, b.data(), static_cast<std::int64_t>(n), zero::bf16(2.5f));
      HostDevice::synchronize(stream);
      bool right = f[n] == 1.0f && static_cast<float>(b[n]) == 1.0f;
      for (std::size_t i = 0; i < n; ++i) right = right && f[i] == 0.0f && static_cast<float>(b[i]) == 2.5f;
      CHECK_MESSAGE(right, n);
    }
  });
}

TEST_CASE("for_each_calls_every_index_once") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    for (std::int64_t const n : {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000}) {
      std::vector<int> calls(static_cast<std::size_t>(n) + 1, 0);
      HostDevice::for_each(stream, n, [p = calls.data()](std::int64_t i) { p[i] += 1; });
      HostDevice::synchronize(stream);
      CHECK(calls.back() == 0);
      CHECK(std::accumulate(calls.begin(), calls.end(), std::int64_t{0}) == n);
      calls.pop_back();
      CHECK(calls == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  });
}

TEST_CASE("for_each_gives_the_bits_of_the_plain_loop") {
  constexpr std::size_t n = 1000;
  std::vector<float> gradient(n);
  for (std::size_t i = 0; i < n; ++i) gradient[i] = 0.37f * static_cast<float>(i % 17) - 2.0f;
  std::vector<float> plain(n, 1.0f);
  std::vector<float> plain_state(n, 0.0f);
  Update const reference{0.1f, plain.data(), gradient.data(), plain_state.data()};
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = n; i-- > 0;) reference(static_cast<std::int64_t>(i));
  }
  on_every_kind_of_stream([&](HostStreamRef stream) {
    std::vector<float> parameter(n, 1.0f);
    std::vector<float> state(n, 0.0f);
    for (int step = 0; step < 3; ++step) {
      HostDevice::for_each(stream, n, Update{0.1f, parameter.data(), gradient.data(), state.data()});
    }
    HostDevice::synchronize(stream);
    CHECK(parameter == plain);
    CHECK(state == plain_state);
  });
}

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

TEST_CASE("run_calls_once") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    int calls = 0;
    HostDevice::run(stream, [&calls] { ++calls; });
    HostDevice::synchronize(HostDevice::record(stream));
    CHECK(calls == 1);
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

TEST_CASE("refuses_negative_sizes_with_the_caller_s_line") {
  on_every_kind_of_stream([](HostStreamRef stream) {
    float x[2] = {1, 2};
    std::int64_t volatile const opaque = -1;  // else the compiler warns of what is tested
    std::int64_t const negative = opaque;
    CHECK_THROWS_AS(HostDevice::copy(stream, x, x + 1, negative), zero::UsageError);
    CHECK_THROWS_AS(HostDevice::fill(stream, x, negative, 0.0f), zero::UsageError);
    CHECK_THROWS_AS(HostDevice::for_each(stream, negative, [](std::int64_t) {}), zero::UsageError);
    int const line = __LINE__ + 2;
    try {
      HostDevice::accumulate(stream, 5 * negative, [](std::int64_t) {});
      CHECK(false);
    } catch (zero::UsageError const& error) {
      CHECK(error.where().line == line);
      CHECK(std::string(error.what()).find("accumulate of size -5") != std::string::npos);
    }
    HostDevice::synchronize(stream);
    CHECK(x[0] == 1);
  });
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

TEST_CASE("field case 49: a copy is waited for before it is read, however late it is") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    HostStream const copying{{.delay_seed = seed, .max_delay_us = 300}};
    HostStream const gathering{{.delay_seed = seed + 100, .max_delay_us = 20}};
    std::vector<float> primary(256, 1.0f);
    std::vector<float> secondary(256, -1.0f);
    std::vector<float> gathered(256, -2.0f);
    HostDevice::fill(copying, primary.data(), 256, 4.0f);
    HostDevice::copy(copying, secondary.data(), primary.data(), 1024);
    HostDevice::wait(gathering, HostDevice::record(copying), zero::WaitId::user);
    HostDevice::copy(gathering, gathered.data(), secondary.data(), 1024);
    HostDevice::synchronize(gathering);
    CHECK(gathered == std::vector<float>(256, 4.0f));
  }
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
