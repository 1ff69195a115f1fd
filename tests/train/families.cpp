// SPDX-License-Identifier: Apache-2.0
/// @file
/// Gradients whose sums are rounded: what a run gives depends on whether gradients accumulate as local sums or as reduced ones, and on nothing
/// else that a stage, a stream or an alignment may change.

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "support/odd_layouts.hpp"
#include "support/ranks.hpp"
#include "support/training_loop.hpp"
#include "support/values.hpp"

namespace {

using namespace zero::test;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::Unit;

/// What a run leaves, in one number each.
struct Outcome {
  std::uint64_t parameters = 0;
  std::uint64_t masters = 0;
  std::uint64_t states = 0;
  std::uint64_t reports = 0;
  bool sound = true;  ///< all ranks agree, all steps were applied, all were clipped

  friend bool operator==(Outcome const&, Outcome const&) = default;
};

struct Run {
  Setting setting;
  std::int64_t micro_batches = 1;
  int steps = 20;
  Passes passes = {};
};

Outcome outcome_of(Run const& run, ParameterLayout const& layout) {
  auto const ranks = static_cast<std::size_t>(run.setting.ranks);
  std::vector<RankValues> parameters(ranks), masters(ranks), first(ranks), second(ranks);
  std::vector<std::uint64_t> reports(ranks);
  std::vector<char> clipped(ranks, 1);
  Setting setting = run.setting;
  setting.model.optimizer = AnyOptimizer::make_adamw(0.01);
  run_models(setting, layout, [&](Rank rank) {
    auto const me = static_cast<std::size_t>(rank.rank);
    rank.model.initialize(11, zero::InitialValue::normal(0, 0.3f));
    zero::Hasher history;
    for (int step = 0; step < run.steps; ++step) {
      Passes passes = run.passes;
      passes.micro_batches = run.micro_batches;
      passes.rule = noise_of_step(step);
      run_passes(rank, passes);
      zero::StepReport const report = rank.model.step({.max_norm = 0.5}).wait();
      history.add(std::bit_cast<std::uint64_t>(report.norm)).add(std::bit_cast<std::uint64_t>(report.coefficient));
      if (!report.applied || !(report.coefficient < 1)) clipped[me] = 0;
    }
    reports[me] = history.value();
    parameters[me] = RankValues::whole(rank.model);
    masters[me] = RankValues(rank.model, Kept::masters);
    first[me] = RankValues(rank.model, Kept::first_state);
    second[me] = RankValues(rank.model, Kept::second_state);
  });
  std::int64_t faults = 0;
  Outcome result;
  result.parameters = hash_of(together(layout, parameters, true, faults));
  result.masters = hash_of(together(layout, masters, false, faults));
  result.states = hash_of(together(layout, first, false, faults)) ^ 3 * hash_of(together(layout, second, false, faults));
  result.reports = reports[0];
  for (std::size_t r = 0; r < ranks; ++r) result.sound = result.sound && reports[r] == reports[0] && clipped[r] != 0;
  result.sound = result.sound && faults == 0;
  return result;
}

/// The outcome of every stage for each family.
struct Families {
  std::set<std::uint64_t> partial, reduced;
};

std::uint64_t digest(Outcome const& o) { return zero::Hasher{}.add(o.parameters).add(o.masters).add(o.states).add(o.reports).value(); }

Families families(PrecisionName precision, int ranks, std::int64_t micro_batches, ParameterLayout const& layout = tied_layout()) {
  Families result;
  for (int stage = 0; stage < stage_count; ++stage) {
    Outcome const outcome = outcome_of({{.precision = precision, .stage = stage, .ranks = ranks}, micro_batches, 20}, layout);
    INFO(stage_name(stage), ", ", micro_batches, " micro-batches");
    CHECK(outcome.sound);
    (accumulates_partial(stage) ? result.partial : result.reduced).insert(digest(outcome));
  }
  return result;
}

auto const summed_precisions = precisions_of({PrecisionName::fp32, PrecisionName::bf16, PrecisionName::bf16_fp32});

}  // namespace

TEST_CASE("field case 86: with one micro-batch all stages give the same bits, tied layers and clipping included") {
  for (PrecisionName precision : summed_precisions) {
    INFO(name(precision));
    Families const f = families(precision, zero::test::ranks(), 1);
    CHECK(f.partial.size() == 1);
    CHECK(f.reduced == f.partial);
  }
}

TEST_CASE("with several micro-batches stages agree where gradients accumulate alike, and differ where they do not") {
  int const ranks = zero::test::ranks();
  for (PrecisionName precision : summed_precisions) {
    for (std::int64_t micro_batches : {2, 3}) {
      INFO(name(precision), ", ", micro_batches, " micro-batches");
      Families const f = families(precision, ranks, micro_batches);
      CHECK(f.partial.size() == 1);
      CHECK(f.reduced.size() == 1);
      // Else the data prove nothing. (On one rank it is the uses of tied parameters that are added in another order.)
      CHECK(f.partial != f.reduced);
    }
  }
}

TEST_CASE("on one rank, without ties and with one type of gradients, nothing is left to reorder: all stages agree") {
  ParameterLayout layout;
  layout.add(layout.add_unit("a"), "a.w", {37, 11});
  layout.add(layout.add_unit("b"), "b.w", {131});
  for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16})) {
    Families const f = families(precision, 1, 3, layout);
    CHECK(f.partial.size() == 1);
    CHECK(f.partial == f.reduced);
  }
}

TEST_CASE("field case 50: overlap, streams and their timing change no bit") {
  int const ranks = zero::test::ranks();
  for (int stage : {stage0, stage1, stage2, stage3, 4, 7, 8}) {
    for (PrecisionName precision : precisions_of({PrecisionName::fp32, PrecisionName::bf16_fp32})) {
      Run run{{.precision = precision, .stage = stage, .ranks = ranks}, 2, 4};
      Outcome const expected = outcome_of(run, tied_layout());
      CHECK(expected.sound);
      for (StreamMode mode :
           {StreamMode::one_worker, StreamMode::two_workers, StreamMode::worker_compute, StreamMode::worker_communication}) {
        for (std::uint64_t seed : {0u, 1u, 2u}) {
          if (seed != 0 && mode != StreamMode::two_workers) continue;
          run.setting.streams = mode;
          run.setting.delay_seed = seed;
          INFO(stage_name(stage), ", ", name(precision), ", streams ", static_cast<int>(mode), ", delays ", seed);
          CHECK(outcome_of(run, tied_layout()) == expected);
        }
      }
    }
  }
}

TEST_CASE("field case 51: alignments, poison, held weights, overwriting kernels and the word `last` change no bit") {
  int const ranks = zero::test::ranks();
  for (int stage = 0; stage < stage_count; ++stage) {
    Run const plain{{.precision = PrecisionName::bf16, .stage = stage, .ranks = ranks}, 2, 4};
    Outcome const expected = outcome_of(plain, tied_layout());
    CHECK(expected.sound);
    INFO(stage_name(stage));
    for (zero::PartitionOptions cut : {zero::PartitionOptions{256, 32}, zero::PartitionOptions{384, 128}}) {
      Run run = plain;
      run.setting.model.partition = cut;
      // Blocks of the norm lie at offsets of the segment: the cut of the shards may change, the offsets not.
      Outcome const outcome = outcome_of(run, tied_layout());
      if (cut.parameter_alignment == 32) CHECK(outcome == expected);
      else CHECK(outcome.sound);
    }
    Run run = plain;
    run.setting.model.poison_released = true;
    CHECK(outcome_of(run, tied_layout()) == expected);
    run = plain;
    run.passes.backward_gathers = false;
    CHECK(outcome_of(run, tied_layout()) == expected);
    run.passes.overwrite = true;
    CHECK(outcome_of(run, tied_layout()) == expected);
    run = plain;
    run.passes.tell_last = false;
    run.passes.inference_passes = 1;
    CHECK(outcome_of(run, tied_layout()) == expected);
  }
}

TEST_CASE("field case 83: a tied parameter is one storage: its units see the same bits after many steps") {
  ParameterLayout const layout = tied_layout();
  std::int64_t differing = 0;
  int const ranks = zero::test::ranks();
  for (int stage : {stage0, stage1, stage2, stage3}) {
    std::vector<RankValues> whole(static_cast<std::size_t>(ranks));
    run_models({.precision = PrecisionName::bf16, .stage = stage, .ranks = ranks}, layout, [&](Rank rank) {
      rank.model.initialize(11, zero::InitialValue::normal(0, 0.3f));
      for (int step = 0; step < 5; ++step) {
        Passes passes;
        passes.rule = [](int r, std::int64_t, Unit unit, ParameterId) {
          return GradientRule::noise(static_cast<std::uint64_t>(r * 8 + to_index(unit)), 1, 0.1);
        };
        run_passes(rank, passes);
        static_cast<void>(rank.model.step({}).wait());
      }
      whole[static_cast<std::size_t>(rank.rank)] = RankValues::whole(rank.model);
    });
    for (RankValues const& mine : whole) differing += differences(mine.values, whole[0].values);
  }
  CHECK(differing == 0);
}
