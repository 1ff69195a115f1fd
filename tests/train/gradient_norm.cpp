// SPDX-License-Identifier: Apache-2.0
/// @file
/// The norm of the whole gradient and the decision of a step, through a sharded model: the same bits for every stage and number of ranks.

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/odd_layouts.hpp"
#include "support/reference.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace zero::test;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::StepOptions;
using zero::StepReport;
using zero::Unit;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr int rank_counts[] = {1, 2, 3, 5, 8};

/// Passes in which only rank `adder` has a gradient that is not 0.
Passes passes_of(int adder, GradientRule rule) {
  Passes passes;
  passes.rule = [=](int rank, std::int64_t, Unit, ParameterId) { return rank == adder ? rule : GradientRule::constant(0); };
  return passes;
}

/// The reports of all ranks after one step.
std::vector<StepReport> reports_of(Setting const& setting, ParameterLayout const& layout, Passes const& passes,
                                   StepOptions const& options) {
  std::vector<StepReport> result(static_cast<std::size_t>(setting.ranks));
  run_models(setting, layout, [&](Rank rank) {
    rank.model.initialize(1, zero::InitialValue::normal(0, 1));
    run_passes(rank, passes);
    result[static_cast<std::size_t>(rank.rank)] = rank.model.step(options).wait();
  });
  return result;
}

/// Trainable parameters that one unit uses only: ties count once, but are added to by each unit.
ParameterLayout untied_layout() {
  ParameterLayout layout;
  Unit const a = layout.add_unit("a");
  Unit const b = layout.add_unit("b");
  layout.add(a, "a.w", {7, 31});
  layout.add(a, "a.frozen", {17}, {.trainable = false});
  layout.add(a, "a.scalar", {});
  layout.add(a, "a.empty", {0});
  layout.add(b, "b.w", {1031});
  layout.add(b, "b.v", {2});
  return layout;
}

}  // namespace

TEST_CASE("field cases 20, 24, 25, 28: a gradient of ones has the norm sqrt(trainable elements), each counted once, exactly") {
  ParameterLayout const layout = untied_layout();
  double const expected = std::sqrt(static_cast<double>(layout.trainable_elements()));
  for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16, PrecisionName::half, PrecisionName::fp64})) {
    for (int ranks : rank_counts) {
      for (int stage = 0; stage < stage_count; ++stage) {
        INFO(name(precision), ", ", ranks, " ranks, ", stage_name(stage));
        auto const reports = reports_of({.precision = precision, .stage = stage, .ranks = ranks}, layout,
                                        passes_of(ranks - 1, GradientRule::constant(1)), {.mean_over_ranks = false});
        for (StepReport const& report : reports) CHECK(report.norm == expected);
      }
    }
  }
}

TEST_CASE("field cases 21, 22, 39: equal summed gradients have the same norm to the bit, for every stage and number of ranks") {
  ParameterLayout const layout = odd_layout(4);
  for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16, PrecisionName::fp64})) {
    double expected = -1;
    for (int ranks : rank_counts) {
      for (int stage = 0; stage < stage_count; ++stage) {
        INFO(name(precision), ", ", ranks, " ranks, ", stage_name(stage));
        auto const reports = reports_of({.precision = precision, .stage = stage, .ranks = ranks}, layout,
                                        passes_of(ranks / 2, GradientRule::noise(5, 1, 0)), {.max_norm = 0.1, .mean_over_ranks = false});
        if (expected < 0) expected = reports[0].norm;
        CHECK(expected > 0.1);
        for (StepReport const& report : reports) {
          CHECK(report.norm == expected);
          CHECK(report.coefficient == 0.1 / expected);  // field case 29: the norm is that before clipping
        }
      }
    }
  }
}

TEST_CASE("field case 19: norms of nothing, of denormals, of 1e19, of infinity and NaN are defined") {
  ParameterLayout const layout = untied_layout();
  double const root = std::sqrt(static_cast<double>(layout.trainable_elements()));
  double const denormal = static_cast<double>(std::numeric_limits<float>::denorm_min());
  double const large = static_cast<double>(1e19f);
  for (int ranks : {1, 3}) {
    for (int stage = 0; stage < stage_count; ++stage) {
      INFO(ranks, " ranks, ", stage_name(stage));
      auto const report = [&](double value, bool skip = true) {
        return reports_of({.stage = stage, .ranks = ranks}, layout, passes_of(ranks - 1, GradientRule::constant(value)),
                          {.max_norm = 1, .mean_over_ranks = false, .skip_non_finite = skip})[0];
      };
      StepReport const nothing = report(0);
      CHECK(nothing.norm == 0);
      CHECK(nothing.coefficient == 1);
      CHECK(nothing.applied);
      CHECK(report(denormal).norm == doctest::Approx(denormal * root).epsilon(1e-14));
      CHECK(report(denormal).norm > 0);
      StepReport const huge = report(large);  // its square is no fp32 number
      CHECK(huge.norm == doctest::Approx(large * root).epsilon(1e-14));
      CHECK(huge.coefficient == 1 / huge.norm);
      CHECK(huge.applied);
      for (double value : {infinity, -infinity, not_a_number}) {
        StepReport const bad = report(value);
        CHECK(!zero::detail::is_finite(bad.norm));
        CHECK(bad.coefficient == 0);
        CHECK(!bad.applied);
        CHECK(bad.skipped_steps == 1);
        StepReport const told = report(value, false);
        CHECK(told.applied);
        CHECK(told.coefficient == 1);
      }
    }
  }
}

TEST_CASE("a step that neither clips nor skips measures nothing") {
  for (int stage : {stage0, stage3}) {
    auto const reports =
        reports_of({.stage = stage}, untied_layout(), passes_of(0, GradientRule::constant(not_a_number)), {.skip_non_finite = false});
    for (StepReport const& report : reports) {
      CHECK(report.norm == -1);
      CHECK(report.applied);
    }
  }
}

TEST_CASE("field case 18: what padding and gaps hold is in no norm and no flag") {
  ParameterLayout const layout = untied_layout();
  double const expected = std::sqrt(static_cast<double>(layout.trainable_elements()));
  for (int ranks : rank_counts) {
    for (int stage = 0; stage < stage_count; ++stage) {
      for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16_fp32})) {
        INFO(ranks, " ranks, ", stage_name(stage), ", ", name(precision));
        // Nothing is zeroed: what the kernels do not overwrite is what the memory resource gave, NaN.
        Passes passes = passes_of(0, GradientRule::constant(1));
        passes.overwrite = true;
        Setting setting{.precision = precision, .stage = stage, .ranks = ranks};
        setting.model.poison_released = true;
        for (StepReport const& report : reports_of(setting, layout, passes, {.max_norm = 1, .mean_over_ranks = false})) {
          CHECK(report.norm == expected);
          CHECK(report.applied);
        }
      }
    }
  }
}

TEST_CASE("field cases 73, 74, 94: infinity on one rank makes all ranks skip; nothing moves; the next step is the first") {
  ParameterLayout const layout = small_layout();  // fewer elements than ranks in some segments: ranks without an own element take part
  zero::InitialValue const initial = zero::InitialValue::normal(0, 1);
  StepOptions const options{.max_norm = 2};
  for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16})) {
    for (int ranks : {1, 3, 8}) {
      Passes const good = passes_of(0, GradientRule::integers(3, 2, 3));
      Passes bad = good;
      bad.use = [ranks](int rank, std::int64_t, Unit) { return rank == ranks - 1 ? Use::adds : Use::nothing; };
      bad.rule = [&layout](int, std::int64_t, Unit, ParameterId id) {
        return GradientRule::constant(layout.name(id) == "b.scale" ? infinity : 1.0);
      };
      Reference reference(layout, precision, ranks, AnyOptimizer::make_adamw(0.01));
      reference.initialize(1, initial);
      Values const masters_before = reference.masters();
      Values const parameters_before = reference.parameters();
      reference.add(good);
      StepReport const expected = reference.step(options);
      for (int stage = 0; stage < stage_count; ++stage) {
        INFO(name(precision), ", ", ranks, " ranks, ", stage_name(stage));
        std::int64_t moved = 0;
        std::int64_t wrong = 0;
        std::vector<StepReport> skipped(static_cast<std::size_t>(ranks)), applied(static_cast<std::size_t>(ranks));
        std::vector<std::int64_t> moved_of(static_cast<std::size_t>(ranks)), wrong_of(static_cast<std::size_t>(ranks));
        Setting setting{.precision = precision, .stage = stage, .ranks = ranks};
        setting.model.optimizer = AnyOptimizer::make_adamw(0.01);
        Values const zeros = empty_values(layout);
        run_models(setting, layout, [&](Rank rank) {
          auto const me = static_cast<std::size_t>(rank.rank);
          rank.model.initialize(1, initial);
          for (int i = 0; i < 2; ++i) {
            run_passes(rank, bad);
            skipped[me] = rank.model.step(options).wait();
            moved_of[me] += differences(RankValues(rank.model, Kept::parameters), parameters_before) +
                            differences(RankValues(rank.model, Kept::masters), masters_before) +
                            differences(RankValues(rank.model, Kept::first_state), zeros) +
                            differences(RankValues(rank.model, Kept::second_state), zeros);
          }
          run_passes(rank, good);
          applied[me] = rank.model.step(options).wait();
          wrong_of[me] = differences(RankValues(rank.model, Kept::parameters), reference.parameters()) +
                         differences(RankValues(rank.model, Kept::masters), reference.masters()) +
                         differences(RankValues(rank.model, Kept::first_state), reference.first_states()) +
                         differences(RankValues(rank.model, Kept::second_state), reference.second_states());
        });
        for (std::int64_t n : moved_of) moved += n;
        for (std::int64_t n : wrong_of) wrong += n;
        CHECK(moved == 0);
        CHECK(wrong == 0);
        for (StepReport const& report : skipped) {
          CHECK(!report.applied);
          CHECK(report.coefficient == 0);
          CHECK(report.skipped_steps == 2);
          CHECK(report.applied_steps == 0);
        }
        for (StepReport const& report : applied) {
          CHECK(report.applied);
          CHECK(report.norm == expected.norm);
          CHECK(report.skipped_steps == 2);
          CHECK(report.applied_steps == 1);
        }
      }
    }
  }
}

TEST_CASE("field case 30: the clipped gradient has the norm it is clipped to") {
  ParameterLayout const layout = odd_layout(6);
  zero::InitialValue const initial = zero::InitialValue::constant(0);
  for (int ranks : {1, 2, 3}) {
    for (int stage = 0; stage < stage_count; ++stage) {
      std::vector<RankValues> masters(static_cast<std::size_t>(ranks));
      Setting setting{.stage = stage, .ranks = ranks};
      setting.model.optimizer = AnyOptimizer::make_sgd(1);
      run_models(setting, layout, [&](Rank rank) {
        rank.model.initialize(1, initial);
        Passes passes;
        passes.rule = [](int r, std::int64_t, Unit, ParameterId) { return GradientRule::noise(static_cast<std::uint64_t>(r), 1, 0); };
        run_passes(rank, passes);
        static_cast<void>(rank.model.step({.max_norm = 0.7}).wait());
        masters[static_cast<std::size_t>(rank.rank)] = RankValues(rank.model, Kept::masters);
      });
      std::int64_t faults = 0;
      double squares = 0;
      for (auto const& parameter : together(layout, masters, false, faults)) {
        for (double value : parameter) squares += value * value;
      }
      INFO(ranks, " ranks, ", stage_name(stage));
      CHECK(faults == 0);
      CHECK(std::sqrt(squares) == doctest::Approx(0.7).epsilon(1e-6));
    }
  }
}
