// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The loop of an optimizer step over the elements a rank owns: one pass over gradients, masters, states and parameters.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/train/arithmetic.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/step_state.hpp>

namespace zero::detail {

/// One element: scale the gradient, update master and states, round the parameter.
template <bool Rounds, class Update, std::floating_point Master, RealElement Gradient, RealElement Parameter,
          std::same_as<Master>... States>
ZERO_HOST_DEVICE ZERO_INLINE void step_element(std::int64_t i, Update const& update, Master multiplier, Master* master,
                                               Gradient const* gradient, Parameter* parameter, States*... states) {
  Master const scaled = product(static_cast<Master>(static_cast<compute_t<Gradient>>(gradient[i])), multiplier);
  Master value = master[i];
  update(value, scaled, states[i]...);
  master[i] = value;
  if constexpr (Rounds) parameter[i] = element_cast<Parameter>(value);
}

/// All elements, on the host. The arrays do not overlap (no pragma says so: clang warns where a loop under one cannot be vectorised, and an
/// optimizer may be such a loop). What an element becomes does not depend on its position: the vectorised loop and its scalar rest round
/// alike, because nothing is fused and nothing is reassociated (with -ffast-math neither holds).
template <bool Rounds, class Update, std::floating_point Master, RealElement Gradient, RealElement Parameter,
          std::same_as<Master>... States>
ZERO_TARGET_CLONES ZERO_ELEMENT_LOOP void step_elements(std::int64_t n, Update update, Master multiplier, Master* __restrict master,
                                                        Gradient const* __restrict gradient, Parameter* __restrict parameter,
                                                        States* __restrict... states) {
  for (std::int64_t i = 0; i < n; ++i) {
    step_element<Rounds>(i, update, multiplier, master, gradient, parameter, states...);
  }
}

/// The step of the elements of one shard, as a functor over them for `Device::for_each`. What it does (apply or not, factor, constants) it reads from
/// `decision` and `update`, which the stream has written before: the host knows none of it. It names neither stage nor group.
///
/// @tparam O the optimizer
template <class O, std::floating_point Master, RealElement Gradient, RealElement Parameter>
  requires Optimizer<O, Master>
struct OptimizerStep {
  static constexpr int states_held = O::states > 0 ? O::states : 1;
  static constexpr bool does_ranges = true;

  StepState const* decision;
  UpdateState<O> const* update;
  Master* master;               ///< [n]
  Gradient const* gradient;     ///< [n], summed over the ranks, before the factor
  Parameter* parameter;         ///< [n], the masters rounded; null where the masters are the parameters
  Master* states[states_held];  ///< [n] each

  /// One element.
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { element(i, indices{}); }

  /// The elements [begin, end), on the calling thread.
  void operator()(std::int64_t begin, std::int64_t end) const {
    if (decision->apply == 0 || begin == end) return;
    range(begin, end - begin, indices{});
  }

private:
  using indices = std::make_index_sequence<static_cast<std::size_t>(O::states)>;

  template <std::size_t... S>
  ZERO_HOST_DEVICE void element(std::int64_t i, std::index_sequence<S...>) const {
    if (decision->apply == 0) return;
    Master const multiplier = static_cast<Master>(decision->multiplier);
    if (parameter != nullptr) {
      step_element<true>(i, update->update, multiplier, master, gradient, parameter, states[S]...);
    } else {
      step_element<false>(i, update->update, multiplier, master, gradient, parameter, states[S]...);
    }
  }

  template <std::size_t... S>
  void range(std::int64_t first, std::int64_t n, std::index_sequence<S...>) const {
    Master const multiplier = static_cast<Master>(decision->multiplier);
    if (parameter != nullptr) {
      step_elements<true>(n, update->update, multiplier, master + first, gradient + first, parameter + first, states[S] + first...);
    } else {
      step_elements<false>(n, update->update, multiplier, master + first, gradient + first, parameter, states[S] + first...);
    }
  }
};

}  // namespace zero::detail
