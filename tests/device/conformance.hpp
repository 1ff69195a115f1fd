// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What every model of `Device` does, as doctest templates over kinds of streams: `ZERO_TEST_DEVICE(a list of kinds)` runs them.
///
/// A kind has `Device`, a text `name`, and is made with a seed; `stream(i)` gives two streams (that may be one), `finish()` waits for both.
/// Arrays lie in the device's pinned memory, which both the device and the host can use. Functors are named, for a CUDA compiler.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/device/device.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/arithmetic.hpp>

namespace zero::test {

/// An array that host and device can use, at first all of one value.
template <class D, class T>
class Shared {
public:
  Shared(std::int64_t n, T value) : buffer_(D::pinned_memory(), n, Purpose::control) {
    for (T& x : buffer_.span()) x = value;
  }
  T* data() { return buffer_.data(); }
  T& operator[](std::int64_t i) { return buffer_.data()[i]; }
  std::vector<T> values() { return {buffer_.span().begin(), buffer_.span().end()}; }

private:
  Buffer<T> buffer_;
};

struct AddOne {
  int* to;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] += 1; }
};

struct WriteIndex {
  std::int64_t* to;
  std::int64_t value;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = value + i; }
};

/// A functor as the optimizer step has it: options and several pointers.
struct SmallUpdate {
  float rate;
  float* parameter;
  float const* gradient;
  float* state;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    state[i] = detail::product(0.5f, state[i]) + gradient[i];
    float const size = state[i] < 0 ? -state[i] : state[i];
    parameter[i] -= detail::quotient(detail::product(rate, state[i]), detail::square_root(size) + 1.0f);
  }
};

struct AddIndex {
  std::int64_t* sum;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { *sum += i; }
};

/// The sum of the indices, one after the other or by ranges.
struct RangedWrite {
  std::int64_t* to;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] += i; }
  ZERO_HOST_DEVICE void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) (*this)(i);
  }
};
static_assert(RangeFunctor<RangedWrite>);

struct CountCall {
  int* calls;
  ZERO_HOST_DEVICE void operator()() const { *calls += 1; }
};

}  // namespace zero::test

TEST_CASE_TEMPLATE_DEFINE("device: copies_bytes", Kind, device_copies_bytes) {
  using D = typename Kind::Device;
  Kind kind(1);
  INFO(Kind::name);
  for (std::int64_t const bytes : {0, 1, 7, 4096}) {
    zero::test::Shared<D, unsigned char> from(bytes + 1, 0);
    for (std::int64_t i = 0; i <= bytes; ++i) from[i] = static_cast<unsigned char>(i + 1);
    zero::test::Shared<D, unsigned char> to(bytes + 1, 0);
    D::copy(kind.stream(0), to.data(), from.data(), bytes);
    std::vector<unsigned char> pageable(static_cast<std::size_t>(bytes) + 1, 0);
    D::copy(kind.stream(0), pageable.data(), from.data(), bytes);
    D::synchronize(kind.stream(0));
    CHECK(to[bytes] == 0);
    from[bytes] = 0;
    CHECK(to.values() == from.values());
    CHECK(pageable == from.values());
    // Pageable memory of the host is read before the stream is idle, at the latest.
    zero::test::Shared<D, unsigned char> back(bytes + 1, 0);
    D::copy(kind.stream(0), back.data(), pageable.data(), bytes);
    D::synchronize(kind.stream(0));
    CHECK(back.values() == pageable);
  }
  D::copy(kind.stream(0), nullptr, nullptr, 0);
  zero::test::Shared<D, float> same(1, 3);
  D::copy(kind.stream(0), same.data(), same.data(), sizeof(float));
  D::synchronize(kind.stream(0));
  CHECK(same[0] == 3);
}

TEST_CASE_TEMPLATE_DEFINE("device: fills_elements_of_any_type", Kind, device_fills) {
  using D = typename Kind::Device;
  Kind kind(2);
  INFO(Kind::name);
  for (std::int64_t const n : {0, 1, 63, 64, 65, 200, 5000}) {
    zero::test::Shared<D, float> f(n + 1, 1.0f);
    zero::test::Shared<D, zero::bf16> b(n + 1, zero::bf16(1.0f));
    zero::test::Shared<D, unsigned char> c(n + 1, 1);
    zero::test::Shared<D, double> d(n + 1, 1);
    D::fill(kind.stream(0), f.data(), n, 0);  // converted to the element type
    D::fill(kind.stream(0), b.data(), n, zero::bf16(2.5f));
    D::fill(kind.stream(0), c.data(), n, static_cast<unsigned char>(200));
    D::fill(kind.stream(0), d.data(), n, 0.1);
    D::synchronize(kind.stream(0));
    bool right = f[n] == 1.0f && static_cast<float>(b[n]) == 1.0f && c[n] == 1 && d[n] == 1;
    for (std::int64_t i = 0; i < n; ++i) right = right && f[i] == 0.0f && static_cast<float>(b[i]) == 2.5f && c[i] == 200 && d[i] == 0.1;
    CHECK_MESSAGE(right, n);
  }
}

TEST_CASE_TEMPLATE_DEFINE("device: for_each_calls_every_index_once", Kind, device_for_each) {
  using D = typename Kind::Device;
  Kind kind(3);
  INFO(Kind::name);
  for (std::int64_t const n : {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000, 100'003}) {
    zero::test::Shared<D, int> calls(n + 1, 0);
    D::for_each(kind.stream(0), n, zero::test::AddOne{calls.data()});
    D::synchronize(kind.stream(0));
    std::vector<int> expected(static_cast<std::size_t>(n), 1);
    expected.push_back(0);
    CHECK(calls.values() == expected);
  }
}

TEST_CASE_TEMPLATE_DEFINE("device: for_each_gives_the_bits_of_the_plain_loop", Kind, device_plain_loop) {
  using D = typename Kind::Device;
  constexpr std::int64_t n = 1000;
  Kind kind(4);
  INFO(Kind::name);
  zero::test::Shared<D, float> gradient(n, 0), plain(n, 1), plain_state(n, 0), parameter(n, 1), state(n, 0);
  for (std::int64_t i = 0; i < n; ++i) gradient[i] = 0.37f * static_cast<float>(i % 17) - 2.0f;
  zero::test::SmallUpdate const reference{0.1f, plain.data(), gradient.data(), plain_state.data()};
  for (int step = 0; step < 3; ++step) {
    for (std::int64_t i = n; i-- > 0;) reference(i);
    D::for_each(kind.stream(0), n, zero::test::SmallUpdate{0.1f, parameter.data(), gradient.data(), state.data()});
  }
  D::synchronize(kind.stream(0));
  CHECK(std::memcmp(parameter.data(), plain.data(), n * sizeof(float)) == 0);
  CHECK(std::memcmp(state.data(), plain_state.data(), n * sizeof(float)) == 0);
}

TEST_CASE_TEMPLATE_DEFINE("device: accumulate_may_share_integers", Kind, device_accumulate) {
  using D = typename Kind::Device;
  Kind kind(5);
  INFO(Kind::name);
  zero::test::Shared<D, std::int64_t> sum(1, 0);
  D::accumulate(kind.stream(0), 1000, zero::test::AddIndex{sum.data()});
  D::accumulate(kind.stream(0), 0, zero::test::AddIndex{sum.data()});
  D::synchronize(kind.stream(0));
  CHECK(sum[0] == 499500);
}

TEST_CASE_TEMPLATE_DEFINE("device: a_functor_that_does_ranges_does_each_index_once", Kind, device_ranges) {
  using D = typename Kind::Device;
  Kind kind(6);
  INFO(Kind::name);
  zero::test::Shared<D, std::int64_t> sums(1000, 0);
  D::for_each(kind.stream(0), 1000, zero::test::RangedWrite{sums.data()});
  D::accumulate(kind.stream(0), 1000, zero::test::RangedWrite{sums.data()});
  D::for_each(kind.stream(0), 0, zero::test::RangedWrite{sums.data()});
  D::synchronize(kind.stream(0));
  bool right = true;
  for (std::int64_t i = 0; i < 1000; ++i) right = right && sums[i] == 2 * i;
  CHECK(right);
}

TEST_CASE_TEMPLATE_DEFINE("device: run_calls_once", Kind, device_run) {
  using D = typename Kind::Device;
  Kind kind(7);
  INFO(Kind::name);
  zero::test::Shared<D, int> calls(1, 0);
  D::run(kind.stream(0), zero::test::CountCall{calls.data()});
  D::synchronize(D::record(kind.stream(0)));
  CHECK(calls[0] == 1);
}

TEST_CASE_TEMPLATE_DEFINE("device: functors_are_copied_when_enqueued", Kind, device_copies_functors) {
  using D = typename Kind::Device;
  Kind kind(8);
  INFO(Kind::name);
  zero::test::Shared<D, std::int64_t> out(4, 0);
  {
    zero::test::WriteIndex f{out.data(), 5};
    D::for_each(kind.stream(0), 4, f);
    f.value = 60;
  }
  D::synchronize(kind.stream(0));
  CHECK(out.values() == std::vector<std::int64_t>{5, 6, 7, 8});
}

TEST_CASE_TEMPLATE_DEFINE("device: work_of_a_stream_is_in_order", Kind, device_order) {
  using D = typename Kind::Device;
  Kind kind(9);
  INFO(Kind::name);
  zero::test::Shared<D, float> a(4096, 0), b(4096, -1);
  for (int i = 1; i <= 50; ++i) {
    D::fill(kind.stream(0), a.data(), 4096, static_cast<float>(i));
    D::copy(kind.stream(0), b.data(), a.data(), 4096 * sizeof(float));
    D::fill(kind.stream(0), a.data(), 4096, -2.0f);
  }
  D::synchronize(kind.stream(0));
  CHECK(b.values() == std::vector<float>(4096, 50.0f));
}

TEST_CASE_TEMPLATE_DEFINE("device: field case 49: a copy is waited for before it is read, however late it is", Kind, device_waits) {
  using D = typename Kind::Device;
  INFO(Kind::name);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Kind kind(seed);
    auto const copying = kind.stream(0);
    auto const gathering = kind.stream(1);
    zero::test::Shared<D, float> primary(256, 1.0f), secondary(256, -1.0f), gathered(256, -2.0f);
    D::fill(copying, primary.data(), 256, 4.0f);
    D::copy(copying, secondary.data(), primary.data(), 1024);
    D::wait(gathering, D::record(copying), zero::WaitId::user);
    D::copy(gathering, gathered.data(), secondary.data(), 1024);
    // And back: what is overwritten has been read.
    D::wait(copying, D::record(gathering), zero::WaitId::user);
    D::fill(copying, secondary.data(), 256, -3.0f);
    kind.finish();
    CHECK(gathered.values() == std::vector<float>(256, 4.0f));
  }
}

TEST_CASE_TEMPLATE_DEFINE("device: events_are_values", Kind, device_events) {
  using D = typename Kind::Device;
  Kind kind(10);
  INFO(Kind::name);
  typename D::Event const complete{};
  D::synchronize(complete);
  D::wait(kind.stream(0), complete, zero::WaitId::user);
  zero::test::Shared<D, float> values(300, 0);
  std::vector<typename D::Event> events;
  for (std::int64_t i = 0; i < 300; ++i) {
    D::fill(kind.stream(0), values.data() + i, 1, static_cast<float>(i + 1));
    events.push_back(D::record(kind.stream(0)));
  }
  // However many were recorded since.
  bool right = true;
  for (std::int64_t i = 0; i < 300; ++i) {
    D::synchronize(events[static_cast<std::size_t>(i)]);
    D::synchronize(events[static_cast<std::size_t>(i)]);
    right = right && values[i] == static_cast<float>(i + 1);
  }
  CHECK(right);
  D::wait(kind.stream(1), events.front(), zero::WaitId::user);
  D::wait(kind.stream(1), events.back(), zero::WaitId::user);
  kind.finish();
}

TEST_CASE_TEMPLATE_DEFINE("device: refuses_negative_sizes_with_the_callers_line", Kind, device_negative) {
  using D = typename Kind::Device;
  Kind kind(11);
  INFO(Kind::name);
  auto const stream = kind.stream(0);
  zero::test::Shared<D, float> x(2, 1);
  zero::test::Shared<D, std::int64_t> sum(1, 0);
  std::int64_t const volatile opaque = -1;  // else the compiler warns of what is tested
  std::int64_t const negative = opaque;
  CHECK_THROWS_AS(D::copy(stream, x.data(), x.data() + 1, negative), zero::UsageError);
  CHECK_THROWS_AS(D::fill(stream, x.data(), negative, 0.0f), zero::UsageError);
  CHECK_THROWS_AS(D::for_each(stream, negative, zero::test::AddIndex{sum.data()}), zero::UsageError);
  int const line = __LINE__ + 2;
  try {
    D::accumulate(stream, 5 * negative, zero::test::AddIndex{sum.data()});
    CHECK(false);
  } catch (zero::UsageError const& error) {
    CHECK(error.where().line == line);
    CHECK(std::string(error.what()).find("accumulate of size -5") != std::string::npos);
  }
  D::synchronize(stream);
  CHECK(x[0] == 1);
  CHECK(sum[0] == 0);
}

TEST_CASE_TEMPLATE_DEFINE("device: accepts_its_own_memory", Kind, device_memory) {
  using D = typename Kind::Device;
  Kind kind(12);
  INFO(Kind::name);
  zero::test::Shared<D, float> pinned(100, 0);
  D::check_memory(pinned.data());
  zero::Buffer<float> own(kind.memory(), 1000, zero::Purpose::parameters);
  D::check_memory(own.data());
  D::check_memory(own.data() + 999);
  D::check_memory(nullptr);
  D::fill(kind.stream(0), own.data(), 1000, 3.0f);
  D::copy(kind.stream(0), pinned.data(), own.data() + 900, 100 * sizeof(float));
  D::synchronize(kind.stream(0));
  CHECK(pinned.values() == std::vector<float>(100, 3.0f));
}

#define ZERO_TEST_DEVICE(...)                                     \
  TEST_CASE_TEMPLATE_INVOKE(device_copies_bytes, __VA_ARGS__);    \
  TEST_CASE_TEMPLATE_INVOKE(device_fills, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_for_each, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(device_plain_loop, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(device_accumulate, __VA_ARGS__);      \
  TEST_CASE_TEMPLATE_INVOKE(device_ranges, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(device_run, __VA_ARGS__);             \
  TEST_CASE_TEMPLATE_INVOKE(device_copies_functors, __VA_ARGS__); \
  TEST_CASE_TEMPLATE_INVOKE(device_order, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_waits, __VA_ARGS__);           \
  TEST_CASE_TEMPLATE_INVOKE(device_events, __VA_ARGS__);          \
  TEST_CASE_TEMPLATE_INVOKE(device_negative, __VA_ARGS__);        \
  TEST_CASE_TEMPLATE_INVOKE(device_memory, __VA_ARGS__)
