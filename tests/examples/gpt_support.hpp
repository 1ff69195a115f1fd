// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A whole GPT model in the memory of one thread, without shards: what the tests of the example's model run on.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/core/hash.hpp>
#include <zero/layout/parameter_layout.hpp>
#include <zero/train/unit_view.hpp>

#include "gpt/attention.hpp"
#include "gpt/blas.hpp"
#include "gpt/layers.hpp"
#include "gpt/layout.hpp"
#include "gpt/model.hpp"

namespace zero::test {

/// One value per parameter element: weights or gradients.
template <class T>
class WholeModel {
public:
  explicit WholeModel(gpt::Config const& config) : layout(gpt::make_layout(config)) {
    for (ParameterId const id : layout.parameters()) values.emplace_back(static_cast<std::size_t>(layout.elements(id)));
    for (Unit const unit : layout.units()) {
      pointers_.emplace_back();
      for (ParameterId const id : layout.parameters(unit)) pointers_.back().push_back(values[static_cast<std::size_t>(id)].data());
    }
  }
  WholeModel(WholeModel const&) = delete;
  WholeModel& operator=(WholeModel const&) = delete;

  [[nodiscard]] UnitView<T> operator[](std::int64_t unit) const {
    return {layout, static_cast<Unit>(unit), pointers_[static_cast<std::size_t>(unit)].data()};
  }

  ParameterLayout layout;
  std::vector<std::vector<T>> values;  // by ParameterId

private:
  std::vector<std::vector<T*>> pointers_;
};

/// A number in [-1, 1) that depends on the key only.
inline float random_value(std::uint64_t key) { return static_cast<float>(static_cast<double>(mixed_bits(key) >> 11) * 0x1p-52 - 1.0); }

/// Random everywhere, LayerNorm weights around 1.
template <class T>
void fill_randomly(WholeModel<T>& model, float size) {
  std::uint64_t key = 0;
  for (ParameterId const id : model.layout.parameters()) {
    bool const is_scale = model.layout.name(id).find("ln_") != std::string_view::npos && model.layout.name(id).ends_with("weight");
    for (T& value : model.values[static_cast<std::size_t>(id)])
      value = element_cast<T>((is_scale ? 1.0f : 0.0f) + size * random_value(key++));
  }
}

template <class M, class Weights>
double forward(gpt::Activations<M>& activations, Weights const& weights, std::int32_t const* tokens, std::int32_t const* targets) {
  std::int64_t const layers = activations.config.layers;
  gpt::embedding_forward(activations, weights[0], tokens);
  for (std::int64_t layer = 0; layer < layers; ++layer) gpt::block_forward(activations, layer, weights[1 + layer]);
  return gpt::head_forward_loss(activations, weights[1 + layers], targets);
}

template <class M, class Weights, class Gradients>
void backward(gpt::Activations<M>& activations, Weights const& weights, Gradients const& gradients, std::int32_t const* tokens) {
  std::int64_t const layers = activations.config.layers;
  gpt::head_backward(activations, weights[1 + layers], gradients[1 + layers]);
  for (std::int64_t layer = layers; layer-- > 0;) gpt::block_backward(activations, layer, weights[1 + layer], gradients[1 + layer]);
  gpt::embedding_backward(activations, gradients[0], tokens);
}

/// ||a - b|| / ||b||
template <class A, class B>
double relative_error(A const& a, B const& b, std::size_t n) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double const x = static_cast<double>(element_cast<float>(a[i]));
    double const y = static_cast<double>(element_cast<float>(b[i]));
    difference += (x - y) * (x - y);
    size += y * y;
  }
  return std::sqrt(difference / size);
}

}  // namespace zero::test
