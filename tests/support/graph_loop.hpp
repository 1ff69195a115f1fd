// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A training loop at one rank whose passes and steps are calls of CUDA or replays of graphs, over the stand-in runtime or on a GPU.

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <zero/comm/self.hpp>
#include <zero/core/config.hpp>
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/train/captured_graph.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/device_training.hpp"

namespace zero::test {

/// gradient[i] += (weight[i] - *target) / 8, where the target is the device's: it changes between replays.
template <class Parameter, class Gradient>
struct PullToStored {
  Gradient* gradient;
  Parameter const* weight;
  float const* target;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { PullTo<Parameter, Gradient>{gradient, weight, *target}(i); }
};

struct StoreTarget {
  float* to;
  float value;
  ZERO_HOST_DEVICE void operator()() const { *to = value; }
};

/// A model and its loop.
template <class S, class P>
class GraphLoop {
public:
  using Parameter = typename P::parameter;
  using Gradient = typename P::gradient;

  explicit GraphLoop(bool overlap)
      : compute{{.events = 4}}, communication{{.events = 4}}, side_(overlap ? CudaStreamRef(communication) : CudaStreamRef(compute)) {
    parameters.initialize(3, [](ParameterId id) { return InitialValue::normal(0.25f * static_cast<float>(to_index(id)), 1); });
  }

  void set_target(float value) { CudaDevice::run(compute, StoreTarget{target.data(), value}); }

  template <class Pass>
  void train_unit(Pass& pass, Unit unit) {
    auto weights = pass.gather(unit);
    auto gradients = pass.gradients(unit);
    auto const ids = layout.parameters(unit);
    UnitView<Gradient> const into = gradients;
    UnitView<Parameter const> const of = weights;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      Gradient* const to = into[k];
      if (to == nullptr) continue;
      CudaDevice::for_each(compute, layout.elements(ids[k]), PullToStored<Parameter, Gradient>{to, of[k], target.data()});
    }
    gradients.hand_over();
  }

  void pass(bool last) {
    auto pass = parameters.training_pass({.last = last});
    for (Unit unit : layout.units().reversed()) train_unit(pass, unit);
    pass.finish();
  }

  Decision<CudaDevice> step() { return optimizer.step(parameters, {.max_norm = 1.5, .micro_batches = 2}); }

  Decision<CudaDevice> passes_and_step() {
    pass(false);
    pass(true);
    return step();
  }

  [[nodiscard]] auto capture() {
    return parameters.capture([this] { static_cast<void>(passes_and_step()); });
  }

  /// What the device holds of a decision.
  [[nodiscard]] StepState at(StepState const* state) {
    StepState result{};
    compute.synchronize();
    CudaDevice::copy(compute, &result, state, sizeof result);
    compute.synchronize();
    return result;
  }

  /// The bytes of all parameters and of the optimizer's states.
  [[nodiscard]] std::vector<std::vector<unsigned char>> contents() {
    std::vector<std::vector<unsigned char>> result;
    for (SegmentId segment : parameters.partition().segments()) {
      add(result, parameters.stored(segment).data(), parameters.stored(segment).storage().size_bytes());
      if (!parameters.partition().segment(segment).trainable) continue;
      for (int k = 0; k < 2; ++k) {
        auto const state = optimizer.state(parameters, segment, k);
        add(result, state.data(), state.storage().size_bytes());
      }
    }
    return result;
  }

  CudaStream compute;
  CudaStream communication;

private:
  CudaStreamRef side_;

  template <class T>
  void add(std::vector<std::vector<unsigned char>>& to, T const* data, std::size_t bytes) {
    std::vector<unsigned char> host(bytes);
    compute.synchronize();
    CudaDevice::copy(compute, host.data(), data, static_cast<std::int64_t>(bytes));
    compute.synchronize();
    to.push_back(std::move(host));
  }

public:
  CudaMemory memory;
  ParameterLayout layout = training_layout();
  BasicSelfCommunicator<CudaDevice> alone;
  decltype(shard_parameters<S, P>(std::declval<ParameterLayout const&>(), std::declval<BasicSelfCommunicator<CudaDevice>&>(),
                                  std::declval<Streams<CudaDevice>>(), std::declval<MemoryResource&>())) parameters =
      shard_parameters<S, P>(layout, alone, Streams<CudaDevice>{compute, side_}, memory);
  ShardedOptimizer<AdamW, S> optimizer{parameters, {.learning_rate = 0.05, .weight_decay = 0.1}};
  Buffer<float> target{memory, 1, Purpose::control};
};

/// What a run leaves behind.
struct GraphRun {
  std::vector<double> norms;
  std::vector<std::int64_t> applied;
  std::vector<std::int64_t> skipped;
  std::vector<std::int64_t> numbers;
  std::vector<std::vector<unsigned char>> contents;

  void add(Decision<CudaDevice> const& decision) {
    StepReport const report = decision.wait();
    norms.push_back(report.norm);
    applied.push_back(report.applied_steps);
    skipped.push_back(report.skipped_steps);
    numbers.push_back(decision.number());
  }
  friend bool operator==(GraphRun const&, GraphRun const&) = default;
};

inline constexpr int warm_up_steps = 1;
inline constexpr int captured_steps = 8;
inline constexpr int eager_steps = 2;
inline constexpr int skipped_step = 4;  // of the captured ones

/// The rate and the target of a step, which change all the time; one target is infinite.
template <class L>
void prepare(L& loop, int step) {
  loop.optimizer.options().learning_rate = 0.05 / (1 + step / 2);
  bool const infinite = step == warm_up_steps + skipped_step;
  loop.set_target(infinite ? std::numeric_limits<float>::infinity() : static_cast<float>(step));
}

/// A step by calls, some by `one`, some by calls again: the host may go back and forth between them.
template <class S, class P, class Make>
GraphRun run_loop(bool overlap, Make&& make) {
  GraphLoop<S, P> loop(overlap);
  GraphRun result;
  int step = 0;
  auto const eager = [&](int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      prepare(loop, step);
      result.add(loop.passes_and_step());
    }
  };
  eager(warm_up_steps);
  auto one = make(loop);
  for (int i = 0; i < captured_steps; ++i, ++step) {
    prepare(loop, step);
    result.add(one());
  }
  eager(eager_steps);
  prepare(loop, step++);
  result.add(one());
  result.contents = loop.contents();
  return result;
}

template <class S, class P>
GraphRun without_graph(bool overlap) {
  return run_loop<S, P>(overlap, [](auto& loop) { return [&loop] { return loop.passes_and_step(); }; });
}

/// The whole step as one graph.
template <class S, class P>
GraphRun one_graph(bool overlap) {
  return run_loop<S, P>(overlap, [](auto& loop) { return [&loop, graph = loop.capture()] { return loop.parameters.replay(graph); }; });
}

/// The same, launched by calls of CUDA's own.
template <class S, class P>
GraphRun one_graph_launched_by_hand(bool overlap) {
  return run_loop<S, P>(overlap, [](auto& loop) {
    return [&loop, graph = loop.capture()] {
      loop.optimizer.upload_options(loop.parameters);
      REQUIRE(cudaGraphLaunch(graph.graph().native(), loop.compute.native()) == cudaSuccess);
      return loop.parameters.replayed(graph, 1);
    };
  });
}

/// A graph for each part of a step; each is captured where the one before it has been replayed.
template <class S, class P>
GraphRun three_graphs(bool overlap) {
  return run_loop<S, P>(overlap, [](auto& loop) {
    using Graph = decltype(loop.capture());
    return [&loop, first = Graph(), next = Graph(), step = Graph(), captured = false]() mutable {
      auto& parameters = loop.parameters;
      if (!captured) first = parameters.capture([&] { loop.pass(false); });
      CHECK(parameters.replay(first).number() == 0);
      if (!captured) next = parameters.capture([&] { loop.pass(true); });
      static_cast<void>(parameters.replay(next));
      if (!captured) step = parameters.capture([&] { static_cast<void>(loop.step()); });
      captured = true;
      return parameters.replay(step);
    };
  });
}

/// The first micro-batch of each step is not captured: what it leaves under way for communication comes before the graph.
template <class S, class P>
GraphRun rest_of_a_step(bool overlap) {
  return run_loop<S, P>(overlap, [](auto& loop) {
    using Graph = decltype(loop.capture());
    return [&loop, rest = Graph(), captured = false]() mutable {
      loop.pass(false);
      if (!captured) {
        rest = loop.parameters.capture([&] {
          loop.pass(true);
          static_cast<void>(loop.step());
        });
      }
      captured = true;
      return loop.parameters.replay(rest);
    };
  });
}

/// The bits, reports and numbers of the calls, whichever part of a step is a graph.
template <class S, class P>
void check_replays(bool overlap, GraphRun const& expected) {
  GraphRun const whole = one_graph<S, P>(overlap);
  CHECK(whole == expected);
  GraphRun const by_hand = one_graph_launched_by_hand<S, P>(overlap);
  CHECK(by_hand == expected);
  GraphRun const rest = rest_of_a_step<S, P>(overlap);
  CHECK(rest == expected);
  GraphRun const in_parts = three_graphs<S, P>(overlap);
  CHECK(in_parts == expected);
}

/// What the calls leave: one step was skipped, all others were applied.
template <class S, class P>
GraphRun expected_of_replays() {
  GraphRun const expected = without_graph<S, P>(true);
  CHECK(expected.skipped.back() == 1);
  CHECK(expected.applied.back() == warm_up_steps + captured_steps + eager_steps);
  return expected;
}

}  // namespace zero::test
