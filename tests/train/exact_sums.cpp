// SPDX-License-Identifier: Apache-2.0
/// @file
/// Integer gradients, whose sums are exact in any order: every stage, number of ranks, micro-batches and precision gives the bits of the same
/// optimizer applied unsharded to the exact sum.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/exact_passes.hpp"
#include "support/odd_layouts.hpp"
#include "support/ranks.hpp"
#include "support/reference.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace zero::test;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::Subject;
using zero::Unit;

struct Plan {
  PrecisionName precision;
  int ranks;
  ParameterLayout layout;
  std::vector<Passes> steps;
  AnyOptimizer optimizer = AnyOptimizer::make_sgd(0.125);
  zero::StepOptions options = {};
};

/// Runs the plan at one stage and compares with the reference after each step.
void check_stage(Plan const& plan, zero::test::StageNumber stage, std::uint64_t variation) {
  struct Seen {
    RankValues gradients, parameters, masters, first, second, whole;
    zero::StepReport report;
  };
  std::vector<std::vector<Seen>> seen(plan.steps.size(), std::vector<Seen>(static_cast<std::size_t>(plan.ranks)));
  zero::InitialValue const initial = zero::InitialValue::normal(0, 1);

  Setting setting{.precision = plan.precision, .stage = stage, .ranks = plan.ranks};
  setting.model.optimizer = plan.optimizer;
  setting.model.poison_released = variation % 2 != 0;
  std::vector<Passes> steps = plan.steps;
  for (Passes& passes : steps) {
    passes.tell_last = variation / 2 % 2 != 0;
    passes.overwrite = variation / 4 % 2 != 0;
    passes.backward_gathers = variation / 8 % 2 != 0;
  }
  run_models(setting, plan.layout, [&](Rank rank) {
    rank.model.initialize(7, initial);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      Seen& mine = seen[i][static_cast<std::size_t>(rank.rank)];
      run_passes(rank, steps[i]);
      auto const decision = rank.model.reduce(plan.options);
      mine.gradients = RankValues(rank.model, Kept::gradients);
      rank.model.apply(decision);
      rank.model.publish();
      mine.report = decision.wait();
      mine.parameters = RankValues(rank.model, Kept::parameters);
      mine.masters = RankValues(rank.model, Kept::masters);
      mine.first = RankValues(rank.model, Kept::first_state);
      mine.second = RankValues(rank.model, Kept::second_state);
      mine.whole = RankValues::whole(rank.model);
    }
  });

  INFO(stage_name(stage), ", ", name(plan.precision), ", ", plan.ranks, " ranks, variation ", variation);
  Reference reference(plan.layout, plan.precision, plan.ranks, plan.optimizer);
  reference.initialize(7, initial);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    INFO("step ", i, " of ", plan.steps[i].micro_batches, " micro-batches");
    reference.add(plan.steps[i]);
    REQUIRE(reference.largest_sum() <= exact_limit(plan.precision));
    std::int64_t faults = 0;
    std::vector<RankValues> gradients;
    for (Seen const& mine : seen[i]) gradients.push_back(mine.gradients);
    Values sum = together(plan.layout, gradients, false, faults);
    for (auto& parameter : sum) {
      for (double& value : parameter) value /= wire_factor(plan.precision, plan.ranks);
    }
    CHECK(faults == 0);
    CHECK(differences(sum, reference.sums()) == 0);
    zero::StepReport const expected = reference.step(plan.options);
    Values const parameters = reference.parameters();
    for (Seen const& mine : seen[i]) {
      CHECK(mine.report.applied);
      CHECK(mine.report.norm == expected.norm);
      CHECK(mine.report.coefficient == expected.coefficient);
      CHECK(mine.report.applied_steps == expected.applied_steps);
      CHECK(differences(mine.parameters, parameters) == 0);
      CHECK(differences(mine.masters, reference.masters()) == 0);
      CHECK(differences(mine.first, reference.first_states()) == 0);
      CHECK(differences(mine.second, reference.second_states()) == 0);
      CHECK(differences(mine.whole.values, parameters) == 0);
    }
  }
}

}  // namespace

TEST_CASE("exact sums of 1, 2 and 3 micro-batches are the unsharded ones, at every stage and precision, on odd layouts") {
  int const ranks = zero::test::ranks();
  std::uint64_t variation = static_cast<std::uint64_t>(ranks);
  for (PrecisionName precision : precisions()) {
    for (std::int64_t micro_batches : {1, 2, 3}) {
      std::uint64_t const seed =
          100 * static_cast<std::uint64_t>(precision) + 10 * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(micro_batches);
      Plan const plan{precision,
                      ranks,
                      odd_layout(seed),
                      {integer_passes(seed, ranks, micro_batches, false), integer_passes(seed + 1, ranks, micro_batches, true)}};
      for (int stage = 0; stage < stage_count; ++stage) check_stage(plan, stage, variation += 7);
    }
  }
}

TEST_CASE("field cases 31, 32: 128 micro-batches count once each, on one rank too, where buffers are shared between units") {
  int const ranks = zero::test::ranks();
  std::uint64_t variation = 0;
  for (PrecisionName precision : precisions()) {
    Plan const plan{precision, ranks, small_layout(), {integer_passes(5, ranks, 128, true)}};
    for (int stage = 0; stage < stage_count; ++stage) check_stage(plan, stage, variation += 5);
  }
}

TEST_CASE("field case 35: the number of micro-batches may change from step to step, and nobody is told") {
  int const ranks = zero::test::ranks();
  for (int stage = 0; stage < stage_count; ++stage) {
    Plan const plan{PrecisionName::bf16,
                    ranks,
                    odd_layout(77),
                    {integer_passes(1, ranks, 1, true), integer_passes(2, ranks, 3, true), integer_passes(3, ranks, 2, true),
                     integer_passes(4, ranks, 0, false), integer_passes(5, ranks, 1, true)}};
    for (std::uint64_t variation : {0u, 4u}) check_stage(plan, stage, variation);  // `last` is never said
  }
}

TEST_CASE("field case 45: an optimizer that is not linear sees only the final gradient") {
  int const ranks = zero::test::ranks();
  Plan const plan{PrecisionName::fp32,
                  ranks,
                  odd_layout(78),
                  {integer_passes(1, ranks, 3, true), integer_passes(2, ranks, 2, false)},
                  AnyOptimizer::make_square(0.125)};
  for (int stage = 0; stage < stage_count; ++stage) check_stage(plan, stage, static_cast<std::uint64_t>(stage));
}

TEST_CASE("field case 30: AdamW with clipping, factors for micro-batches and loss scale: the unsharded bits") {
  int const ranks = zero::test::ranks();
  for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16, PrecisionName::fp64})) {
    Plan const plan{precision,
                    ranks,
                    odd_layout(79),
                    {integer_passes(1, ranks, 2, false), integer_passes(2, ranks, 2, false), integer_passes(3, ranks, 2, false)},
                    AnyOptimizer::make_adamw(0.01),
                    {.max_norm = 0.37, .micro_batches = 2, .loss_scale = 1024}};
    for (int stage = 0; stage < stage_count; ++stage) check_stage(plan, stage, static_cast<std::uint64_t>(stage + 3));
  }
}

TEST_CASE("field cases 37, 42: Partial gradients are reduced once a step and unit, others at each hand-over") {
  int const ranks = zero::test::ranks();
  std::int64_t const micro_batches = 3;
  ParameterLayout const layout = small_layout();  // three trainable segments, one of them tied
  for (int stage = 0; stage < stage_count; ++stage) {
    for (bool tell_last : {false, true}) {
      std::vector<std::vector<std::int64_t>> calls(static_cast<std::size_t>(ranks));
      run_models({.stage = stage, .ranks = ranks}, layout, [&](Rank rank) {
        rank.model.initialize(7, zero::InitialValue::normal(0, 1));
        Passes passes = integer_passes(1, ranks, 1, false);
        for (std::int64_t m = 0; m < micro_batches; ++m) {
          passes.tell_last = tell_last && m + 1 == micro_batches;
          rank.traffic.reset();
          run_passes(rank, passes);
          calls[static_cast<std::size_t>(rank.rank)].push_back(rank.traffic.calls(Subject::gradients));
        }
        rank.traffic.reset();
        static_cast<void>(rank.model.step({}).wait());
        calls[static_cast<std::size_t>(rank.rank)].push_back(rank.traffic.calls(Subject::gradients));
      });
      INFO(stage_name(stage), ", last is ", tell_last ? "told" : "not told");
      std::int64_t const each = ranks > 1 ? 3 : 0;
      bool const partial = accumulates_partial(stage);
      // Where gradients accumulate Sharded and states are Replicated, the step gathers the sums.
      std::int64_t const in_step = partial ? (tell_last ? 0 : each) : accumulates_sharded(stage) && !shards_states(stage) ? each : 0;
      std::vector<std::int64_t> const expected{partial ? 0 : each, partial ? 0 : each, partial && !tell_last ? 0 : each, in_step};
      for (auto const& mine : calls) CHECK(mine == expected);
    }
  }
}

TEST_CASE("field cases 38, 39: small gradients are lost in a bf16 accumulator and kept in an fp32 one, at every stage alike") {
  int const ranks = zero::test::ranks();
  ParameterLayout layout;
  layout.add(layout.add_unit("u"), "u.w", {5});
  for (PrecisionName precision : precisions_of({PrecisionName::bf16, PrecisionName::bf16_fp32})) {
    for (int stage = 0; stage < stage_count; ++stage) {
      std::vector<RankValues> sums(static_cast<std::size_t>(ranks));
      run_models({.precision = precision, .stage = stage, .ranks = ranks}, layout, [&](Rank rank) {
        rank.model.initialize(7, zero::InitialValue::constant(0));
        Passes passes;
        passes.micro_batches = 65;
        // Only rank 0 has gradients: 1, then 64 times 2^-9, which is less than half of bf16's spacing at 1.
        passes.rule = [](int r, std::int64_t m, Unit, ParameterId) { return GradientRule::constant(r != 0 ? 0.0 : m == 0 ? 1.0 : 0x1p-9); };
        run_passes(rank, passes);
        rank.model.reduce({});
        sums[static_cast<std::size_t>(rank.rank)] = RankValues(rank.model, Kept::gradients);
        rank.model.publish();
      });
      std::int64_t faults = 0;
      Values const sum = together(layout, sums, true, faults);
      INFO(stage_name(stage), ", ", name(precision));
      CHECK(faults == 0);
      for (double value : sum[0]) CHECK(value == (precision == PrecisionName::bf16 ? 1.0 : 1.125));
    }
  }
}
