// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The optimizer step and the square sum of a device against the host's, bit for bit: the same checks for a GPU and for kernels that run as host
/// threads. A runner has `memory()`, whose blocks host and kernels can use, and `step(n, functor)`, `sum(functor)` that run and wait.

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <zero/core/hash.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/norm.hpp>
#include <zero/train/optimizer_step.hpp>
#include <zero/train/optimizers.hpp>

namespace zero::test {

/// Numbers of all kinds: several orders of magnitude, both signs, zeros, denormals now and then.
inline float odd_number(std::int64_t i, std::uint64_t salt) {
  std::uint64_t const h = mixed_bits(static_cast<std::uint64_t>(i) * 64 + salt);
  float const mantissa = 1 + static_cast<float>(h >> 40) * 0x1p-24f;
  float const scale[] = {1e-4f, 1e-2f, 1, 10, 0, 1e-20f, 3e-39f, 1e-3f};
  return (h & 8 ? mantissa : -mantissa) * scale[h & 7];
}

/// An array that begins `offset` elements behind an aligned address, with guards around it.
template <class T>
class Placed {
public:
  Placed(MemoryResource& memory, std::int64_t offset, std::int64_t n)
      : buffer_(memory, offset + n + 2, Purpose::control), offset_(offset), n_(n) {
    std::memset(static_cast<void*>(buffer_.data()), 0x5a, static_cast<std::size_t>(buffer_.bytes()));
  }
  T* data() { return buffer_.data() + offset_; }
  /// All bytes, the guards included.
  [[nodiscard]] bool same_as(Placed const& other) const {
    return n_ == other.n_ &&
           std::memcmp(buffer_.data() + offset_ - (offset_ > 0 ? 1 : 0), other.buffer_.data() + other.offset_ - (offset_ > 0 ? 1 : 0),
                       static_cast<std::size_t>(n_ + 2) * sizeof(T)) == 0;
  }

private:
  Buffer<T> buffer_;
  std::int64_t offset_;
  std::int64_t n_;
};

/// Offsets of the arrays from alignment [elements].
struct StepOffsets {
  std::int64_t master, gradient, parameter, state;
};

template <class O, class Master, class Gradient, class Parameter, class Runner>
void check_step(Runner& runner, O const& optimizer, bool rounds, std::int64_t n, StepOffsets at, bool applies = true) {
  struct Arrays {
    Placed<Master> master, first, second;
    Placed<Gradient> gradient;
    Placed<Parameter> parameter;
    Arrays(MemoryResource& memory, StepOffsets o, std::int64_t size)
        : master(memory, o.master, size),
          first(memory, o.state, size),
          second(memory, o.state, size),
          gradient(memory, o.gradient, size),
          parameter(memory, o.parameter, size) {
      for (std::int64_t i = 0; i < size; ++i) {
        master.data()[i] = static_cast<Master>(odd_number(i, 0));
        first.data()[i] = static_cast<Master>(odd_number(i, 1));
        float const root = odd_number(i, 2);
        second.data()[i] = static_cast<Master>(root * root);
        gradient.data()[i] = element_cast<Gradient>(odd_number(i, 3));
      }
    }
  };
  Arrays host(runner.memory(), at, n), device(runner.memory(), at, n);
  Buffer<StepState> decision(runner.memory(), 1, Purpose::control);
  Buffer<UpdateState<O>> update(runner.memory(), 1, Purpose::control);
  std::memset(static_cast<void*>(decision.data()), 0, sizeof(StepState));
  std::memset(static_cast<void*>(update.data()), 0, sizeof(UpdateState<O>));
  decide(*decision.data(), {.factor = 1.0 / 3});
  advance(*update.data(), optimizer, *decision.data());
  if (!applies) decision.data()->apply = 0;
  auto const step = [&](Arrays& a) {
    detail::OptimizerStep<O, Master, Gradient, Parameter> result{
        decision.data(), update.data(), a.master.data(), a.gradient.data(), rounds ? a.parameter.data() : nullptr, {}};
    if constexpr (O::states > 0) result.states[0] = a.first.data();
    if constexpr (O::states > 1) result.states[1] = a.second.data();
    return result;
  };
  step(host)(0, n);
  runner.step(n, step(device));
  CHECK_MESSAGE(device.master.same_as(host.master), n);
  CHECK(device.first.same_as(host.first));
  CHECK(device.second.same_as(host.second));
  CHECK(device.gradient.same_as(host.gradient));
  CHECK(device.parameter.same_as(host.parameter));
}

/// @param sizes  how many elements; the last is used for the odd placements too
template <class Runner>
void check_steps(Runner& runner, std::vector<std::int64_t> const& sizes) {
  using zero::bf16;
  using zero::half;
  AdamW const adamw{.learning_rate = 0.01, .weight_decay = 0.1};
  for (std::int64_t const n : sizes) {
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {0, 0, 0, 0});
    check_step<AdamW, float, float, float>(runner, adamw, false, n, {0, 0, 0, 0});
    check_step<AdamW, float, float, bf16>(runner, adamw, true, n, {0, 0, 0, 0});
    check_step<AdamW, float, half, half>(runner, {.beta1 = 0}, true, n, {0, 0, 0, 0});
    check_step<AdamW, double, double, double>(runner, adamw, false, n, {0, 0, 0, 0});
    check_step<AdamW, double, bf16, bf16>(runner, adamw, true, n, {0, 0, 0, 0});
    check_step<SGD, float, float, bf16>(runner, {.weight_decay = 0.1}, true, n, {0, 0, 0, 0});
    check_step<MomentumSGD, float, bf16, bf16>(runner, {.weight_decay = 0.1, .nesterov = true}, true, n, {0, 0, 0, 0});
  }
  std::int64_t const n = sizes.back();
  for (std::int64_t const o : {1, 3, 7, 8}) {
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {o, o, o, o});  // a head
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, 5, {o, o, o, o});  // shorter than it
    check_step<AdamW, double, float, float>(runner, adamw, true, n, {o, o, o, o});
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {0, o, 0, 0});  // no common alignment, except with 8
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {0, 0, o, 0});
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {0, 0, 0, o});
    check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {o, 0, 0, 0});
  }
  check_step<AdamW, float, bf16, bf16>(runner, adamw, true, n, {0, 0, 0, 0}, false);
}

template <class T, class Runner>
void check_square_sum(Runner& runner, std::int64_t offset, std::int64_t count, std::int64_t block, std::int64_t shift, bool bad = false) {
  using Sum = exact_square_sum_t<T>;
  Placed<T> data(runner.memory(), shift, count);
  for (std::int64_t i = 0; i < count; ++i) data.data()[i] = element_cast<T>(odd_number(i, 7));
  if (bad && count > 2) {
    data.data()[1] = element_cast<T>(std::numeric_limits<float>::infinity());
    data.data()[count - 1] = element_cast<T>(std::numeric_limits<float>::quiet_NaN());
  }
  Buffer<Sum> device(runner.memory(), 1, Purpose::control);
  Sum host{};
  device.data()->clear();
  // Twice: the second call adds to what is there.
  for (int k = 0; k < 2; ++k) {
    detail::SquareSum<T> run{&host, data.data(), offset, count, block};
    run(0, run.parts());
    run.into = device.data();
    runner.sum(run);
  }
  device.data()->carry();
  CHECK_MESSAGE(*device.data() == host, offset, " ", count, " ", block, " ", shift);
}

/// @param counts  how many elements
template <class T, class Runner>
void check_square_sums(Runner& runner, std::vector<std::int64_t> const& counts) {
  for (std::int64_t const count : counts) {
    check_square_sum<T>(runner, 0, count, 128, 0);
    check_square_sum<T>(runner, 128 * 5, count, 128, 0, true);
    check_square_sum<T>(runner, 77, count, 128, 0);   // begins inside of a block
    check_square_sum<T>(runner, 128, count, 128, 3);  // not aligned to 16 bytes
    check_square_sum<T>(runner, 100, count, 32, 1);
    check_square_sum<T>(runner, 3, count, 1, 0);
  }
}

}  // namespace zero::test
