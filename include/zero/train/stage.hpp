// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A stage is three placements: of the parameters, of the gradients where they accumulate between micro-batches, of the optimizer states.

#include <string>
#include <type_traits>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/tensor/placement.hpp>

namespace zero {

/// Data parallelism (DDP): everything on every rank. 2 Psi (N-1)/N elements received a step.
struct Stage0 {
  static constexpr char const* name = "Stage0";
  using parameters = Replicated;
  using gradients = Partial;
  using optimizer_states = Replicated;
};

/// ZeRO-1, P_os (Rajbhandari et al., arXiv 1910.02054, section 5.1): optimizer states are sharded.
struct Stage1 {
  static constexpr char const* name = "Stage1";
  using parameters = Replicated;
  using gradients = Partial;
  using optimizer_states = Sharded;
};

/// ZeRO-2, P_os+g (section 5.2): gradients are reduced to shards at each hand-over.
struct Stage2 {
  static constexpr char const* name = "Stage2";
  using parameters = Replicated;
  using gradients = Sharded;
  using optimizer_states = Sharded;
};

/// ZeRO-3, P_os+g+p (section 5.3), FSDP: parameters are gathered where they are used.
struct Stage3 {
  static constexpr char const* name = "Stage3";
  using parameters = Sharded;
  using gradients = Sharded;
  using optimizer_states = Sharded;
};

namespace detail {

template <class S>
concept NamesThreeStates = requires {
  typename S::parameters;
  typename S::gradients;
  typename S::optimizer_states;
};

}  // namespace detail

/// A type with three member types, each a placement: `parameters` and `optimizer_states` Replicated or Sharded, `gradients` (where they
/// accumulate between micro-batches) any. All twelve combinations are stages; four rules make each of them: (1) on use, parameters become
/// Replicated; (2) at each hand-over, Partial becomes the gradients' placement; (3) once a step, the gradients' placement becomes the
/// optimizer's; (4) after the update, the optimizer's placement becomes the parameters'.
template <class S>
concept Stage = detail::NamesThreeStates<S> && Placement<typename S::parameters> && Placement<typename S::gradients> &&
                Placement<typename S::optimizer_states> && !std::is_same_v<typename S::parameters, Partial> &&
                !std::is_same_v<typename S::optimizer_states, Partial>;

/// Says in a sentence why S is not a stage.
template <class S>
consteval bool check_stage() {
  static_assert(detail::NamesThreeStates<S>, "zero: a stage is a type with three member types: parameters, gradients and optimizer_states");
  if constexpr (detail::NamesThreeStates<S>) {
    using P = typename S::parameters;
    using G = typename S::gradients;
    using O = typename S::optimizer_states;
    static_assert(Placement<P> && Placement<G> && Placement<O>,
                  "zero: each member type of a stage is one of zero::Replicated, zero::Sharded and zero::Partial");
    static_assert(!std::is_same_v<P, Partial>,
                  "zero: a stage's parameters are Replicated or Sharded: a sum that is still pending cannot be used");
    static_assert(!std::is_same_v<O, Partial>,
                  "zero: a stage's optimizer_states are Replicated or Sharded: an optimizer is not linear in its states");
  }
  return Stage<S>;
}

/// Calls `f` with the stage of that number, for programs that choose at run time: `with_stage(2, []<class S>(S) { train<S>(); })`.
/// Instantiates f for all four.
/// @param number  0 to 3, as ZeRO counts them.
/// @throws UsageError for any other number.
template <class F>
decltype(auto) with_stage(int number, F&& f, SourceLocation where = SourceLocation::current()) {
  switch (number) {
    case 0: return std::forward<F>(f)(Stage0{});
    case 1: return std::forward<F>(f)(Stage1{});
    case 2: return std::forward<F>(f)(Stage2{});
    case 3: return std::forward<F>(f)(Stage3{});
    default: throw UsageError("with_stage: there is no stage " + std::to_string(number) + ", stages are 0, 1, 2 and 3", where);
  }
}

}  // namespace zero
