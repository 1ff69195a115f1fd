// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The example trainer's model, once on the host and once on a device, from the same weights: to compare what comes out.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/core/hash.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/parameter_layout.hpp>
#include <zero/train/unit_view.hpp>

#include "examples/gpt_support.hpp"
#include "gpt/device_math.hpp"

namespace zero::test {

/// A whole model in the memory of a `DeviceMath`: a copy of one of the host.
template <class T>
class DeviceModel {
public:
  template <class M>
  DeviceModel(M const& math, WholeModel<T> const& host) : layout_(host.layout) {
    for (std::vector<T> const& values : host.values) {
      values_.emplace_back(math.memory(), static_cast<std::int64_t>(values.size()), Purpose::parameters);
      M::Device::copy(math.stream(), values_.back().data(), values.data(), values_.back().bytes());
    }
    for (Unit const unit : layout_.units()) {
      pointers_.emplace_back();
      for (ParameterId const id : layout_.parameters(unit)) pointers_.back().push_back(values_[static_cast<std::size_t>(id)].data());
    }
  }

  [[nodiscard]] UnitView<T> operator[](std::int64_t unit) const {
    return {layout_, static_cast<Unit>(unit), pointers_[static_cast<std::size_t>(unit)].data()};
  }

  template <class M>
  void copy_to(M const& math, WholeModel<T>& host) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      M::Device::copy(math.stream(), host.values[i].data(), values_[i].data(), values_[i].bytes());
    }
    M::Device::synchronize(math.stream());
  }

private:
  ParameterLayout const& layout_;
  std::vector<Buffer<T>> values_;
  std::vector<std::vector<T*>> pointers_;
};

/// What a forward and a backward pass give. The gradients are added to what is there, `start` everywhere.
template <class T>
struct GptOutcome {
  explicit GptOutcome(gpt::Config const& config, float start = 0) : gradients(config) {
    for (auto& values : gradients.values) {
      for (T& value : values) value = element_cast<T>(start);
    }
  }
  double loss = 0;
  std::vector<float> logits;
  WholeModel<T> gradients;
};

/// Weights and token ids that depend on the sizes only.
template <class T>
struct GptCase {
  explicit GptCase(gpt::Config const& sizes) : config(sizes), weights(sizes) {
    fill_randomly(weights, 0.3f);
    for (std::int64_t row = 0; row <= config.rows(); ++row) {
      auto const id =
          static_cast<std::int32_t>(mixed_bits(static_cast<std::uint64_t>(row)) % static_cast<std::uint64_t>(config.vocabulary));
      if (row < config.rows()) tokens.push_back(id);
      if (row > 0) targets.push_back(id);
    }
  }

  void run_on_host(GptOutcome<T>& outcome) const {
    gpt::Activations<> activations(config);
    run(activations, weights, outcome.gradients, outcome);
  }

  template <class M>
  void run_on_device(M const& math, GptOutcome<T>& outcome) const {
    gpt::Activations<M> activations(config, math);
    DeviceModel<T> const on_device(math, weights);
    DeviceModel<T> const gradients(math, outcome.gradients);
    run(activations, on_device, gradients, outcome);
    gradients.copy_to(math, outcome.gradients);
  }

  gpt::Config config;
  WholeModel<T> weights;
  std::vector<std::int32_t> tokens, targets;

private:
  template <class M, class Weights, class Gradients>
  void run(gpt::Activations<M>& activations, Weights const& of, Gradients const& into, GptOutcome<T>& outcome) const {
    outcome.loss = forward(activations, of, tokens.data(), targets.data());
    backward(activations, of, into, tokens.data());
    // Once more without the loss, which replaces the logits.
    gpt::embedding_forward(activations, of[0], tokens.data());
    for (std::int64_t layer = 0; layer < config.layers; ++layer) gpt::block_forward(activations, layer, of[1 + layer]);
    std::vector<float> copy;
    std::int64_t const n = config.rows() * config.vocabulary;
    float const* const logits = on_host(activations.math, n, gpt::head_forward(activations, of[1 + config.layers]), copy);
    outcome.logits.assign(logits, logits + n);
  }
};

}  // namespace zero::test
