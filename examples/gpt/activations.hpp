// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Everything one rank's forward pass leaves for its backward pass, and the work space of both, allocated once.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "gpt/config.hpp"

namespace gpt {

/// The buffers of one micro-batch. Sizes in brackets: R rows (batch * context), C channels, T context, V vocabulary.
class Activations {
public:
  struct Layer {
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

  explicit Activations(Config const& sizes) : config(sizes), layers(static_cast<std::size_t>(sizes.layers)) {
    check(config);
    bytes_ = lay_out(nullptr);
    memory_.reset(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes_), std::align_val_t{alignment})));
    std::memset(memory_.get(), 0, static_cast<std::size_t>(bytes_));
    lay_out(memory_.get());
  }

  /// What these buffers take.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  Config const config;
  std::vector<Layer> layers;
  float* output = nullptr;                                           // [R, C] the residual stream that leaves the last block
  float *normalized = nullptr, *means = nullptr, *scales = nullptr;  // [R, C], [R], [R] of the last LayerNorm
  float* logits = nullptr;                                           // [R, V]; after the loss: its gradient

  float* d_stream = nullptr;     // [R, C] gradient of the residual stream, from block to block
  float* d_rows = nullptr;       // [R, 4C]
  float* d_branch = nullptr;     // [R, C]
  float* d_attention = nullptr;  // [T, T]
  float* weights = nullptr;      // the largest parameter: a 16-bit weight in fp32
  float* gradients = nullptr;    // the largest parameter: a gradient before it is added

private:
  static constexpr std::size_t alignment = 64;

  struct Delete {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, std::align_val_t{alignment}); }
  };

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
    for (Layer& layer : layers) {
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
    take(d_attention, config.context * config.context);
    std::int64_t widest = 4 * config.channels;
    widest = widest < config.vocabulary ? config.vocabulary : widest;
    widest = widest < config.context ? config.context : widest;
    take(weights, widest * config.channels);
    take(gradients, widest * config.channels);
    return used;
  }

  std::unique_ptr<std::byte, Delete> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace gpt
