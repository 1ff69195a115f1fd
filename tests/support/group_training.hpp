// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A few steps of training by the ranks of a group, which every transport and device runs: what it leaves is compared with the threads' on the
/// host.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/operations.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>
#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/core/hash.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/streams.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/device_training.hpp"

namespace zero::test {

/// gradient[i] += a number made of the seed and i: an integer from 0 to 3, or any.
template <class Gradient>
struct AddNumbers {
  Gradient* gradient;
  std::uint64_t seed;
  bool integers;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    std::uint64_t bits = seed + static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    bits ^= bits >> 31;
    float const number = integers ? static_cast<float>(bits >> 62) : static_cast<float>(bits >> 40) * 0x1p-20f - 7.0f;
    gradient[i] = element_cast<Gradient>(static_cast<float>(static_cast<compute_t<Gradient>>(gradient[i])) + number);
  }
};

/// What a rank has at the end.
struct GroupTrained {
  std::vector<unsigned char> parameters;
  std::vector<double> norms;
  std::int64_t received[subject_count] = {};
  std::int64_t calls[subject_count] = {};
  friend bool operator==(GroupTrained const&, GroupTrained const&) = default;
};

/// Three steps of two micro-batches. All transports run this text.
/// @param after_step  is called after each.
/// @param reserve     all buffers first, after which `after_step` is called too
template <class S, class P, class Group>
GroupTrained train_group(
    Group& group, Streams<typename Group::Device> streams, MemoryResource& memory, Traffic& traffic, bool integers,
    std::function<void()> const& after_step = [] {}, bool reserve = false) {
  using D = typename Group::Device;
  using Parameter = typename P::parameter;
  using Gradient = typename P::gradient;
  ParameterLayout const layout = training_layout();
  auto parameters = shard_parameters<S, P>(layout, group, streams, memory);
  ShardedOptimizer<SGD, S> optimizer{parameters, {.learning_rate = 0.125}};
  parameters.initialize(3, [](ParameterId) { return InitialValue::normal(0, 1); });
  if (reserve) {
    parameters.reserve({.micro_batches = 2});
    after_step();
  }
  GroupTrained result;
  for (int step = 0; step < 3; ++step) {
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass({.last = m == 1});
      for (Unit unit : layout.units()) static_cast<void>(pass.gather(unit));
      for (Unit unit : layout.units().reversed()) {
        auto const weights = pass.gather(unit);  // As a backward needs them.
        static_cast<void>(weights);
        auto gradients = pass.gradients(unit);
        UnitView<Gradient> const into = gradients;
        auto const ids = layout.parameters(unit);
        for (std::size_t k = 0; k < ids.size(); ++k) {
          if (into[k] == nullptr) continue;
          std::uint64_t const seed = Hasher{}
                                         .add(static_cast<std::uint64_t>(100 * step + 10 * m + group.rank()))
                                         .add(static_cast<std::uint64_t>(to_index(ids[k])))
                                         .value();
          D::for_each(streams.compute, layout.elements(ids[k]), AddNumbers<Gradient>{into[k], seed, integers});
        }
        gradients.hand_over();
      }
      pass.finish();
    }
    result.norms.push_back(optimizer.step(parameters, {.max_norm = 50.0, .micro_batches = 2}).wait().norm);
    after_step();
  }
  auto const whole = parameters.gather_all();
  for (Unit unit : layout.units()) {
    UnitView<Parameter const> const view = whole[unit];
    for (std::int32_t k = 0; k < view.size(); ++k) {
      Buffer<Parameter> host{D::pinned_memory(), view.elements(k), Purpose::control};
      D::copy(streams.compute, host.data(), view[k], host.bytes());
      D::synchronize(streams.compute);
      auto const* const bytes = reinterpret_cast<unsigned char const*>(host.data());
      result.parameters.insert(result.parameters.end(), bytes, bytes + host.bytes());
    }
  }
  for (int s = 0; s < subject_count; ++s) {
    result.received[s] = traffic.received_bytes(static_cast<Subject>(s));
    result.calls[s] = traffic.calls(static_cast<Subject>(s));
  }
  return result;
}

template <class S, class P>
std::vector<GroupTrained> train_over_threads(int ranks, bool integers) {
  std::vector<GroupTrained> results(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](ThreadCommunicator& comm) {
    HostStream const stream;
    Traffic traffic;
    Counting counting{Borrowed{comm}, traffic};
    results[static_cast<std::size_t>(comm.rank())] = train_group<S, P>(counting, {stream, stream}, host_memory(), traffic, integers);
  });
  return results;
}

}  // namespace zero::test
