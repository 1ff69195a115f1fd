// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Training of one rank on any device: the same loop and kernels for the host, the stand-in of CUDA and a GPU, to compare their bits.

#include <cstdint>
#include <cstring>
#include <vector>

#include <zero/comm/self.hpp>
#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/streams.hpp>
#include <zero/layout/parameter_layout.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

namespace zero::test {

/// gradient[i] += (weight[i] - target) / 8: exact enough to drive an optimizer, with no sum whose order could matter.
template <class Parameter, class Gradient>
struct PullTo {
  Gradient* gradient;
  Parameter const* weight;
  float target;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    float const pull = detail::product(static_cast<float>(static_cast<compute_t<Parameter>>(weight[i])) - target, 0.125f);
    gradient[i] = element_cast<Gradient>(static_cast<float>(static_cast<compute_t<Gradient>>(gradient[i])) + pull);
  }
};

/// Odd sizes, a tail, two units, a frozen parameter.
inline ParameterLayout training_layout() {
  ParameterLayout layout;
  Unit const first = layout.add_unit("first");
  layout.add(first, "first.weight", {37, 11});
  layout.add(first, "first.bias", {37});
  Unit const second = layout.add_unit("second");
  layout.add(second, "second.weight", {1000});
  layout.add(second, "second.frozen", {5}, {.trainable = false});
  layout.add(second, "second.bias", {3});
  return layout;
}

/// What a run leaves behind, as bytes of the host.
struct Trained {
  std::vector<std::vector<unsigned char>> parameters;
  std::vector<double> norms;
  std::int64_t applied = 0;
  std::int64_t skipped = 0;
  friend bool operator==(Trained const&, Trained const&) = default;
};

/// A few steps with clipping, micro-batches, and one step that is skipped because of an infinite gradient.
template <class D, class S, class P>
Trained train_alone(Streams<D> streams, MemoryResource& memory) {
  using Parameter = typename P::parameter;
  using Gradient = typename P::gradient;
  ParameterLayout const layout = training_layout();
  BasicSelfCommunicator<D> alone;
  auto parameters = shard_parameters<S, P>(layout, alone, streams, memory);
  ShardedOptimizer<AdamW, S> optimizer{parameters, {.learning_rate = 0.05, .weight_decay = 0.1}};
  parameters.initialize(3, [](ParameterId id) { return InitialValue::normal(0.25f * static_cast<float>(to_index(id)), 1); });
  Trained result;
  constexpr int steps = 6;
  for (int step = 0; step < steps; ++step) {
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass({.last = m == 1});
      for (Unit unit : layout.units().reversed()) {
        auto weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        auto const ids = layout.parameters(unit);
        for (std::size_t k = 0; k < ids.size(); ++k) {
          UnitView<Gradient> const into = gradients;
          UnitView<Parameter const> const of = weights;
          Gradient* const to = into[k];
          if (to == nullptr) continue;
          float const target = step == 3 ? 1e38f * static_cast<float>(1 + 9 * m) : static_cast<float>(step + m);
          D::for_each(streams.compute, layout.elements(ids[k]), PullTo<Parameter, Gradient>{to, of[k], target});
        }
        gradients.hand_over();
      }
      pass.finish();
    }
    auto const decision = optimizer.step(parameters, {.max_norm = step < 2 ? 1.0 : 0.0, .micro_batches = 2});
    StepReport const report = decision.wait();
    result.norms.push_back(report.norm);
    result.applied = report.applied_steps;
    result.skipped = report.skipped_steps;
  }
  auto const whole = parameters.gather_all();
  for (Unit unit : layout.units()) {
    UnitView<Parameter const> const view = whole[unit];
    for (std::int32_t k = 0; k < view.size(); ++k) {
      Buffer<Parameter> host{D::pinned_memory(), view.elements(k), Purpose::control};
      D::copy(streams.compute, host.data(), view[k], host.bytes());
      D::synchronize(streams.compute);
      auto const* const bytes = reinterpret_cast<unsigned char const*>(host.data());
      result.parameters.emplace_back(bytes, bytes + host.bytes());
    }
  }
  return result;
}

}  // namespace zero::test
