// SPDX-License-Identifier: Apache-2.0
//
// The library used in the wrong order or with the wrong objects: a typed error at the call that is wrong, with nothing changed.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/train/sharded_optimizer.hpp>

#include "support/two_ranks.hpp"

namespace {

using zero::ParameterId;
using zero::SegmentId;
using zero::Unit;
using zero::test::Example;
using zero::test::expect;
using zero::test::expect_refused;
using zero::test::run_stages;

template <class Parameters>
void pass_of_ones(Parameters& parameters, bool last = false) {
  auto pass = parameters.training_pass({.last = last});
  for (Unit unit : parameters.layout().units()) {
    auto gradients = pass.gradients(unit);
    for (ParameterId id : gradients.ids()) {
      float* const to = gradients.data(id);
      for (std::int64_t i = 0; to != nullptr && i < parameters.layout().elements(id); ++i) to[i] += 1;
    }
    gradients.hand_over();
  }
  pass.finish();
}

/// Whether every element of b.bias is that.
template <class Parameters>
bool bias_is(Parameters& parameters, Example const& e, float expected) {
  auto const all = parameters.gather_all();
  for (float value : all[e.bias]) {
    if (value != expected) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a pass that has ended gathers nothing, opens nothing and does not end another") {
  run_stages([](auto& parameters, Example const& e, std::string& wrong) {
    for (bool const last : {false, true}) {
      auto first = parameters.training_pass({.last = last});
      first.finish();
      expect_refused(wrong, "gather: this pass has ended", [&] { static_cast<void>(first.gather(e.a)); });
      expect_refused(wrong, "gradients: this pass has ended", [&] { static_cast<void>(first.gradients(e.b)); });
      expect_refused(wrong, "gradients: this pass has ended", [&] { first.no_gradient(e.b); });
      expect_refused(wrong, "finish: this pass has ended", [&] { first.finish(); });
      if (last) continue;
      auto second = parameters.training_pass();
      expect_refused(wrong, "gather: this pass has ended", [&] { static_cast<void>(first.gather(e.a)); });
      expect_refused(wrong, "gradients: this pass has ended", [&] { static_cast<void>(first.gradients(e.b)); });
      expect_refused(wrong, "finish: this pass has ended", [&] { first.finish(); });
      expect_refused(wrong, "the one before is still open", [&] { static_cast<void>(parameters.training_pass()); });
      second.gradients(e.b).hand_over();
      second.finish();
    }
    auto const report = parameters.reduce().wait();
    expect(wrong, report.applied && report.norm == 0, "the step goes on");
    parameters.publish();
  });
}

TEST_CASE("a pass whose gradients are open does not end, and ends when they are handed over") {
  run_stages([](auto& parameters, Example const& e, std::string& wrong) {
    auto pass = parameters.training_pass();
    auto gradients = pass.gradients(e.b);
    gradients["bias"][0] += 3;
    expect_refused(wrong, "finish: the gradients of unit 'b' were not handed over", [&] { pass.finish(); });
    expect_refused<zero::LayoutError>(wrong, "first_use: unit 'b' does not use parameter 'a.frozen'",
                                      [&] { static_cast<void>(gradients.first_use(e.frozen)); });
    gradients.hand_over();
    pass.finish();
    auto const report = parameters.reduce().wait();
    expect(wrong, report.norm == 3, "nothing was lost");
    parameters.publish();
    auto const all = parameters.gather_all();
    expect_refused<zero::LayoutError>(wrong, "", [&] { static_cast<void>(all[Unit{1000}]); });
    expect_refused<zero::LayoutError>(wrong, "", [&] { static_cast<void>(all[ParameterId{1000}]); });
  });
}

TEST_CASE("gradients cannot be handed over after their pass, nor after they were discarded") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    using Scope = decltype(std::declval<decltype(parameters.training_pass())&>().gradients(Unit{}));
    Scope survivor;
    {
      auto pass = parameters.training_pass();
      survivor = pass.gradients(e.b);
    }
    expect_refused(wrong, "a pass was not finished", [&] { parameters.reduce(); });
    expect_refused(wrong, "hand_over: this pass has ended", [&] { survivor.hand_over(); });
    parameters.discard_gradients();
    {
      Scope discarded;
      {
        auto pass = parameters.training_pass();
        discarded = pass.gradients(e.b);
      }
      parameters.discard_gradients();
      auto pass = parameters.training_pass();
      auto again = pass.gradients(e.b);
      expect_refused(wrong, "hand_over: this pass has ended", [&] { discarded.hand_over(); });
      again.hand_over();
      pass.finish();
    }
    {
      Scope discarded;
      {
        auto pass = parameters.training_pass();
        discarded = pass.gradients(e.a);
      }
      parameters.discard_gradients();
    }  // destroyed after the discard: nothing is abandoned again
    pass_of_ones(parameters);
    auto const report = parameters.reduce().wait();
    // weight: 1 in each of two units; bias: 1.
    expect(wrong, report.norm == std::sqrt(4.0 * 35 + 131), "the step sees the last pass alone");
    parameters.publish();
  });
}

TEST_CASE("between reduce and publish there is no pass, no gather and no discard of what was applied") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    using Stage = typename Parameters::stage;
    zero::ShardedOptimizer<zero::SGD, Stage> optimizer{parameters, {.learning_rate = 0.5}};
    pass_of_ones(parameters);
    auto decision = parameters.reduce();
    parameters.discard_gradients();  // nothing was applied: the step is given up
    expect(wrong, bias_is(parameters, e, 3), "a step that is given up changes nothing");

    pass_of_ones(parameters);
    decision = parameters.reduce();
    expect_refused(wrong, "a new pass: publish() has not", [&] { static_cast<void>(parameters.training_pass()); });
    expect_refused(wrong, "a new pass: publish() has not", [&] { static_cast<void>(parameters.inference_pass()); });
    expect_refused(wrong, "gather_all: publish() has not", [&] { static_cast<void>(parameters.gather_all()); });
    optimizer.apply(parameters, decision);
    expect_refused(wrong, "discard_gradients: the step was applied", [&] { parameters.discard_gradients(); });
    parameters.publish();
    expect(wrong, bias_is(parameters, e, 2.5), "the step was applied once");
    parameters.discard_gradients();
  });
}

TEST_CASE("a step is applied with the decision that was made for it, of these parameters") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    using Stage = typename Parameters::stage;
    auto const here = zero::HostStreamRef::calling_thread();
    auto others = zero::shard_parameters<Stage, zero::Precision<float>>(e.layout, parameters.group(), {here, here}, zero::host_memory());
    others.initialize(1, [](ParameterId) { return zero::InitialValue::constant(0); });
    zero::ShardedOptimizer<zero::SGD, Stage> optimizer{parameters, {.learning_rate = 0.5}};
    pass_of_ones(parameters);
    pass_of_ones(others);
    auto const foreign = others.reduce();
    auto const first = parameters.reduce();
    expect_refused(wrong, "apply: this decision is not the one", [&] { optimizer.apply(parameters, {}); });
    expect_refused(wrong, "apply: this decision is not the one", [&] { optimizer.apply(parameters, foreign); });
    optimizer.apply(parameters, first);
    expect_refused(wrong, "has already followed this decision", [&] { optimizer.apply(parameters, first); });
    parameters.publish();
    others.publish();
    pass_of_ones(parameters);
    auto const second = parameters.reduce();
    expect_refused(wrong, "apply: this decision is not the one", [&] { optimizer.apply(parameters, first); });
    optimizer.apply(parameters, second);
    parameters.publish();
    expect(wrong, bias_is(parameters, e, 2), "two steps");
    // A decision of four steps ago lies where the latest does.
    zero::ShardedOptimizer<zero::SGD, Stage> another{parameters, {.learning_rate = 0}};
    for (int i = 0; i < 4; ++i) {
      pass_of_ones(parameters);
      auto const latest = parameters.reduce();
      if (i == 3) expect_refused(wrong, "apply: this decision is not the one", [&] { another.apply(parameters, second); });
      another.apply(parameters, latest);
      parameters.publish();
    }
  });
}

TEST_CASE("values do not change under gathered weights") {
  run_stages([](auto& parameters, Example const& e, std::string& wrong) {
    std::vector<float> const values(131, 7.0f);
    auto const change = [&](char const* assign, char const* initialize) {
      expect_refused(wrong, assign, [&] { parameters.assign(e.bias, values); });
      expect_refused(wrong, initialize, [&] { parameters.initialize(2, [](ParameterId) { return zero::InitialValue::constant(9); }); });
    };
    {
      auto const pass = parameters.inference_pass();
      change("assign: a pass is open", "initialize: a pass is open");
    }
    {
      auto pass = parameters.training_pass();
      change("assign: a pass is open", "initialize: a pass is open");
      pass.finish();
    }
    if constexpr (std::is_same_v<typename std::remove_cvref_t<decltype(parameters)>::stage::parameters, zero::Sharded>) {
      auto const all = parameters.gather_all();
      change("assign: the weights of unit 'a' are still in use", "initialize: the weights of unit 'a' are still in use");
      expect_refused(wrong, "a step: the weights of unit 'a' are still in use", [&] { parameters.reduce(); });
    }
    expect(wrong, bias_is(parameters, e, 3), "nothing was changed");
    parameters.assign(e.bias, values);
    expect(wrong, bias_is(parameters, e, 7), "assigned");
    expect_refused(wrong, "assign: parameter 'b.bias' has 131 elements, not 130",
                   [&] { parameters.assign(e.bias, std::span(values).first(130)); });
    expect_refused<zero::LayoutError>(wrong, "", [&] { parameters.assign(ParameterId{77}, values); });
  });
}

TEST_CASE("a tied gradient that nobody zeroed is not written by two open scopes") {
  run_stages([](auto& parameters, Example const& e, std::string& wrong) {
    auto pass = parameters.training_pass();
    {
      auto first = pass.gradients(e.a, {.zeroed = false});
      expect_refused(wrong, "of unit 'b' share a parameter with those of unit 'a'", [&] { static_cast<void>(pass.gradients(e.b)); });
      expect_refused(wrong, "of unit 'b' share a parameter with those of unit 'a'",
                     [&] { static_cast<void>(pass.gradients(e.b, {.zeroed = false})); });
      for (ParameterId id : first.ids()) {
        float* const to = first.data(id);
        for (std::int64_t i = 0; to != nullptr && i < parameters.layout().elements(id); ++i) to[i] = 1;
      }
      first.hand_over();
    }
    {
      auto second = pass.gradients(e.b);
      auto other = std::move(second);
      expect(wrong, other.data(e.weight)[34] == 1 && other["bias"][0] == 0, "the sum so far");
      other.hand_over();
    }
    pass.finish();
    // Two open scopes that were zeroed are fine.
    auto another = parameters.training_pass();
    auto first = another.gradients(e.a);
    auto second = another.gradients(e.b);
    first.data(e.weight)[0] += 1;
    second.data(e.weight)[0] += 1;
    first.hand_over();
    second.hand_over();
    another.finish();
    auto const report = parameters.reduce().wait();
    expect(wrong, report.norm == std::sqrt(34.0 + 9), "the norm");
    parameters.publish();
  });
}

TEST_CASE("states of frozen and unknown segments are refused by name") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    using Stage = typename Parameters::stage;
    zero::ShardedOptimizer<zero::AdamW, Stage> optimizer{parameters};
    SegmentId const frozen = parameters.partition().segment_of(e.frozen);
    SegmentId const weight = parameters.partition().segment_of(e.weight);
    expect_refused(wrong, "reduced_gradient: there was no reduce()", [&] { static_cast<void>(parameters.reduced_gradient(weight)); });
    pass_of_ones(parameters);
    static_cast<void>(parameters.reduce());
    expect_refused(wrong, "masters: parameter 'a.frozen' is frozen", [&] { static_cast<void>(parameters.masters(frozen)); });
    expect_refused(wrong, "reduced_gradient: parameter 'a.frozen' is frozen",
                   [&] { static_cast<void>(parameters.reduced_gradient(frozen)); });
    expect_refused(wrong, "state: parameter 'a.frozen' is frozen", [&] { static_cast<void>(optimizer.state(parameters, frozen, 0)); });
    for (SegmentId const unknown : {SegmentId{99}, SegmentId{-1}}) {
      using Error = zero::LayoutError;
      expect_refused<Error>(wrong, "", [&] { static_cast<void>(parameters.stored(unknown)); });
      expect_refused<Error>(wrong, "", [&] { static_cast<void>(parameters.masters(unknown)); });
      expect_refused<Error>(wrong, "", [&] { static_cast<void>(parameters.reduced_gradient(unknown)); });
      expect_refused<Error>(wrong, "", [&] { static_cast<void>(optimizer.state(parameters, unknown, 0)); });
    }
    expect_refused(wrong, "has 2 states, and no number 2", [&] { static_cast<void>(optimizer.state(parameters, weight, 2)); });
    expect_refused(wrong, "no number -1", [&] { static_cast<void>(optimizer.state(parameters, weight, -1)); });
    parameters.publish();
  });
}

TEST_CASE("a gradient that is no number of the optimizer's type after its factors is skipped") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    zero::ShardedOptimizer<zero::SGD, typename Parameters::stage> optimizer{parameters, {.learning_rate = 1}};
    auto const step = [&](float gradient, zero::StepOptions const& options) {
      auto pass = parameters.training_pass();
      auto gradients = pass.gradients(e.b);
      gradients["bias"][5] += gradient;
      gradients.hand_over();
      pass.finish();
      return optimizer.step(parameters, options).wait();
    };
    expect(wrong, !step(1e30f, {.loss_scale = 1e-20}).applied, "the unscaled gradient is 1e50");
    expect(wrong, !step(1e-30f, {.loss_scale = 1e-60}).applied, "the factor is 1e60, though the gradient is 1e30");
    expect(wrong, bias_is(parameters, e, 3), "nothing was changed");
    expect(wrong, step(1e30f, {.max_norm = 1, .loss_scale = 1e-8}).applied, "clipped, it is 1");
  });
}

TEST_CASE("options that are no numbers are refused by their names, and nothing changes") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    using Stage = typename Parameters::stage;
    using Optimizer = zero::ShardedOptimizer<zero::AdamW, Stage>;
    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const infinity = std::numeric_limits<double>::infinity();
    expect_refused(wrong, "learning_rate", [&] { Optimizer refused{parameters, {.learning_rate = nan}}; });
    Optimizer optimizer{parameters, {.learning_rate = 0, .weight_decay = 0}};
    pass_of_ones(parameters);
    for (double const scale : {0.0, -1.0, infinity, nan}) {
      expect_refused(wrong, "loss_scale is", [&] { optimizer.step(parameters, {.loss_scale = scale}); });
    }
    for (double const norm : {-1.0, nan}) expect_refused(wrong, "max_norm is", [&] { optimizer.step(parameters, {.max_norm = norm}); });
    expect_refused(wrong, "micro_batches is 0", [&] { optimizer.step(parameters, {.micro_batches = 0}); });
    auto const with = [&](auto member, double value, char const* name) {
      auto const before = optimizer.options();
      optimizer.options().*member = value;
      expect_refused(wrong, name, [&] { optimizer.step(parameters); });
      optimizer.options() = before;
    };
    with(&zero::AdamW::learning_rate, nan, "learning_rate");
    with(&zero::AdamW::learning_rate, -1e-3, "learning_rate");
    with(&zero::AdamW::beta1, 1.0, "beta1");
    with(&zero::AdamW::beta2, 1.5, "beta2");
    with(&zero::AdamW::epsilon, infinity, "epsilon");
    with(&zero::AdamW::weight_decay, -0.1, "weight_decay");
    expect(wrong, optimizer.step(parameters).wait().applied_steps == 1, "the refused steps did not count");
    expect(wrong, bias_is(parameters, e, 3), "nothing was changed");
  });
}

namespace {

/// What each of two ranks is told when they run `body(parameters, comm)` under Checked at a stage.
template <class S, class Body>
std::vector<std::string> told(Body const& body) {
  std::vector<std::string> said(2);
  Example const example;
  auto const run = [&](zero::ThreadCommunicator& comm) {
    zero::Checked checked{zero::Borrowed{comm}};
    auto const here = zero::HostStreamRef::calling_thread();
    auto parameters = zero::shard_parameters<S, zero::Precision<float>>(example.layout, checked, {here, here}, zero::host_memory());
    try {
      parameters.initialize(1, [](ParameterId) { return zero::InitialValue::constant(0); });
      body(parameters, example, comm.rank());
    } catch (zero::Error const& error) {
      said[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  };
  try {
    zero::run_ranks(2, run);
  } catch (zero::Error const&) {  // the group was aborted: what each rank was told is in `said`
  }
  return said;
}

/// That both ranks are told so, at every stage.
template <class Body>
void expect_told(char const* text, Body const& body) {
  for (auto const& said : {told<zero::Stage0>(body), told<zero::Stage2>(body), told<zero::Stage3>(body)}) {
    for (std::string const& one : said) CHECK_MESSAGE(one.find(text) != std::string::npos, one);
  }
}

}  // namespace

TEST_CASE("under Checked, the order in which weights are let go of is compared at every stage, because Stage3 gathers again") {
  expect_told("gather", [](auto& parameters, Example const& e, int rank) {
    auto pass = parameters.inference_pass();
    auto first = pass.gather(e.b);
    if (rank == 0) first.release();
    auto second = pass.gather(e.b);
    first.release();
    second.release();
    auto third = pass.gather(e.a);
  });
}

TEST_CASE("under Checked, a model that is held over a step is an error at every stage") {
  expect_told("the weights of unit 'a' are still in use", [](auto& parameters, Example const&, int) {
    pass_of_ones(parameters);
    auto const all = parameters.gather_all();
    parameters.reduce();
  });
}

TEST_CASE("under Checked, seeds, values and options that differ between ranks are found") {
  expect_told("values (index: their hash)", [](auto& parameters, Example const&, int rank) {
    parameters.initialize(static_cast<std::uint64_t>(rank), [](ParameterId) { return zero::InitialValue::uniform(0, 1); });
  });
  expect_told("values (index: their hash)", [](auto& parameters, Example const& e, int rank) {
    parameters.assign(e.bias, std::vector<float>(131, static_cast<float>(rank)));
  });
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  expect_told("apply (index: hash of options)", []<class Parameters>(Parameters& parameters, Example const&, int rank) {
    zero::ShardedOptimizer<zero::AdamW, typename Parameters::stage> optimizer{parameters};
    optimizer.options().learning_rate = 0.1 * (rank + 1);
    pass_of_ones(parameters);
    optimizer.step(parameters);
  });
#endif
#endif
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
TEST_CASE("ranks that start with different optimizer options get a MismatchError each") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const&, std::string& wrong) {
    zero::MomentumSGD options;
    if (parameters.group().rank() == 1) options.nesterov = true;
    expect_refused<zero::MismatchError>(wrong, "different optimizer options", [&] {
      zero::ShardedOptimizer<zero::MomentumSGD, typename Parameters::stage> optimizer{parameters, options};
    });
  });
}
#endif
#endif
