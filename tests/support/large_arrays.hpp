// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a device does to an array of any size, checked in every element and in guards around it. Values repeat after a period, so that the device
/// can compare the array with its beginning, and the host checks that.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/norm.hpp>
#include <zero/train/optimizer_step.hpp>
#include <zero/train/optimizers.hpp>

namespace zero::test {

/// An array with guards before and behind it.
template <class D, class T>
class GuardedArray {
public:
  GuardedArray(typename D::Stream stream, MemoryResource& memory, std::int64_t n)
      : stream_(stream), n_(n), buffer_(memory, n + 2 * guard, Purpose::control) {
    D::fill(stream, reinterpret_cast<unsigned char*>(buffer_.data()), buffer_.bytes(), pattern);
  }
  [[nodiscard]] T* data() noexcept { return buffer_.data() + guard; }

  [[nodiscard]] bool guards_are_whole() {
    bool whole = true;
    for (T const* const from : {data() - guard, data() + n_}) {
      Buffer<T> host{D::pinned_memory(), guard, Purpose::control};
      D::copy(stream_, host.data(), from, host.bytes());
      D::synchronize(stream_);
      auto const* const bytes = reinterpret_cast<unsigned char const*>(host.data());
      for (std::int64_t i = 0; i < host.bytes(); ++i) whole = whole && bytes[i] == pattern;
    }
    return whole;
  }

  static constexpr std::int64_t guard = 4096;

private:
  static constexpr unsigned char pattern = 0x5a;

  typename D::Stream stream_;
  std::int64_t n_;
  Buffer<T> buffer_;
};

/// to[i] = i % period - offset, an integer that bf16 holds.
template <class T>
struct FillPeriods {
  T* to;
  std::int64_t period;
  float offset;
  [[nodiscard]] ZERO_HOST_DEVICE T at(std::int64_t i) const { return element_cast<T>(static_cast<float>(i % period) - offset); }
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = at(i); }
};

/// Sets a mark where an element is not what it is one or more periods earlier.
template <class T>
struct MarkOthers {
  T const* values;
  std::int64_t period;
  std::int32_t* mark;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    if (static_cast<compute_t<T>>(values[i]) != static_cast<compute_t<T>>(values[i % period])) *mark = 1;
  }
};

template <class D, class T>
[[nodiscard]] bool repeats(typename D::Stream stream, MemoryResource& memory, T const* values, std::int64_t n, std::int64_t period) {
  Buffer<std::int32_t> mark{memory, 1, Purpose::control};
  D::fill(stream, mark.data(), 1, 0);
  D::for_each(stream, n, MarkOthers<T>{values, period, mark.data()});
  Buffer<std::int32_t> host{D::pinned_memory(), 1, Purpose::control};
  D::copy(stream, host.data(), mark.data(), host.bytes());
  D::synchronize(stream);
  return *host.data() == 0;
}

/// Fills and copies. Takes 4 bytes an element.
template <class D>
void check_large_fill(typename D::Stream stream, MemoryResource& memory, std::int64_t n) {
  GuardedArray<D, bf16> filled(stream, memory, n), copied(stream, memory, n);
  D::fill(stream, filled.data(), n, bf16(2.5f));
  D::copy(stream, copied.data(), filled.data(), n * static_cast<std::int64_t>(sizeof(bf16)));
  Buffer<bf16> first{D::pinned_memory(), 1, Purpose::control};
  D::copy(stream, first.data(), copied.data(), first.bytes());
  D::synchronize(stream);
  CHECK(static_cast<float>(*first.data()) == 2.5f);
  CHECK(repeats<D>(stream, memory, copied.data(), n, 1));
  CHECK(filled.guards_are_whole());
  CHECK(copied.guards_are_whole());
}

/// A step with bf16 parameters and gradients and fp32 masters. Takes 8 bytes an element, and 4 for each of the optimizer's states.
template <class D, class O>
void check_large_step(typename D::Stream stream, MemoryResource& memory, O const& optimizer, std::int64_t n) {
  constexpr std::int64_t period = 1000 * 257;
  std::int64_t const begin = n < period ? n : period;
  GuardedArray<D, float> master(stream, memory, n);
  GuardedArray<D, bf16> gradient(stream, memory, n), parameter(stream, memory, n);
  GuardedArray<D, float> first(stream, memory, O::states > 0 ? n : 0), second(stream, memory, O::states > 1 ? n : 0);
  FillPeriods<float> const masters_begin{master.data(), 1000, 500};
  FillPeriods<bf16> const gradients_are{gradient.data(), 257, 128};
  D::for_each(stream, n, masters_begin);
  D::for_each(stream, n, gradients_are);
  if (O::states > 0) D::fill(stream, first.data(), n, 0);
  if (O::states > 1) D::fill(stream, second.data(), n, 0);

  Buffer<StepState> decision{D::pinned_memory(), 1, Purpose::control};
  Buffer<UpdateState<O>> update{D::pinned_memory(), 1, Purpose::control};
  *decision.data() = {};
  *update.data() = {};
  decide(*decision.data(), {.factor = 0.5});
  advance(*update.data(), optimizer, *decision.data());
  detail::OptimizerStep<O, float, bf16, bf16> step{decision.data(), update.data(), master.data(), gradient.data(), parameter.data(), {}};
  if constexpr (O::states > 0) step.states[0] = first.data();
  if constexpr (O::states > 1) step.states[1] = second.data();
  D::for_each(stream, n, step);

  Buffer<float> masters{D::pinned_memory(), begin, Purpose::control};
  Buffer<bf16> parameters{D::pinned_memory(), begin, Purpose::control};
  D::copy(stream, masters.data(), master.data(), masters.bytes());
  D::copy(stream, parameters.data(), parameter.data(), parameters.bytes());
  D::synchronize(stream);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < begin; ++i) {
    float value = masters_begin.at(i), states[2] = {};
    bf16 const of_gradient = gradients_are.at(i);
    bf16 of_parameter;
    detail::OptimizerStep<O, float, bf16, bf16> single{decision.data(), update.data(), &value, &of_gradient, &of_parameter, {}};
    for (int k = 0; k < O::states; ++k) single.states[k] = &states[k];
    single(0, 1);
    if (value != masters.data()[i] || of_parameter.bits != parameters.data()[i].bits) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(repeats<D>(stream, memory, master.data(), n, period));
  CHECK(repeats<D>(stream, memory, parameter.data(), n, period));
  CHECK(master.guards_are_whole());
  CHECK(gradient.guards_are_whole());
  CHECK(parameter.guards_are_whole());
  CHECK(first.guards_are_whole());
  CHECK(second.guards_are_whole());
}

/// The square sum of integers, which fp64 holds. Takes 2 bytes an element.
template <class D>
void check_large_square_sum(typename D::Stream stream, MemoryResource& memory, std::int64_t n) {
  using Sum = exact_square_sum_t<bf16>;
  GuardedArray<D, bf16> values(stream, memory, n);
  D::for_each(stream, n, FillPeriods<bf16>{values.data(), 257, 128});
  Buffer<Sum> sum{D::pinned_memory(), 1, Purpose::control};
  *sum.data() = {};
  detail::SquareSum<bf16> const squares{sum.data(), values.data(), 0, n, 128};
  D::accumulate(stream, squares.parts(), squares);
  D::synchronize(stream);
  std::int64_t of_period = 0;
  std::int64_t of_rest = 0;
  for (std::int64_t i = 0; i < 257; ++i) {
    of_period += (i - 128) * (i - 128);
    if (i < n % 257) of_rest += (i - 128) * (i - 128);
  }
  CHECK(sum.data()->value() == static_cast<double>(n / 257 * of_period + of_rest));
  CHECK(values.guards_are_whole());
}

}  // namespace zero::test
