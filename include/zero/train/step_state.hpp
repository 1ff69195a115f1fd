// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The decision of a step: norm, clipping, skipping and the one factor of the gradients, made by one thread where the gradients are.

#include <cstdint>
#include <type_traits>

#include <zero/core/config.hpp>
#include <zero/train/arithmetic.hpp>
#include <zero/train/exact_sum.hpp>
#include <zero/train/optimizers.hpp>

namespace zero {

/// What a step is decided by. The same on all ranks.
struct StepRules {
  /// What the summed gradient is multiplied with to be the gradient of the loss: 1/N for a mean over N ranks, times 1/loss scale, times
  /// 1/weight: combined by the caller in fp64.
  double factor = 1;
  /// The largest L2 norm the gradient may have after the factor; longer ones are scaled down to it. 0: no clipping.
  double max_norm = 0;
  /// Leave parameters and states unchanged where a gradient is infinite or NaN, or would be as the optimizer gets it.
  bool skip_non_finite = true;
  /// The largest number of the type in which the optimizer gets the gradient.
  double largest = 1.7976931348623157e308;
};

/// A step's decision, and how often one was applied. It lives where the gradients are, is written by `decide` (one thread) and read by the
/// loop over the elements: the host need not wait for it. Plain numbers; all zero bytes are a valid start.
struct StepState {
  double norm;                     ///< L2 norm of the whole gradient after the factor, before clipping; -1 where it was not measured
  double coefficient;              ///< of clipping: 1, or max_norm / norm; 0 where the step is skipped
  double multiplier;               ///< factor times coefficient: what each gradient element is multiplied with, rounded to the master type
  std::int64_t non_finite_blocks;  ///< blocks of 128 elements with an infinite or NaN gradient
  std::int64_t applied_steps;      ///< decisions so far that said apply, this one included
  std::int64_t skipped_steps;      ///< decisions so far that said skip, this one included
  std::int64_t apply;              ///< 1: the step changes parameters and states; 0: it leaves them as they are
};

/// Decides a step from the exact sum of squares over all ranks. Order: reduce, factor, norm, clip, step. All factors are combined in fp64.
///   norm = sqrt(sum) |factor|;  coefficient = 1 if norm <= max_norm, else max_norm / norm (no epsilon);  multiplier = factor coefficient
/// An infinite or NaN gradient (or factor) gives a norm that is no number, and factors may lead out of the range of the optimizer's type: the
/// step is skipped with coefficient 0, or, where the rules say not to skip, applied (without clipping where the norm is no number).
///
/// @param state where the decision is written; its counts go on from what they were
/// @param square_sum merged over all ranks; of the gradients before the factor
template <int Limbs>
ZERO_HOST_DEVICE inline void decide(StepState& state, ExactSum<Limbs> const& square_sum, StepRules const& rules) {
  double const magnitude = rules.factor < 0 ? -rules.factor : rules.factor;
  double const norm = detail::product(square_sum.root(), magnitude);
  bool const finite = square_sum.non_finite() == 0 && detail::is_finite(norm);
  double const clipping = finite && rules.max_norm > 0 && norm > rules.max_norm ? rules.max_norm / norm : 1.0;
  // No element is larger than the norm: before the factors, and after them.
  bool const in_range = square_sum.root() <= rules.largest && detail::product(norm, clipping) <= rules.largest &&
                        detail::product(magnitude, clipping) <= rules.largest;
  bool const apply = (finite && in_range) || !rules.skip_non_finite;
  double const coefficient = apply ? clipping : 0.0;
  state.norm = norm;
  state.coefficient = coefficient;
  // Not factor * 0: an infinite factor must not become NaN here.
  state.multiplier = apply ? detail::product(rules.factor, coefficient) : 0.0;
  state.non_finite_blocks = square_sum.non_finite();
  state.apply = apply ? 1 : 0;
  state.applied_steps += apply ? 1 : 0;
  state.skipped_steps += apply ? 0 : 1;
}

/// Decides a step whose gradients nobody measured, because the rules neither clip nor skip: it is applied with the factor alone; the norm
/// is -1.
ZERO_HOST_DEVICE inline void decide(StepState& state, StepRules const& rules) {
  state.norm = -1;
  state.coefficient = 1;
  state.multiplier = rules.factor;
  state.non_finite_blocks = 0;
  state.apply = 1;
  ++state.applied_steps;
}

/// An optimizer's own part of a step: how many steps it has applied, and the constants of the current one. Several optimizers can follow
/// one decision. It lives beside the optimizer's states; all zero bytes are a valid start.
template <class O>
struct UpdateState {
  std::int64_t applied_steps;  ///< steps this optimizer has applied, the current one included
  std::int64_t skipped_steps;  ///< steps it was told to skip
  update_t<O> update;          ///< of step number `applied_steps`

  static_assert(std::is_trivially_copyable_v<update_t<O>>);
};

/// Follows a decision, by one thread before the loop over the elements: counts, and where the step is applied evaluates
/// `optimizer.at(step)`.
template <class O>
ZERO_HOST_DEVICE inline void advance(UpdateState<O>& state, O const& optimizer, StepState const& decision) {
  if (decision.apply == 0) {
    ++state.skipped_steps;
    return;
  }
  ++state.applied_steps;
  state.update = update_at(optimizer, state.applied_steps);
}

}  // namespace zero
