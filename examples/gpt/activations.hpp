// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Everything one rank's forward pass leaves for its backward pass, and the work space of both, allocated once.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/device/memory.hpp>

#include "gpt/config.hpp"
#include "gpt/math.hpp"

namespace gpt {

/// What one block leaves. Sizes in brackets: R rows (batch * context), C channels, T context.
struct LayerActivations {
  float* input;               // [R, C] the residual stream that enters the block
  float* normalized_1;        // [R, C]
  float *means_1, *scales_1;  // [R]
  float* qkv;                 // [R, 3C]
  float* attention;           // [batch, heads, T, T] after the softmax
  float* heads;               // [R, C] attention times values
  float* middle;              // [R, C] the residual stream after attention
  float* normalized_2;        // [R, C]
  float *means_2, *scales_2;  // [R]
  float* slope;               // [R, 4C] the derivative of GELU
  float* hidden;              // [R, 4C] GELU's output
};

/// The buffers of one micro-batch, in memory of M's device. Sizes in brackets as above, and V vocabulary.
template <class M = HostMath>
class Activations {
public:
  using Math = M;

  explicit Activations(Config const& sizes, M const& where = {})
      : config(sizes), math(where), layers(static_cast<std::size_t>(sizes.layers)) {
    check(config);
    memory_ = zero::Buffer<std::byte>(math.memory(), lay_out(nullptr), zero::Purpose::staging);
    M::Device::fill(math.stream(), memory_.data(), memory_.size(), std::byte{});
    lay_out(memory_.data());
  }

  /// What these buffers take.
  [[nodiscard]] std::int64_t bytes() const { return memory_.bytes(); }

  Config const config;
  M const math;
  std::vector<LayerActivations> layers;
  float* output = nullptr;                                           // [R, C] the residual stream that leaves the last block
  float *normalized = nullptr, *means = nullptr, *scales = nullptr;  // [R, C], [R], [R] of the last LayerNorm
  float* logits = nullptr;                                           // [R, V]; after the loss: its gradient

  float* d_stream = nullptr;     // [R, C] gradient of the residual stream, from block to block
  float* d_rows = nullptr;       // [R, 4C]
  float* d_branch = nullptr;     // [R, C]
  float* d_attention = nullptr;  // work space of attention's backward pass
  float* weights = nullptr;      // the largest parameter: a 16-bit weight in fp32
  float* gradients = nullptr;    // the largest parameter: a gradient before it is added

private:
  static constexpr std::size_t alignment = 64;

  // Hands out consecutive pieces; called a first time to learn the size.
  std::int64_t lay_out(std::byte* memory) {
    std::int64_t used = 0;
    auto const take = [&](float*& to, std::int64_t elements) {
      if (memory != nullptr) to = reinterpret_cast<float*>(memory + used);
      std::int64_t const bytes = elements * static_cast<std::int64_t>(sizeof(float));
      used += (bytes + std::int64_t{alignment} - 1) / std::int64_t{alignment} * std::int64_t{alignment};
    };
    std::int64_t const rows = config.rows();
    std::int64_t const stream = rows * config.channels;
    for (LayerActivations& layer : layers) {
      take(layer.input, stream);
      take(layer.normalized_1, stream);
      take(layer.means_1, rows);
      take(layer.scales_1, rows);
      take(layer.qkv, 3 * stream);
      take(layer.attention, rows * config.heads * config.context);
      take(layer.heads, stream);
      take(layer.middle, stream);
      take(layer.normalized_2, stream);
      take(layer.means_2, rows);
      take(layer.scales_2, rows);
      take(layer.slope, 4 * stream);
      take(layer.hidden, 4 * stream);
    }
    take(output, stream);
    take(normalized, stream);
    take(means, rows);
    take(scales, rows);
    take(logits, rows * config.vocabulary);
    take(d_stream, stream);
    take(d_rows, 4 * stream);
    take(d_branch, stream);
    take(d_attention, attention_work(math, config));
    std::int64_t widest = 4 * config.channels;
    widest = widest < config.vocabulary ? config.vocabulary : widest;
    widest = widest < config.context ? config.context : widest;
    take(weights, widest * config.channels);
    take(gradients, widest * config.channels);
    return used;
  }

  zero::Buffer<std::byte> memory_;
};

}  // namespace gpt
