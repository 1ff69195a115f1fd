// SPDX-License-Identifier: Apache-2.0
#include <zero/train/pass.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/odd_layouts.hpp"
#include "support/reference.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace zero::test;
using zero::ParameterId;
using zero::Subject;
using zero::Unit;

constexpr int ranks = 3;

/// Runs `body` on three ranks at every stage; it returns what is wrong, empty if nothing is.
template <class Body>
void at_every_stage(zero::ParameterLayout const& layout, Body const& body) {
  for (int stage = 0; stage < stage_count; ++stage) {
    std::vector<std::string> wrong(ranks);
    Setting setting{.stage = stage, .ranks = ranks};
    setting.model.optimizer = AnyOptimizer::make_sgd(0.5);
    run_models(setting, layout, [&](Rank rank) {
      rank.model.initialize(1, zero::InitialValue::normal(0, 1));
      wrong[static_cast<std::size_t>(rank.rank)] = body(rank);
    });
    INFO(stage_name(stage));
    for (std::string const& text : wrong) CHECK(text == "");
  }
}

/// Empty if `call` throws a UsageError that names `text`.
template <class Call>
std::string refuses(std::string const& text, Call&& call) {
  try {
    call();
  } catch (zero::UsageError const& error) {
    return std::string(error.what()).find(text) != std::string::npos ? "" : "another message: " + std::string(error.what());
  }
  return "not refused: " + text;
}

Passes integers(std::uint64_t seed) {
  Passes passes;
  passes.rule = [seed](int rank, std::int64_t m, Unit unit, ParameterId id) {
    return GradientRule::integers(seed + static_cast<std::uint64_t>(((rank * 16 + m) * 16 + to_index(unit)) * 16 + to_index(id)), 1, 9);
  };
  return passes;
}

Reference reference_of(zero::ParameterLayout const& layout) {
  Reference reference(layout, PrecisionName::fp32, ranks, AnyOptimizer::make_sgd(0.5));
  reference.initialize(1, zero::InitialValue::normal(0, 1));
  return reference;
}

constexpr Unit a{0};
constexpr Unit b{1};

}  // namespace

TEST_CASE("passes do not nest, and none follows the last before the step") {
  at_every_stage(small_layout(), [](Rank rank) {
    Model& model = rank.model;
    std::string wrong;
    model.begin_training(false);
    wrong += refuses("still open", [&] { model.begin_inference(); });
    model.end_pass();
    run_passes(rank, integers(1));
    wrong += refuses("declared the last", [&] { model.begin_training(false); });
    model.begin_inference();  // evaluation is welcome
    model.end_pass();
    static_cast<void>(model.step({}).wait());
    run_passes(rank, integers(1));
    return wrong;
  });
}

TEST_CASE("gradients are opened once, handed over once a pass, and not in another's place") {
  at_every_stage(small_layout(), [](Rank rank) {
    Model& model = rank.model;
    std::string wrong;
    model.begin_training(false);
    model.gather(a);
    model.open_gradients(a, true);
    wrong += refuses("already open", [&] { model.open_gradients(a, true); });
    model.hand_over(a);
    wrong += refuses("holds no gradients", [&] { model.hand_over(a); });
    wrong += refuses("already handed over in this pass", [&] { model.open_gradients(a, true); });
    wrong += refuses("already handed over in this pass", [&] { model.no_gradient(a); });
    model.release(a);
    model.end_pass();
    static_cast<void>(model.step({}).wait());
    return wrong;
  });
}

TEST_CASE("a step with an open pass or open weights is refused, and possible afterwards") {
  at_every_stage(small_layout(), [](Rank rank) {
    Model& model = rank.model;
    std::string wrong;
    model.begin_training(false);
    wrong += refuses("a pass is still open", [&] { model.step({}); });
    wrong += refuses("a pass is open", [&] { model.discard_gradients(); });
    model.gather(a);
    model.end_pass();
    if (rank.traffic.calls(Subject::parameters) > 0) {  // parameters are Sharded: there is a scope to close
      wrong += refuses("the weights of unit 'a' are still in use", [&] { model.step({}); });
    }
    model.release(a);
    static_cast<void>(model.step({}).wait());
    return wrong;
  });
}

TEST_CASE("field cases 59, 88, 89, 90: what nobody touches has a zero gradient and is stepped; frozen parameters stay to the bit") {
  zero::ParameterLayout const layout = small_layout();
  Passes passes = integers(3);
  passes.use = [](int rank, std::int64_t, Unit unit) { return unit == b ? Use::skips : rank == 1 ? Use::nothing : Use::adds; };
  Reference reference = reference_of(layout);
  Values const before = reference.parameters();
  for (int step = 0; step < 2; ++step) {
    reference.add(passes);
    reference.step({});
  }
  ParameterId const untouched = layout.find("b.weight");
  for (double steps : reference.first_states()[static_cast<std::size_t>(to_index(untouched))]) CHECK(steps == 2);
  at_every_stage(layout, [&](Rank rank) {
    for (int step = 0; step < 2; ++step) {
      run_passes(rank, passes);
      static_cast<void>(rank.model.step({}).wait());
    }
    std::string wrong;
    Values const after = RankValues::whole(rank.model).values;
    if (differences(after, reference.parameters()) != 0) wrong += "parameters differ; ";
    if (differences(RankValues(rank.model, Kept::first_state), reference.first_states()) != 0) wrong += "not stepped twice; ";
    for (ParameterId id : layout.parameters()) {
      auto const p = static_cast<std::size_t>(to_index(id));
      bool const same = after[p] == before[p];
      if (!layout.trainable(id) && !same) wrong += "a frozen parameter moved; ";
      if (layout.name(id) == "a.weight" && same) wrong += "a trained parameter did not move; ";
    }
    return wrong;
  });
}

TEST_CASE("field cases 82, 87: a tied gradient is added up unreduced over its uses and reduced once, also where one use is missing") {
  zero::ParameterLayout const layout = small_layout();
  for (int missing = 0; missing < 3; ++missing) {
    Passes passes = integers(4);
    passes.use = [missing](int, std::int64_t, Unit unit) { return to_index(unit) == missing ? Use::skips : Use::adds; };
    Reference reference = reference_of(layout);
    reference.add(passes);
    reference.step({});
    at_every_stage(layout, [&](Rank rank) {
      rank.traffic.reset();
      run_passes(rank, passes);
      static_cast<void>(rank.model.step({}).wait());
      std::string wrong;
      if (differences(RankValues::whole(rank.model).values, reference.parameters()) != 0) wrong += "the tied sum is another; ";
      return wrong;
    });
  }
}

TEST_CASE("weights of several units, and of one unit twice, are open at once; nested gathers communicate once") {
  zero::ParameterLayout const layout = small_layout();
  at_every_stage(layout, [&](Rank rank) {
    Model& model = rank.model;
    std::string wrong;
    model.begin_training(false);
    rank.traffic.reset();
    model.gather(a);
    std::int64_t const first = rank.traffic.calls();
    model.gather(b);
    std::int64_t const both = rank.traffic.calls();
    model.gather(a);  // the harness replaces its scope: the new one is open before the old one ends
    if (rank.traffic.calls() != both) wrong += "a unit that is resident was gathered again; ";
    // Units a and b share a segment: b gathers only its own.
    bool const sharded = first > 0;
    if (sharded && (first != 3 || both != 4)) wrong += "segments gathered: " + std::to_string(first) + ", " + std::to_string(both) + "; ";
    model.release(a);
    model.release(b);
    model.end_pass();
    return wrong;
  });
}

TEST_CASE("an inference pass gathers, has no gradients, and leaves what was accumulated") {
  zero::ParameterLayout const layout = small_layout();
  Reference reference = reference_of(layout);
  for (std::uint64_t seed : {5u, 6u}) reference.add(integers(seed));
  reference.step({});
  at_every_stage(layout, [&](Rank rank) {
    Passes passes = integers(5);
    passes.tell_last = false;
    run_passes(rank, passes);
    rank.traffic.reset();
    rank.model.begin_inference();
    for (Unit unit : layout.units()) {
      rank.model.gather(unit);
      rank.model.release(unit);
    }
    rank.model.end_pass();
    std::string wrong;
    if (rank.traffic.calls(Subject::gradients) != 0) wrong += "inference reduced gradients; ";
    passes = integers(6);
    passes.inference_passes = 2;
    run_passes(rank, passes);
    static_cast<void>(rank.model.step({}).wait());
    if (differences(RankValues::whole(rank.model).values, reference.parameters()) != 0) wrong += "parameters differ; ";
    return wrong;
  });
}
