// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Causal self-attention on the host, one product per sequence and head.

#include <cmath>
#include <cstdint>

#include "gpt/activations.hpp"
#include "gpt/blas.hpp"
#include "gpt/layers.hpp"
#include "gpt/math.hpp"

namespace gpt {

namespace detail {

/// Calls f(rows before the sequence, channels before the head, number of the pair) for each sequence and head.
template <class F>
void for_each_head(Config const& config, F f) {
  for (std::int64_t sequence = 0; sequence < config.batch; ++sequence) {
    for (std::int64_t head = 0; head < config.heads; ++head) {
      f(sequence * config.context, head * config.head_channels(), sequence * config.heads + head);
    }
  }
}

}  // namespace detail

/// Elements of work space that `attention_backward` needs.
inline std::int64_t attention_work(HostMath, Config const& config) { return config.context * config.context; }

/// qkv [R, 3C] -> heads [R, C]; keeps the attention matrices.
inline void attention_forward(HostMath math, Config const& config, LayerActivations const& layer) {
  std::int64_t const channels = config.channels;
  std::int64_t const context = config.context;
  std::int64_t const width = config.head_channels();
  float const factor = 1.0f / std::sqrt(static_cast<float>(width));
  detail::for_each_head(config, [&](std::int64_t row, std::int64_t channel, std::int64_t pair) {
    float const* const qkv = layer.qkv + row * 3 * channels + channel;
    Matrix<float const> const q{qkv, 3 * channels};
    Matrix<float const> const k{qkv + channels, 3 * channels};
    Matrix<float const> const v{qkv + 2 * channels, 3 * channels};
    float* const attention = layer.attention + pair * context * context;
    multiply_by_transposed(math, Into::replace, context, context, width, q, k, {attention, context}, factor);
    causal_softmax_forward(math, context, attention);
    multiply(math, Into::replace, context, width, context, {attention, context}, v, {layer.heads + row * channels + channel, channels});
  });
}

/// d_heads [R, C] -> d_qkv [R, 3C]; d_attention is work space.
inline void attention_backward(HostMath math, Config const& config, LayerActivations const& layer, float const* d_heads, float* d_qkv,
                               float* d_attention) {
  std::int64_t const channels = config.channels;
  std::int64_t const context = config.context;
  std::int64_t const width = config.head_channels();
  float const factor = 1.0f / std::sqrt(static_cast<float>(width));
  detail::for_each_head(config, [&](std::int64_t row, std::int64_t channel, std::int64_t pair) {
    float const* const qkv = layer.qkv + row * 3 * channels + channel;
    Matrix<float const> const q{qkv, 3 * channels};
    Matrix<float const> const k{qkv + channels, 3 * channels};
    Matrix<float const> const v{qkv + 2 * channels, 3 * channels};
    Matrix<float const> const dy{d_heads + row * channels + channel, channels};
    Matrix<float const> const attention{layer.attention + pair * context * context, context};
    float* const d_first = d_qkv + row * 3 * channels + channel;
    multiply_transposed(math, Into::replace, context, width, context, attention, dy, {d_first + 2 * channels, 3 * channels});
    multiply_by_transposed(math, Into::replace, context, context, width, dy, v, {d_attention, context});
    causal_softmax_backward(math, context, attention.data, d_attention);
    multiply(math, Into::replace, context, width, context, {d_attention, context}, k, {d_first, 3 * channels}, factor);
    multiply_transposed(math, Into::replace, context, width, context, {d_attention, context}, q, {d_first + channels, 3 * channels},
                        factor);
  });
}

}  // namespace gpt
