// SPDX-License-Identifier: Apache-2.0
#include <zero/train/step_report.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "support/odd_layouts.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace zero::test;
using zero::Decision;
using zero::HostDevice;

Passes ones() {
  Passes passes;
  passes.rule = [](int, std::int64_t, zero::Unit, zero::ParameterId) { return GradientRule::constant(1); };
  return passes;
}

}  // namespace

TEST_CASE("the report of no step is refused") {
  CHECK_THROWS_AS(static_cast<void>(Decision<HostDevice>{}.wait()), zero::UsageError);
  CHECK(Decision<HostDevice>{}.state() == nullptr);
}

TEST_CASE("a report stays readable for some steps, then is refused rather than wrong") {
  for (StreamMode mode : {StreamMode::calling, StreamMode::two_workers}) {
    std::vector<char> right(2);
    run_models({.streams = mode}, small_layout(), [&](Rank rank) {
      rank.model.initialize(1, zero::InitialValue::constant(0));
      std::vector<Decision<HostDevice>> decisions;
      bool good = true;
      for (int step = 1; step <= 9; ++step) {
        run_passes(rank, ones());
        decisions.push_back(rank.model.step({}));
        for (int i = 0; i < step; ++i) {
          if (step - 1 - i < Decision<HostDevice>::kept) {
            good = good && decisions[static_cast<std::size_t>(i)].wait().applied_steps == i + 1;
          } else {
            bool refused = false;
            try {
              static_cast<void>(decisions[static_cast<std::size_t>(i)].wait());
            } catch (zero::UsageError const&) {
              refused = true;
            }
            good = good && refused;
          }
        }
      }
      right[static_cast<std::size_t>(rank.rank)] = good ? 1 : 0;
    });
    CHECK(right == std::vector<char>{1, 1});
  }
}

TEST_CASE("step options that make no sense are refused on every rank, and change nothing") {
  double const bad_norm = -1;
  for (zero::StepOptions const& options :
       {zero::StepOptions{.max_norm = bad_norm}, zero::StepOptions{.micro_batches = 0}, zero::StepOptions{.loss_scale = 0}}) {
    std::vector<char> right(2);
    run_models({.stage = stage3}, small_layout(), [&](Rank rank) {
      rank.model.initialize(1, zero::InitialValue::constant(0));
      run_passes(rank, ones());
      bool refused = false;
      try {
        rank.model.step(options);
      } catch (zero::UsageError const&) {
        refused = true;
      }
      right[static_cast<std::size_t>(rank.rank)] = refused && rank.model.step({}).wait().applied_steps == 1 ? 1 : 0;
    });
    CHECK(right == std::vector<char>{1, 1});
  }
}

TEST_CASE("field case 81: the mean over ranks and micro-batches and the loss scale each divide once") {
  // Each of 2 ranks adds 3 in each of 4 micro-batches.
  struct Row {
    zero::StepOptions options;
    double element;
  };
  for (Row const& row : {Row{{}, 12}, Row{{.mean_over_ranks = false}, 24}, Row{{.micro_batches = 4}, 3},
                         Row{{.mean_over_ranks = false, .micro_batches = 4, .loss_scale = 2}, 3}}) {
    zero::ParameterLayout layout;
    layout.add(layout.add_unit("u"), "u.w", {16});
    for (int stage : {stage0, stage1, stage2, stage3}) {
      std::vector<zero::StepReport> reports(2);
      run_models({.stage = stage}, layout, [&](Rank rank) {
        rank.model.initialize(1, zero::InitialValue::constant(0));
        Passes passes;
        passes.micro_batches = 4;
        passes.rule = [](int, std::int64_t, zero::Unit, zero::ParameterId) { return GradientRule::constant(3); };
        run_passes(rank, passes);
        reports[static_cast<std::size_t>(rank.rank)] = rank.model.step(row.options).wait();
      });
      for (zero::StepReport const& report : reports) CHECK(report.norm == 4 * row.element);  // sqrt(16) times an element
    }
  }
}
