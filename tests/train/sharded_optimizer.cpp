// SPDX-License-Identifier: Apache-2.0
#include <zero/train/sharded_optimizer.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <zero/comm/run_ranks.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/odd_layouts.hpp"

namespace {

using zero::ParameterId;
using zero::ParameterLayout;
using zero::Unit;
using zero::test::small_layout;
using Single = zero::Precision<float>;

constexpr int ranks = 3;

zero::Streams<zero::HostDevice> streams() {
  auto const here = zero::HostStreamRef::calling_thread();
  return {here, here};
}

template <class Parameters>
void pass_of_ones(Parameters& parameters) {
  auto pass = parameters.training_pass({.last = true});
  for (Unit unit : parameters.layout().units().reversed()) {
    auto gradients = pass.gradients(unit);
    for (std::int32_t i = 0; i < gradients.size(); ++i) {
      for (std::int64_t k = 0; gradients[i] != nullptr && k < gradients.elements(i); ++k) gradients[i][k] += 1;
    }
    gradients.hand_over();
  }
  pass.finish();
}

template <class S>
void adamw_at() {
  zero::run_ranks(ranks, [](zero::ThreadCommunicator& comm) {
    auto parameters = zero::shard_parameters<S, Single>(small_layout(), comm, streams(), zero::host_memory());
    parameters.initialize(1, [](ParameterId) { return zero::InitialValue::constant(1); });
    zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.1, .weight_decay = 0.5}};
    zero::SegmentId const segment = parameters.partition().segment_of(parameters.layout().find("a.weight"));
    for (float value : optimizer.state(parameters, segment, 1).local()) CHECK(value == 0);
    pass_of_ones(parameters);
    CHECK(optimizer.step(parameters).wait().applied);
    // The first update of AdamW is the decay and the rate times the gradient's sign; its states are (1 - beta1) g and (1 - beta2) g^2.
    for (float value : parameters.masters(segment).local()) CHECK(value == doctest::Approx(1 - 0.1 * 0.5 - 0.1).epsilon(1e-6));
    for (float value : optimizer.state(parameters, segment, 0).local()) CHECK(value == doctest::Approx(0.1).epsilon(1e-6));
    for (float value : optimizer.state(parameters, segment, 1).local()) CHECK(value == doctest::Approx(0.001).epsilon(1e-6));
    // Options can change from step to step.
    optimizer.options().learning_rate = 0;
    pass_of_ones(parameters);
    CHECK(optimizer.step(parameters).wait().applied_steps == 2);
    for (float value : parameters.masters(segment).local()) CHECK(value == doctest::Approx(0.85).epsilon(1e-6));
  });
}

}  // namespace

TEST_CASE("field case 94: the first step of AdamW is its closed form, at every stage") {
  adamw_at<zero::Stage0>();
  adamw_at<zero::Stage3>();
}

TEST_CASE("several optimizers follow one decision; apply and publish need a reduce; other parameters are refused") {
  zero::run_ranks(ranks, [](zero::ThreadCommunicator& comm) {
    auto parameters = zero::shard_parameters<zero::Stage3, Single>(small_layout(), comm, streams(), zero::host_memory());
    auto others = zero::shard_parameters<zero::Stage3, Single>(small_layout(), comm, streams(), zero::host_memory());
    parameters.initialize(1, [](ParameterId) { return zero::InitialValue::constant(1); });
    zero::ShardedOptimizer<zero::SGD, zero::Stage3> first{parameters, {.learning_rate = 0.25}};
    zero::ShardedOptimizer<zero::MomentumSGD, zero::Stage3> second{parameters, {.learning_rate = 0.5, .momentum = 0}};
    pass_of_ones(parameters);
    CHECK_THROWS_AS(first.apply(parameters, {}), zero::UsageError);
    CHECK_THROWS_AS(parameters.publish(), zero::UsageError);
    CHECK_THROWS_AS(first.step(others), zero::UsageError);
    auto const decision = parameters.reduce();
    CHECK_THROWS_AS(parameters.reduce(), zero::UsageError);
    CHECK_THROWS_AS(static_cast<void>(parameters.training_pass()), zero::UsageError);
    first.apply(parameters, decision);
    second.apply(parameters, decision);
    parameters.publish();
    CHECK_THROWS_AS(first.apply(parameters, decision), zero::UsageError);
    for (zero::SegmentId segment : parameters.partition().segments()) {
      bool const tied = parameters.partition().segment(segment).tied;  // two units add 1 each
      bool const trainable = parameters.partition().segment(segment).trainable;
      float const expected = trainable ? 1 - 0.75f * (tied ? 2.0f : 1.0f) : 1.0f;
      auto const tensor = parameters.stored(segment);
      parameters.partition().pieces(segment, parameters.partition().shard_range(segment, comm.rank()),
                                    [&](ParameterId, std::int64_t, std::int64_t offset, std::int64_t count) {
                                      for (std::int64_t i = 0; i < count; ++i) {
                                        CHECK(tensor.data()[offset - tensor.geometry().shard_begin() + i] == expected);
                                      }
                                    });
    }
    // A step without any apply changes nothing.
    pass_of_ones(parameters);
    static_cast<void>(parameters.reduce());
    parameters.publish();
    auto const all = parameters.gather_all();
    for (float value : all[parameters.layout().find("b.weight")]) CHECK(value == 0.25f);
  });
}

TEST_CASE("ranks with different optimizers get a MismatchError each") {
  std::vector<std::string> messages(ranks);
  zero::run_ranks(ranks, [&](zero::ThreadCommunicator& comm) {
    auto parameters = zero::shard_parameters<zero::Stage3, Single>(small_layout(), comm, streams(), zero::host_memory());
    try {
      if (comm.rank() == 1) {
        zero::ShardedOptimizer<zero::MomentumSGD, zero::Stage3> optimizer{parameters};
      } else {
        zero::ShardedOptimizer<zero::SGD, zero::Stage3> optimizer{parameters};
      }
    } catch (zero::MismatchError const& error) {
      messages[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  for (std::string const& message : messages)
    CHECK(message.find("ranks 0 and 1 were started with different optimizers") != std::string::npos);
}
