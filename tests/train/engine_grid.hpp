// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The core's exact, family, accounting and norm tests over an engine whose sums have the order of the threads, at six stages and in two
/// precisions: a program includes this and calls `check_grid_...<Engine>(ranks)` in its test cases. What is expected is computed without ranks, or
/// over threads, whose own grid is larger (exact_sums.cpp, families.cpp, accounting.cpp, gradient_norm.cpp).

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/accounts.hpp"
#include "support/engine.hpp"
#include "support/exact_passes.hpp"
#include "support/odd_layouts.hpp"
#include "support/reference.hpp"

namespace zero::test {

inline constexpr PrecisionName grid_precisions[] = {PrecisionName::fp32, PrecisionName::bf16};

/// Integer gradients: the bits of the same optimizer applied unsharded to the exact sums.
template <Engine E>
void check_grid_exact_sums(int ranks) {
  StepOptions const options{.max_norm = 0.37, .micro_batches = 2, .loss_scale = 1024};
  InitialValue const initial = InitialValue::normal(0, 1);
  std::uint64_t variation = static_cast<std::uint64_t>(ranks);
  for (PrecisionName const precision : grid_precisions) {
    for (std::int64_t const micro_batches : {1, 2}) {
      std::uint64_t const seed =
          100 * static_cast<std::uint64_t>(precision) + 10 * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(micro_batches);
      ParameterLayout const layout = odd_layout(seed);
      std::vector<Passes> const steps{integer_passes(seed, ranks, micro_batches, false),
                                      integer_passes(seed + 1, ranks, micro_batches, true)};
      struct Step {
        Values sums, parameters, masters, first, second;
        StepReport report;
      };
      std::vector<Step> expected;
      Reference reference(layout, precision, ranks, AnyOptimizer::make_adamw(0.01));
      reference.initialize(7, initial);
      for (Passes const& passes : steps) {
        reference.add(passes);
        REQUIRE(reference.largest_sum() <= exact_limit(precision));
        Step& step = expected.emplace_back();
        step.sums = reference.sums();
        step.report = reference.step(options);
        step.parameters = reference.parameters();
        step.masters = reference.masters();
        step.first = reference.first_states();
        step.second = reference.second_states();
      }
      for (StageNumber const stage : E::Stages::all) {
        variation += 7;
        Setting setting{.precision = precision, .stage = stage, .ranks = ranks, .delay_seed = variation % 3};
        if (variation % 2 != 0) setting.streams = StreamMode::two_workers;
        setting.model.optimizer = AnyOptimizer::make_adamw(0.01);
        run_models_on<E>(setting, layout, [&](auto const& rank) {
          INFO(stage_name(stage), ", ", name(precision), ", ", micro_batches, " micro-batches, rank ", rank.rank, " of ", ranks);
          rank.model.initialize(7, initial);
          for (std::size_t i = 0; i < steps.size(); ++i) {
            Passes passes = steps[i];
            passes.tell_last = variation / 2 % 2 != 0;
            passes.overwrite = variation / 4 % 2 != 0;
            passes.backward_gathers = variation / 8 % 2 != 0;
            run_passes(rank, passes);
            auto const decision = rank.model.reduce(options);
            CHECK(differences(RankValues(rank.model, Kept::gradients), expected[i].sums) == 0);
            rank.model.apply(decision);
            rank.model.publish();
            StepReport const report = decision.wait();
            CHECK(report.applied);
            CHECK(report.norm == expected[i].report.norm);
            CHECK(report.coefficient == expected[i].report.coefficient);
            CHECK(differences(RankValues(rank.model, Kept::parameters), expected[i].parameters) == 0);
            CHECK(differences(RankValues(rank.model, Kept::masters), expected[i].masters) == 0);
            CHECK(differences(RankValues(rank.model, Kept::first_state), expected[i].first) == 0);
            CHECK(differences(RankValues(rank.model, Kept::second_state), expected[i].second) == 0);
          }
          rank.meet();
          CHECK(differences(RankValues::whole(rank.model).values, expected.back().parameters) == 0);
        });
      }
    }
  }
}

/// What a run with sums that are rounded leaves on one rank.
struct Rounded {
  RankValues whole, masters, first, second;
  std::vector<std::uint64_t> reports;
};

template <class D>
Rounded train_rounded(EngineRank<D> const& rank, std::int64_t micro_batches) {
  Rounded result;
  rank.model.initialize(11, InitialValue::normal(0, 0.3f));
  for (int step = 0; step < 6; ++step) {
    Passes passes;
    passes.micro_batches = micro_batches;
    passes.rule = noise_of_step(step);
    run_passes(rank, passes);
    StepReport const report = rank.model.step({.max_norm = 0.5}).wait();
    result.reports.push_back(std::bit_cast<std::uint64_t>(report.norm));
    result.reports.push_back(std::bit_cast<std::uint64_t>(report.coefficient));
    CHECK(report.applied);
    CHECK(report.coefficient < 1);
  }
  result.masters = RankValues(rank.model, Kept::masters);
  result.first = RankValues(rank.model, Kept::first_state);
  result.second = RankValues(rank.model, Kept::second_state);
  rank.meet();
  result.whole = RankValues::whole(rank.model);
  return result;
}

/// Noise: every stage gives the bits of the threads, which are those of its family.
template <Engine E>
void check_grid_families(int ranks) {
  ParameterLayout const layout = tied_layout();
  struct Expected {
    Values parameters, masters, first, second;
    std::vector<std::uint64_t> reports;
  };
  for (PrecisionName const precision : grid_precisions) {
    for (std::int64_t const micro_batches : {1, 2}) {
      INFO(name(precision), ", ", micro_batches, " micro-batches, ", ranks, " ranks");
      auto const setting_of = [&](StageNumber stage) {
        Setting setting{.precision = precision, .stage = stage, .ranks = ranks};
        setting.model.optimizer = AnyOptimizer::make_adamw(0.01);
        return setting;
      };
      auto const over_threads = [&](StageNumber stage) {
        std::vector<RankValues> masters(static_cast<std::size_t>(ranks)), first(masters), second(masters);
        Expected result;
        run_models_on<ThreadEngine>(setting_of(stage), layout, [&](auto const& rank) {
          Rounded mine = train_rounded(rank, micro_batches);
          auto const me = static_cast<std::size_t>(rank.rank);
          masters[me] = mine.masters;
          first[me] = mine.first;
          second[me] = mine.second;
          if (rank.rank > 0) return;
          result.parameters = mine.whole.values;
          result.reports = mine.reports;
        });
        std::int64_t faults = 0;
        result.masters = together(layout, masters, false, faults);
        result.first = together(layout, first, false, faults);
        result.second = together(layout, second, false, faults);
        CHECK(faults == 0);
        return result;
      };
      Expected const partial = over_threads(stage0);
      Expected const reduced = over_threads(stage2);
      // With several micro-batches the families differ, or the data prove nothing.
      CHECK((differences(partial.parameters, reduced.parameters) == 0) == (micro_batches == 1));
      CHECK((partial.reports == reduced.reports) == (micro_batches == 1));
      int runs = 0;
      for (StageNumber const stage : E::Stages::all) {
        Expected const& expected = accumulates_partial(stage) ? partial : reduced;
        Setting setting = setting_of(stage);
        setting.streams = ++runs % 2 == 0 ? StreamMode::calling : StreamMode::two_workers;
        setting.delay_seed = static_cast<std::uint64_t>(runs % 3);
        run_models_on<E>(setting, layout, [&](auto const& rank) {
          INFO(stage_name(stage), ", rank ", rank.rank);
          Rounded const mine = train_rounded(rank, micro_batches);
          CHECK(mine.reports == expected.reports);
          CHECK(differences(mine.whole.values, expected.parameters) == 0);
          CHECK(differences(mine.masters, expected.masters) == 0);
          CHECK(differences(mine.first, expected.first) == 0);
          CHECK(differences(mine.second, expected.second) == 0);
        });
      }
    }
  }
}

/// Bytes received and held are the planned ones; at one rank there are neither bytes nor calls.
template <Engine E>
void check_grid_accounting(int ranks) {
  std::uint64_t variation = 0;
  for (PrecisionName const precision : grid_precisions) {
    for (StageNumber const stage : E::Stages::all) {
      for (StreamMode const mode : {StreamMode::calling, StreamMode::two_workers}) {
        ++variation;
        Schedule schedule;
        schedule.micro_batches = 1 + static_cast<std::int64_t>(variation / 2 % 2);
        schedule.inference_passes = static_cast<std::int64_t>(variation / 4 % 2);
        schedule.backward_gathers = variation % 3 != 1;
        schedule.step.max_norm = variation % 2 == 0 ? 1.0 : 0.0;
        schedule.overlapped = mode == StreamMode::two_workers;
        Setting const setting{.precision = precision, .stage = stage, .ranks = ranks, .streams = mode};
        run_models_on<E>(setting, odd_layout(variation + 17 * static_cast<std::uint64_t>(ranks)), [&](auto const& rank) {
          INFO(name(precision), ", ", stage_name(stage), ", streams ", static_cast<int>(mode), ", rank ", rank.rank, " of ", ranks);
          check(account_of(rank, schedule), ranks);
          // Below `Ordered` reductions are other operations of as many bytes.
          for (Subject const s : {Subject::parameters, Subject::gradients, Subject::optimizer_states}) {
            CHECK(rank.moved.received_bytes(s) == rank.traffic.received_bytes(s));
          }
        });
      }
    }
  }
}

/// Equal summed gradients have the norm that one rank computes, to the bit; infinity on one rank makes all skip.
template <Engine E>
void check_grid_norms(int ranks) {
  ParameterLayout const layout = odd_layout(4);
  StepOptions const options{.max_norm = 0.1, .mean_over_ranks = false};
  auto const passes_of = [](int adder, GradientRule rule) {
    Passes passes;
    passes.rule = [=](int rank, std::int64_t, Unit, ParameterId) { return rank == adder ? rule : GradientRule::constant(0); };
    return passes;
  };
  for (PrecisionName const precision : grid_precisions) {
    double expected = 0;
    run_models_on<ThreadEngine>({.precision = precision, .ranks = 1}, layout, [&](auto const& rank) {
      rank.model.initialize(1, InitialValue::normal(0, 1));
      run_passes(rank, passes_of(0, GradientRule::noise(5, 1, 0)));
      expected = rank.model.step(options).wait().norm;
    });
    CHECK(expected > 0.1);
    for (StageNumber const stage : E::Stages::all) {
      run_models_on<E>({.precision = precision, .stage = stage, .ranks = ranks}, layout, [&](auto const& rank) {
        INFO(name(precision), ", ", stage_name(stage), ", rank ", rank.rank, " of ", ranks);
        rank.model.initialize(1, InitialValue::normal(0, 1));
        RankValues const before(rank.model, Kept::masters);
        run_passes(rank, passes_of(ranks - 1, GradientRule::constant(std::numeric_limits<double>::infinity())));
        StepReport const skipped = rank.model.step(options).wait();
        CHECK(!skipped.applied);
        CHECK(skipped.skipped_steps == 1);
        CHECK(differences(RankValues(rank.model, Kept::masters), before.values) == 0);
        run_passes(rank, passes_of(ranks / 2, GradientRule::noise(5, 1, 0)));
        StepReport const report = rank.model.step(options).wait();
        CHECK(report.norm == expected);
        CHECK(report.coefficient == 0.1 / expected);
        CHECK(report.applied_steps == 1);
      });
    }
  }
}

}  // namespace zero::test
