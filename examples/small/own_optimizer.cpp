// SPDX-License-Identifier: Apache-2.0
/// @file
/// An optimizer of one's own: Lion (Chen et al., arXiv 2302.06675), in ten lines, sharded like any other.

#include <cmath>
#include <cstdio>
#include <zero/zero.hpp>

struct Lion {
  float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0;
  static constexpr int states = 1;
  ZERO_HOST_DEVICE void operator()(float& parameter, float gradient, float& momentum) const {
    float const update = beta1 * momentum + (1 - beta1) * gradient;
    float const sign = static_cast<float>(update > 0) - static_cast<float>(update < 0);
    parameter -= learning_rate * (sign + weight_decay * parameter);
    momentum = beta2 * momentum + (1 - beta2) * gradient;
  }
};

int main() {
  zero::ParameterLayout layout;
  zero::Unit const unit = layout.add_unit("line");
  zero::ParameterId const id = layout.add(unit, "line.slope_and_offset", {2});

  // Fits y = 3 x - 1: each rank has its own points, and every rank ends with the same line.
  zero::run_ranks(4, [&](zero::ThreadCommunicator& comm) {
    auto const here = zero::HostStreamRef::calling_thread();
    auto parameters = zero::shard_parameters<zero::Stage3, zero::Precision<float>>(layout, comm, {here, here}, zero::host_memory());
    zero::ShardedOptimizer<Lion, zero::Stage3> optimizer{parameters, {.learning_rate = 0.01f}};
    parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });

    for (int step = 0; step < 1000; ++step) {
      auto pass = parameters.training_pass({.last = true});
      auto weights = pass.gather(unit);
      auto gradients = pass.gradients(unit);
      for (int i = 0; i < 8; ++i) {
        float const x = static_cast<float>(comm.rank() * 8 + i) / 16.0f - 1.0f;
        float const error = weights[0][0] * x + weights[0][1] - (3 * x - 1);
        gradients[0][0] += error * x / 8;
        gradients[0][1] += error / 8;
      }
      gradients.hand_over();
      weights.release();
      pass.finish();
      optimizer.options().learning_rate = 0.01f * (1.0f - static_cast<float>(step) / 1000.0f);
      optimizer.step(parameters);
    }

    auto const model = parameters.gather_all();
    float const slope = model[id][0];
    float const offset = model[id][1];
    if (std::fabs(slope - 3) > 0.01f || std::fabs(offset + 1) > 0.01f) throw zero::Error("the line is wrong", comm.rank());
    if (comm.rank() == 0) std::printf("y = %.3f x + %.3f\n", static_cast<double>(slope), static_cast<double>(offset));
  });
}
