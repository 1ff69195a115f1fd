// SPDX-License-Identifier: Apache-2.0
#include <zero/train/step_state.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace {

static_assert(std::is_trivially_copyable_v<zero::StepState> && std::is_trivially_default_constructible_v<zero::StepState>);
static_assert(std::is_trivially_copyable_v<zero::UpdateState<zero::AdamW>>);

zero::ExactSum<20> sum_of(double value) {
  zero::ExactSum<20> sum{};
  sum.add(value);
  return sum;
}

zero::StepState decided(double square_sum, zero::StepRules const& rules) {
  zero::StepState state{};
  zero::decide(state, sum_of(square_sum), rules);
  return state;
}

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

double const infinity = std::numeric_limits<double>::infinity();
double const nan_value = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("norm_is_of_the_mean_gradient_and_before_clipping: field case 29") {
  auto const state = decided(64, {.factor = 0.25, .max_norm = 0.5});
  CHECK(state.norm == 2);
  CHECK(state.coefficient == 0.25);
  CHECK(state.multiplier == 0.0625);
  CHECK(state.apply == 1);
}

TEST_CASE("clips_by_the_norm_and_not_by_its_square: field case 30") {
  for (double norm : {0.75, 3.0, 1e10, 1e-10}) {
    for (double max_norm : {0.7, 1e-12, 2.0}) {
      auto const state = decided(norm * norm, {.max_norm = max_norm});
      double const clipped = norm * state.multiplier;
      CHECK(clipped == doctest::Approx(norm < max_norm ? norm : max_norm).epsilon(1e-14));
    }
  }
}

TEST_CASE("does_not_touch_what_is_short_enough") {
  CHECK(decided(4, {.max_norm = 2}).coefficient == 1);
  CHECK(decided(4, {.max_norm = 2.0000001}).coefficient == 1);
  CHECK(decided(4, {.max_norm = 0}).coefficient == 1);
  CHECK(decided(1e70, {.max_norm = 0}).coefficient == 1);
  CHECK(decided(4, {.factor = 1.0 / 3, .max_norm = 0}).multiplier == 1.0 / 3);
}

TEST_CASE("a_norm_of_zero_is_a_step_like_any_other: field case 19") {
  auto const state = decided(0, {.factor = 0.5, .max_norm = 1});
  CHECK(state.norm == 0);
  CHECK(state.coefficient == 1);
  CHECK(state.apply == 1);
  CHECK(decided(0x1p-298, {.max_norm = 1}).norm == 0x1p-149);
}

TEST_CASE("an_infinite_or_nan_gradient_skips_the_step_with_defined_numbers: field case 19") {
  for (double bad : {infinity, nan_value}) {
    for (double max_norm : {0.0, 1.0}) {
      zero::StepState state{};
      state.applied_steps = 7;
      zero::decide(state, sum_of(bad), {.factor = 0.5, .max_norm = max_norm});
      CHECK(state.apply == 0);
      CHECK(bits(state.coefficient) == bits(0.0));
      CHECK(bits(state.multiplier) == bits(0.0));
      CHECK(bits(state.norm) == bits(infinity));
      CHECK(state.non_finite_blocks == 1);
      CHECK(state.applied_steps == 7);
      CHECK(state.skipped_steps == 1);
    }
  }
}

TEST_CASE("a_factor_that_is_no_number_skips_too") {
  for (double bad : {infinity, -infinity, nan_value}) {
    CHECK(decided(4, {.factor = bad, .max_norm = 1}).apply == 0);
    CHECK(bits(decided(4, {.factor = bad, .max_norm = 1}).multiplier) == bits(0.0));
  }
}

TEST_CASE("can_be_told_not_to_skip") {
  auto const state = decided(infinity, {.factor = 0.5, .max_norm = 1, .skip_non_finite = false});
  CHECK(state.apply == 1);
  CHECK(state.coefficient == 1);
  CHECK(state.multiplier == 0.5);
  CHECK(state.non_finite_blocks == 1);
}

TEST_CASE("without_a_measurement_the_factor_is_all") {
  zero::StepState state{};
  zero::decide(state, {.factor = 0.125});
  CHECK(state.norm == -1);
  CHECK(state.multiplier == 0.125);
  CHECK(state.apply == 1);
  CHECK(state.applied_steps == 1);
}

TEST_CASE("factors_are_combined_in_fp64") {
  // 1/3 times a coefficient of 1/7: fp32 factors multiplied in fp32 would be off.
  auto const state = decided(49 * 9, {.factor = 1.0 / 3, .max_norm = 1});
  CHECK(state.norm == 21 * (1.0 / 3));
  CHECK(state.multiplier == (1.0 / 3) * (1 / (21 * (1.0 / 3))));
}

TEST_CASE("skipped_steps_do_not_count_for_the_optimizer: field case 94") {
  zero::AdamW const optimizer{.learning_rate = 0.5, .beta1 = 0.9, .beta2 = 0.99};
  zero::StepState decision{};
  zero::UpdateState<zero::AdamW> update{};
  for (double square_sum : {1.0, infinity, nan_value, 4.0}) {
    zero::decide(decision, sum_of(square_sum), {});
    zero::advance(update, optimizer, decision);
  }
  CHECK(decision.applied_steps == 2);
  CHECK(decision.skipped_steps == 2);
  CHECK(update.applied_steps == 2);
  CHECK(update.skipped_steps == 2);
  CHECK(update.update.step_size == optimizer.at(2).step_size);
  CHECK(update.update.step_size != optimizer.at(4).step_size);
}

TEST_CASE("several_optimizers_follow_one_decision") {
  zero::StepState decision{};
  zero::UpdateState<zero::SGD> one{};
  zero::UpdateState<zero::AdamW> other{};
  other.applied_steps = 41;
  zero::decide(decision, sum_of(1), {});
  zero::advance(one, zero::SGD{.learning_rate = 0.5}, decision);
  zero::advance(other, zero::AdamW{}, decision);
  CHECK(one.applied_steps == 1);
  CHECK(one.update.learning_rate == 0.5);
  CHECK(other.applied_steps == 42);
}
