// SPDX-License-Identifier: Apache-2.0
/// @file
/// The loop, whole: a two-layer network learns XOR, trained at each of the four stages by the same text, with the same result to the last bit.

#include <cmath>
#include <cstdio>
#include <zero/zero.hpp>

namespace {

constexpr int hidden = 16;

zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  zero::Unit const first = layout.add_unit("first");
  layout.add(first, "first.weight", {2, hidden});
  layout.add(first, "first.bias", {hidden});
  zero::Unit const second = layout.add_unit("second");
  layout.add(second, "second.weight", {hidden});
  layout.add(second, "second.bias", {1});
  return layout;
}

/// The user's own model: plain functions over plain pointers, no template over the stage.
struct Network {
  float x[2], target, h[hidden], d_h[hidden], d_y, loss;

  void forward(zero::Unit unit, zero::UnitView<float const> weights) {
    auto [weight, bias] = zero::pointers<2>(weights);
    if (unit == zero::Unit{0}) {
      for (int i = 0; i < hidden; ++i) h[i] = std::tanh(x[0] * weight[i] + x[1] * weight[hidden + i] + bias[i]);
    } else {
      float y = bias[0];
      for (int i = 0; i < hidden; ++i) y += h[i] * weight[i];
      d_y = y - target;
      loss = d_y * d_y / 2;
    }
  }
  void backward(zero::Unit unit, zero::UnitView<float const> weights, zero::UnitView<float> gradients) {
    auto [d_weight, d_bias] = zero::pointers<2>(gradients);
    if (unit == zero::Unit{1}) {
      d_bias[0] += d_y;
      for (int i = 0; i < hidden; ++i) d_weight[i] += d_y * h[i];
      for (int i = 0; i < hidden; ++i) d_h[i] = d_y * weights["weight"][i] * (1 - h[i] * h[i]);
    } else {
      for (int i = 0; i < hidden; ++i) d_weight[i] += d_h[i] * x[0], d_weight[hidden + i] += d_h[i] * x[1], d_bias[i] += d_h[i];
    }
  }
};

template <class Stage>
float train(zero::ThreadCommunicator& comm, zero::ParameterLayout const& layout) {
  auto const here = zero::HostStreamRef::calling_thread();
  auto parameters = zero::shard_parameters<Stage, zero::Precision<float>>(layout, comm, {here, here}, zero::host_memory());
  zero::ShardedOptimizer<zero::AdamW, Stage> optimizer{parameters, {.learning_rate = 0.02, .weight_decay = 0}};
  parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 0.7f); });

  Network network{};
  float loss = 0;
  for (int step = 0; step < 300; ++step) {
    int const row = comm.rank();  // each rank has one of the four rows of the truth table
    network.x[0] = static_cast<float>(row & 1), network.x[1] = static_cast<float>(row >> 1),
    network.target = static_cast<float>(row == 1 || row == 2);
    auto pass = parameters.training_pass({.last = true});
    for (zero::Unit unit : layout.units()) {
      auto weights = pass.gather(unit);  // a trivial view where parameters are Replicated; else released with the scope
      network.forward(unit, weights);
    }
    for (zero::Unit unit : layout.units().reversed()) {
      auto weights = pass.gather(unit);
      auto gradients = pass.gradients(unit);  // full-size, to be added to
      network.backward(unit, weights, gradients);
      gradients.hand_over();  // reduces what the stage keeps reduced; the step reduces the rest
    }
    pass.finish();
    optimizer.step(parameters, {.max_norm = 1.0});
    loss = network.loss;
  }
  return loss;
}

}  // namespace

int main() {
  zero::ParameterLayout const layout = make_layout();
  zero::run_ranks(4, [&](zero::ThreadCommunicator& comm) {
    float losses[4];
    for (int stage = 0; stage < 4; ++stage) losses[stage] = zero::with_stage(stage, [&]<class S>(S) { return train<S>(comm, layout); });
    std::printf("rank %d: loss %.3g at stages 0 to 3\n", comm.rank(), static_cast<double>(losses[0]));
    for (float loss : losses) {
      if (loss != losses[0] || !(loss < 0.01f)) throw zero::Error("the stages disagree, or nothing was learnt", comm.rank());
    }
  });
}
