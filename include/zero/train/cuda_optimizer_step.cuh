// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The optimizer step on a CUDA device: one pass over gradients, masters, states and parameters in packs of 16 and 32 bytes.

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <zero/core/element.hpp>
#include <zero/device/cuda_launch.cuh>
#include <zero/train/optimizer_step.hpp>
#include <zero/train/step_state.hpp>

namespace zero::detail {

/// How many elements a thread steps at once: 32 bytes of masters, 16 of parameters half as wide.
template <class Master>
inline constexpr int step_pack = 32 / static_cast<int>(sizeof(Master));

/// What the host cuts [0, n) into: elements before the packs, the packs, the rest.
struct StepCut {
  std::int64_t head;
  std::int64_t packs;
  std::int64_t tail;
};

/// How far an array is from where a pack may begin [elements].
template <int Pack, class T>
[[nodiscard]] std::int64_t elements_to_pack(T const* data) noexcept {
  return static_cast<std::int64_t>((Pack - reinterpret_cast<std::uintptr_t>(data) / sizeof(T) % Pack) % Pack);
}

/// Packs begin where they are aligned in all arrays at once; where there is no such element, there are none.
template <class O, class Master, class Gradient, class Parameter>
[[nodiscard]] StepCut cut_step(std::int64_t n, OptimizerStep<O, Master, Gradient, Parameter> const& step) noexcept {
  constexpr int pack = step_pack<Master>;
  std::int64_t const head = elements_to_pack<pack>(step.master);
  bool aligned = elements_to_pack<pack>(step.gradient) == head;
  if (step.parameter != nullptr) aligned = aligned && elements_to_pack<pack>(step.parameter) == head;
  for (int k = 0; k < O::states; ++k) aligned = aligned && elements_to_pack<pack>(step.states[k]) == head;
  if (!aligned || head >= n) return {n, 0, 0};
  std::int64_t const packs = (n - head) / pack;
  return {head, packs, n - head - packs * pack};
}

/// A thread for each pack, then one for each element before and behind them.
template <bool Rounds, class O, class Master, class Gradient, class Parameter, std::size_t... S>
__device__ inline void step_thread(OptimizerStep<O, Master, Gradient, Parameter> const& step, StepCut cut, std::index_sequence<S...>) {
  constexpr int pack = step_pack<Master>;
  if (step.decision->apply == 0) return;
  Master const multiplier = static_cast<Master>(step.decision->multiplier);
  update_t<O> const update = step.update->update;
  std::int64_t const thread = cuda_thread_index();
  if (thread < cut.packs) {
    std::int64_t const i = cut.head + thread * pack;
    Gradient gradient[pack];
    Master master[pack];
    Master states[step.states_held][pack];
    Parameter parameter[pack];
    load_pack(gradient, step.gradient + i);
    load_pack(master, step.master + i);
    (load_pack(states[S], step.states[S] + i), ...);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      step_element<Rounds>(k, update, multiplier, master, gradient, parameter, states[S]...);
    }
    store_pack(step.master + i, master);
    (store_pack(step.states[S] + i, states[S]), ...);
    if constexpr (Rounds) store_pack(step.parameter + i, parameter);
  } else {
    std::int64_t i = thread - cut.packs;
    if (i >= cut.head) i += cut.packs * pack;
    if (i < cut.head + cut.packs * pack + cut.tail) {
      step_element<Rounds>(i, update, multiplier, step.master, step.gradient, step.parameter, step.states[S]...);
    }
  }
}

template <bool Rounds, class O, class Master, class Gradient, class Parameter>
__global__ void __launch_bounds__(cuda_block_threads)
    optimizer_step_kernel(OptimizerStep<O, Master, Gradient, Parameter> step, StepCut cut) {
  step_thread<Rounds>(step, cut, std::make_index_sequence<static_cast<std::size_t>(O::states)>{});
}

/// The step of one shard: each element is read once and written once.
template <class O, std::floating_point Master, RealElement Gradient, RealElement Parameter>
[[nodiscard]] cudaError_t launch_for_each(CudaLaunch launch, std::int64_t n, OptimizerStep<O, Master, Gradient, Parameter> const& step) {
  StepCut const cut = cut_step(n, step);
  std::int64_t const threads = cut.packs + cut.head + cut.tail;
  if (step.parameter != nullptr)
    return launch_threads(launch, threads, optimizer_step_kernel<true, O, Master, Gradient, Parameter>, step, cut);
  return launch_threads(launch, threads, optimizer_step_kernel<false, O, Master, Gradient, Parameter>, step, cut);
}

}  // namespace zero::detail
