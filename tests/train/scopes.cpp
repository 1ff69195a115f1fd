// SPDX-License-Identifier: Apache-2.0
#include <zero/train/scopes.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/checked.hpp>

#include "support/two_ranks.hpp"

namespace {

using zero::ParameterId;
using zero::Unit;
using zero::test::Example;
using zero::test::expect;
using zero::test::expect_refused;
using zero::test::run_stage;
using zero::test::run_stages;
using Threads = zero::ThreadCommunicator;

template <class S>
using Engine = zero::detail::TrainingEngine<S, zero::Precision<float>, Threads>;
template <class S>
using Weights = decltype(std::declval<zero::TrainingPass<Engine<S>>&>().gather(Unit{}));
using Gradients = zero::Gradients<Engine<zero::Stage3>>;

// Where parameters are Replicated a gather is a view and nothing else; else a scope that can be stored in a struct of a C program.
static_assert(std::is_same_v<Weights<zero::Stage0>, zero::UnitView<float const>>);
static_assert(std::is_trivially_copyable_v<Weights<zero::Stage0>>);
static_assert(std::is_trivially_copyable_v<Weights<zero::Stage2>>);
static_assert(std::is_same_v<Weights<zero::Stage3>, zero::GatheredUnit<Engine<zero::Stage3>>>);
static_assert(std::is_default_constructible_v<Weights<zero::Stage3>> && std::is_nothrow_move_assignable_v<Weights<zero::Stage3>> &&
              !std::is_copy_constructible_v<Weights<zero::Stage3>>);
static_assert(std::is_default_constructible_v<Gradients> && std::is_nothrow_move_assignable_v<Gradients> &&
              !std::is_copy_constructible_v<Gradients>);
static_assert(std::is_convertible_v<Weights<zero::Stage3>&, zero::UnitView<float const>>, "a model's functions take views");
static_assert(std::is_convertible_v<Gradients&, zero::UnitView<float>>);

}  // namespace

TEST_CASE("weights scopes move, end in any order, and are empty once released or moved from") {
  run_stage<zero::Stage3>([](auto& parameters, Example const& e, std::string& wrong) {
    auto pass = parameters.training_pass();
    Weights<zero::Stage3> stored;
    expect(wrong, stored.empty() && stored.size() == 0, "a default scope is empty");
    auto first = pass.gather(e.a);
    auto second = pass.gather(e.b);
    auto again = pass.gather(e.a);
    expect(wrong, first["weight"] == again["weight"], "one unit is resident once");
    expect(wrong, first["weight"] == second.data(e.weight), "tied storage is one");
    first.release();
    expect(wrong, first.empty() && first.ids().empty(), "a released scope is empty");
    first.release();  // does nothing
    expect(wrong, again["weight"][34] == 1 && again["frozen"][2] == 2, "the other scope still holds the unit");
    stored = std::move(again);
    expect(wrong, again.empty() && !stored.empty(), "a moved-from scope is empty");
    Weights<zero::Stage3> moved(std::move(stored));
    expect(wrong, moved["weight"][0] == 1 && second["bias"][130] == 3, "values survive the moves");
    second = std::move(moved);  // lets go of b
    expect(wrong, second.unit() == e.a, "assignment replaces");
    second.release();
    pass.finish();
  });
}

TEST_CASE("gradients scopes move, start from zero, keep the sum so far, and know the first use") {
  run_stages([]<class Parameters>(Parameters& parameters, Example const& e, std::string& wrong) {
    using Scope = decltype(std::declval<zero::TrainingPass<Engine<typename Parameters::stage>>&>().gradients(Unit{}));
    bool const partial = std::is_same_v<typename Parameters::stage::gradients, zero::Partial>;
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass();
      Scope stored;
      expect(wrong, stored.empty(), "a default scope is empty");
      expect_refused(wrong, "holds no gradients", [&] { stored.hand_over(); });
      expect_refused(wrong, "holds no gradients", [&] { static_cast<void>(stored.first_use(e.weight)); });
      auto opened = pass.gradients(e.b);
      expect(wrong, opened.first_use(e.bias) == (m == 0 || !partial), "first use in the step or pass");
      expect(wrong, opened["bias"][0] == (partial ? static_cast<float>(m) : 0.0f), "zero or the sum so far");
      opened["bias"][0] += 1;
      opened.data(e.weight)[3] += 1;
      stored = std::move(opened);
      expect(wrong, opened.empty() && !stored.empty(), "a moved-from scope is empty");
      expect_refused(wrong, "holds no gradients", [&] { opened.hand_over(); });
      stored.hand_over();
      expect(wrong, stored.empty() && stored.size() == 0, "a handed-over scope is empty");
      auto tied = pass.gradients(e.a);
      expect(wrong, !tied.first_use(e.weight), "the tied gradient was written by the other unit");
      expect(wrong, tied["weight"][3] == (partial ? static_cast<float>(m + 1) : 1.0f), "it holds what the other unit added");
      expect(wrong, tied["frozen"] == nullptr, "a frozen parameter has no gradient");
      expect(wrong, tied.size() == 2, "frozen parameters keep their position");
      tied.hand_over();
      pass.finish();
    }
  });
}

TEST_CASE("gradients that are not handed over fail finish and step by the unit's name, until they are discarded") {
  run_stages([](auto& parameters, Example const& e, std::string& wrong) {
    {
      auto pass = parameters.training_pass();
      { auto dropped = pass.gradients(e.b); }
      expect_refused(wrong, "unit 'b' were not handed over", [&] { pass.finish(); });
    }
    expect_refused(wrong, "unit 'b' were not handed over", [&] { parameters.reduce(); });
    expect_refused(wrong, "unit 'b' were not handed over", [&] { static_cast<void>(parameters.training_pass()); });
    expect_refused(wrong, "unit 'b' were not handed over", [&] { static_cast<void>(parameters.inference_pass()); });
    parameters.discard_gradients();
    {
      auto pass = parameters.training_pass({.last = true});
      auto open = pass.gradients(e.a);
      expect_refused(wrong, "unit 'a' were not handed over", [&] { pass.finish(); });
    }
    expect_refused(wrong, "unit 'a' were not handed over", [&] { parameters.reduce(); });
    parameters.discard_gradients();
    { auto pass = parameters.training_pass(); }
    expect_refused(wrong, "a pass was not finished", [&] { parameters.reduce(); });
    parameters.discard_gradients();
    // One good pass that is given up, then one that counts.
    for (int i = 0; i < 2; ++i) {
      auto pass = parameters.training_pass({.last = true});
      auto gradients = pass.gradients(e.b);
      expect(wrong, gradients["bias"][7] == 0, "gradients start from zero after a discard");
      gradients["bias"][7] += 2;
      gradients.hand_over();
      pass.finish();
      if (i == 0) parameters.discard_gradients();
    }
    auto const report = parameters.reduce().wait();
    expect(wrong, report.applied && report.norm == 2, "the step sees only what counts");
    parameters.publish();
  });
}

TEST_CASE("a caller that overwrites on first use needs no zeroes") {
  run_stages([](auto& parameters, Example const& e, std::string& wrong) {
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass({.last = m == 1});
      auto gradients = pass.gradients(e.b, {.zeroed = false});
      for (ParameterId id : gradients.ids()) {
        bool const first = gradients.first_use(id);
        float* const to = gradients.data(id);
        for (std::int64_t i = 0; i < parameters.layout().elements(id); ++i) to[i] = (first ? 0.0f : to[i]) + 1.0f;
      }
      gradients.hand_over();
      pass.finish();
    }
    // 2 ranks, 2 micro-batches, the mean over ranks: 2 for each of 35 + 131 elements.
    auto const report = parameters.reduce().wait();
    expect(wrong, report.norm * report.norm == doctest::Approx(4.0 * 166).epsilon(1e-12), "the norm");
    parameters.publish();
  });
}

TEST_CASE("under Checked, weights that are still in use at the step are an error at Stage0 as at Stage3") {
  Example const example;
  std::vector<std::string> said(2);
  zero::run_ranks(2, [&](Threads& comm) {
    zero::Checked checked{zero::Borrowed{comm}};
    auto const here = zero::HostStreamRef::calling_thread();
    auto parameters =
        zero::shard_parameters<zero::Stage0, zero::Precision<float>>(example.layout, checked, {here, here}, zero::host_memory());
    parameters.initialize(1, [](ParameterId) { return zero::InitialValue::constant(0); });
    auto pass = parameters.training_pass();
    auto weights = pass.gather(example.a);
    pass.finish();
    try {
      parameters.reduce();
    } catch (zero::UsageError const& error) {
      said[static_cast<std::size_t>(comm.rank())] = error.what();
    }
    weights.release();
    parameters.reduce();
    parameters.publish();
  });
  for (std::string const& text : said) CHECK(text.find("the weights of unit 'a' are still in use") != std::string::npos);
}
