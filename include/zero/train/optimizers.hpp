// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What an optimizer is (a functor for one element), and three of them: SGD, MomentumSGD and AdamW.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <zero/core/config.hpp>
#include <zero/train/arithmetic.hpp>

namespace zero {

namespace detail {

template <class O>
concept HasAt = requires(O const& optimizer, std::int64_t step) { optimizer.at(step); };

template <class O>
struct UpdateOf {
  using type = O;
};

template <HasAt O>
struct UpdateOf<O> {
  using type = std::remove_cvref_t<decltype(std::declval<O const&>().at(std::int64_t{}))>;
};

/// What is wrong with an optimizer's options, or null.
template <class O>
[[nodiscard]] constexpr char const* invalid_options(O const& optimizer) {
  if constexpr (requires { static_cast<char const*>(optimizer.invalid()); }) return optimizer.invalid();
  else return nullptr;
}

[[nodiscard]] constexpr bool finite_and_not_negative(double value) noexcept { return is_finite(value) && value >= 0; }

template <class O>
concept HasStates = requires {
  { O::states } -> std::convertible_to<int>;
  requires O::states >= 0;
};

template <class Real, std::size_t>
using Repeat = Real;

template <class U, class Parameter, class Real, class State, std::size_t... S>
constexpr bool accepts(std::index_sequence<S...>) {
  return std::is_invocable_v<U const&, Parameter, Real, Repeat<State, S>...>;
}

/// Whether U can be called as (Parameter, Real, State... x States) const.
template <class U, class Parameter, class Real, class State, int States>
constexpr bool accepts() {
  return accepts<U, Parameter, Real, State>(std::make_index_sequence<static_cast<std::size_t>(States)>{});
}

/// Whether U changes the parameter and the states it is given: a functor that took them by value would silently do nothing.
template <class U, class Real, int States>
constexpr bool takes_references() {
  return !accepts<U, Real, Real, Real&, States>() && (States == 0 || !accepts<U, Real&, Real, Real, States>());
}

}  // namespace detail

/// What is called for each element: the type of `optimizer.at(step)` where an optimizer has that member, else the optimizer itself.
template <class O>
using update_t = typename detail::UpdateOf<O>::type;

/// What is called for each element in one step.
///
/// @param step the number of this step among those that were applied, 1 for the first: skipped steps do not count.
template <class O>
[[nodiscard]] ZERO_HOST_DEVICE constexpr update_t<O> update_at(O const& optimizer, std::int64_t step) {
  if constexpr (detail::HasAt<O>) {
    return optimizer.at(step);
  } else {
    static_cast<void>(step);
    return optimizer;
  }
}

/// An optimizer: a trivially copyable functor whose members are its options, numbers and no pointers: ranks compare their bytes. It has
/// - `static constexpr int states`: how many values it keeps for each element, all 0 before the first step;
/// - a call `(Real& parameter, Real gradient, Real&... states) const` that updates one element of the master parameters, given the gradient
///   after all factors (mean, clipping). It is marked ZERO_HOST_DEVICE, does not depend on the element's position, and has no side effects;
/// - optionally `at(std::int64_t step) const`, marked the same way, evaluated once a step by one thread, on the device where the states
///   are: it returns what is called instead, with everything that is the same for all elements (bias corrections, schedules). `step` is 1
///   for the first step that is applied. Use only + - * / sqrt and integer powers there: the `pow` and `cos` of a device need not match the
///   host's;
/// - optionally `invalid() const`, which says what is wrong with the options, or null: a step with such options is refused.
///
/// `Real` is the type of the master parameters: float, or double where the precision says so.
template <class O, class Real = float>
concept Optimizer =
    std::is_trivially_copyable_v<O> && detail::HasStates<O> && std::is_trivially_copyable_v<update_t<O>> &&
    detail::accepts<update_t<O>, Real&, Real, Real&, O::states>() && detail::takes_references<update_t<O>, Real, O::states>();

/// Explains, one sentence a requirement, why a type is not an optimizer. True where it is one.
template <class O, class Real = float>
consteval bool check_optimizer() {
  static_assert(std::is_trivially_copyable_v<O>,
                "zero: an optimizer is copied to the device as bytes, so it must be trivially copyable: keep its options as plain numbers");
  static_assert(detail::HasStates<O>,
                "zero: an optimizer says how many values it keeps for each element: static constexpr int states = 2; (0 or more)");
  if constexpr (detail::HasStates<O>) {
    static_assert(std::is_trivially_copyable_v<update_t<O>>,
                  "zero: what an optimizer's at(step) returns is kept on the device as bytes, so it must be trivially copyable");
    constexpr bool accepts = detail::accepts<update_t<O>, Real&, Real, Real&, O::states>();
    static_assert(
        accepts,
        "zero: an optimizer, or what its at(step) returns, must be callable as (Real& parameter, Real gradient, Real&... states) const, "
        "with as many states as its member states says and with the type of the master parameters (float unless the precision says "
        "double)");
    if constexpr (accepts) {
      static_assert(detail::takes_references<update_t<O>, Real, O::states>(),
                    "zero: an optimizer must take the parameter and the states by reference, as Real&: it changes them");
    }
  }
  return Optimizer<O, Real>;
}

/// Stochastic gradient descent without states:
///   p <- p - learning_rate (g + weight_decay p)
/// The weight decay is an L2 term of the gradient. Same semantics as torch.optim.SGD with momentum = 0.
struct SGD {
  double learning_rate = 1e-3;
  double weight_decay = 0;

  static constexpr int states = 0;

  [[nodiscard]] constexpr char const* invalid() const noexcept {
    if (!detail::finite_and_not_negative(learning_rate)) return "learning_rate must be finite and not negative";
    if (!detail::finite_and_not_negative(weight_decay)) return "weight_decay must be finite and not negative";
    return nullptr;
  }

  template <std::floating_point Real>
  ZERO_HOST_DEVICE constexpr void operator()(Real& parameter, Real gradient) const {
    Real const decayed = gradient + detail::product(static_cast<Real>(weight_decay), parameter);
    parameter -= detail::product(static_cast<Real>(learning_rate), decayed);
  }
};

/// Stochastic gradient descent with (heavy-ball or Nesterov) momentum b, one state:
///   d = g + weight_decay p
///   b <- momentum b + d
///   p <- p - learning_rate (nesterov ? d + momentum b : b)
/// Same semantics as torch.optim.SGD with dampening = 0 (Sutskever et al., ICML 2013, in the form that keeps the rate outside of b).
struct MomentumSGD {
  double learning_rate = 1e-3;
  double momentum = 0.9;
  double weight_decay = 0;
  bool nesterov = false;

  static constexpr int states = 1;

  [[nodiscard]] constexpr char const* invalid() const noexcept {
    if (!detail::finite_and_not_negative(momentum)) return "momentum must be finite and not negative";
    return SGD{learning_rate, weight_decay}.invalid();
  }

  template <std::floating_point Real>
  ZERO_HOST_DEVICE constexpr void operator()(Real& parameter, Real gradient, Real& velocity) const {
    Real const keep = static_cast<Real>(momentum);
    Real const decayed = gradient + detail::product(static_cast<Real>(weight_decay), parameter);
    velocity = detail::product(keep, velocity) + decayed;
    Real const ahead = decayed + detail::product(keep, velocity);
    parameter -= detail::product(static_cast<Real>(learning_rate), nesterov ? ahead : velocity);
  }
};

/// Adam with decoupled weight decay, two states: m and v, running means of the gradient and of its square. In step t (1 for the first):
///   p <- p (1 - learning_rate weight_decay)
///   m <- m + (1 - beta1) (g - m)
///   v <- beta2 v + (1 - beta2) g g
///   p <- p - (learning_rate / (1 - beta1^t)) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
/// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101, algorithm 2, with the schedule inside of the learning
/// rate; Kingma and Ba, "Adam", arXiv 1412.6980, algorithm 1; the last line is computed in the form of its section 2, in which the
/// corrections go into the learning rate and epsilon: one division an element. Else the same operations in the same order as
/// torch.optim.AdamW. The options are fp64 and what is constant over the elements is computed in fp64: in fp32 alone 1 - beta2 would be
/// wrong by 1e-5.
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;

  static constexpr int states = 2;

  [[nodiscard]] constexpr char const* invalid() const noexcept {
    if (!(beta1 >= 0 && beta1 < 1)) return "beta1 must be in [0, 1)";
    if (!(beta2 >= 0 && beta2 < 1)) return "beta2 must be in [0, 1)";
    if (!detail::finite_and_not_negative(epsilon)) return "epsilon must be finite and not negative";
    return SGD{learning_rate, weight_decay}.invalid();
  }

  /// One step's constants and the update of one element.
  struct Update {
    double decay;          ///< 1 - learning_rate weight_decay
    double weight;         ///< of g - m: 1 - beta1 where it is added to m, -beta1 where it is added to g
    double beta2;          ///< of the options
    double square_weight;  ///< 1 - beta2
    double epsilon;        ///< epsilon sqrt(1 - beta2^t)
    double step_size;      ///< learning_rate sqrt(1 - beta2^t) / (1 - beta1^t)

    template <std::floating_point Real>
    ZERO_HOST_DEVICE void operator()(Real& parameter, Real gradient, Real& mean, Real& square) const {
      Real const decayed = detail::product(parameter, static_cast<Real>(decay));
      Real const before = mean;
      Real const share = static_cast<Real>(weight);
      Real const base = share > 0 ? before : gradient;
      mean = base + detail::product(share, gradient - before);
      square = detail::product(square, static_cast<Real>(beta2)) +
               detail::product(detail::product(static_cast<Real>(square_weight), gradient), gradient);
      Real const root = detail::square_root(square) + static_cast<Real>(epsilon);
      parameter = decayed - detail::quotient(detail::product(static_cast<Real>(step_size), mean), root);
    }
  };

  /// What is constant over the elements in step `step` (1 for the first). Evaluated by one thread; only + - * / sqrt and integer powers.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_NO_CONTRACTION Update at(std::int64_t step) const {
    double const mean_correction = 1 - detail::integer_power(beta1, step);
    double const root_correction = detail::square_root(1 - detail::integer_power(beta2, step));
    bool const from_gradient = beta1 < 0.5;
    return Update{.decay = 1 - detail::product(learning_rate, weight_decay),
                  .weight = from_gradient ? -beta1 : 1 - beta1,
                  .beta2 = beta2,
                  .square_weight = 1 - beta2,
                  .epsilon = detail::product(epsilon, root_correction),
                  .step_size = detail::product(learning_rate, root_correction) / mean_correction};
  }
};

static_assert(Optimizer<SGD> && Optimizer<SGD, double>);
static_assert(Optimizer<MomentumSGD> && Optimizer<MomentumSGD, double>);
static_assert(Optimizer<AdamW> && Optimizer<AdamW, double>);

}  // namespace zero
