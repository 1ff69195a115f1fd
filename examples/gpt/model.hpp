// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// GPT-2, forward and backward, unit by unit: learned positions, LayerNorm before each branch, GELU in its tanh form, output weights tied
/// to the token embedding, no dropout.
///
/// The functions know nothing of ranks, stages or shards: they are given the whole weights of one unit and, in backward, memory of the same
/// shapes to add its gradients to. Weights and gradients may be of a 16-bit type; all arithmetic is fp32, and a gradient is rounded once,
/// when it is added. Equal inputs give equal bits.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <zero/core/element.hpp>
#include <zero/train/unit_view.hpp>

#include "gpt/activations.hpp"
#include "gpt/attention.hpp"
#include "gpt/blas.hpp"
#include "gpt/layers.hpp"

namespace gpt {

namespace detail {

/// n weights as fp32: where they are if they are fp32, else converted into `work`.
template <class W>
float const* as_float(W const* weights, std::int64_t n, float* work) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) work[i] = zero::element_cast<float>(weights[i]);
  return work;
}
inline float const* as_float(float const* weights, std::int64_t, float*) { return weights; }

/// destination += gradient
template <class G>
void add_gradient(std::int64_t n, float const* gradient, G* destination) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) destination[i] = zero::element_cast<G>(zero::element_cast<float>(destination[i]) + gradient[i]);
}

/// y [rows, out] += x [rows, in] weight [in, out]
template <class W>
void add_linear(Activations& a, std::int64_t in, std::int64_t out, float const* x, W const* weight, float* y) {
  multiply(Into::add, a.config.rows(), out, in, {x, in}, {as_float(weight, in * out, a.weights), out}, {y, out});
}

/// Adds x^T dy, x [rows, in], dy [rows, out], to the gradient of a weight [in, out].
template <class G>
void add_weight_gradient(Activations& a, std::int64_t in, std::int64_t out, float const* x, float const* dy, G* d_weight) {
  if constexpr (std::is_same_v<G, float>) {
    multiply_transposed(Into::add, in, out, a.config.rows(), {x, in}, {dy, out}, {d_weight, out});
  } else {
    multiply_transposed(Into::replace, in, out, a.config.rows(), {x, in}, {dy, out}, {a.gradients, out});
    add_gradient(in * out, a.gradients, d_weight);
  }
}

/// dx [rows, in] = dy weight^T; adds the gradients of weight and bias.
template <class W, class G>
void linear_backward(Activations& a, std::int64_t in, std::int64_t out, float const* x, W const* weight, float const* dy, float* dx,
                     G* d_weight, G* d_bias) {
  std::int64_t const rows = a.config.rows();
  add_weight_gradient(a, in, out, x, dy, d_weight);
  bias_backward(rows, out, dy, a.gradients);
  add_gradient(out, a.gradients, d_bias);
  multiply_by_transposed(Into::replace, rows, in, out, {dy, out}, {as_float(weight, in * out, a.weights), out}, {dx, in});
}

/// Adds the gradient of x to dx, and the gradients of weight and bias.
template <class W, class G>
void layer_norm_backward(Activations& a, float const* x, W const* weight, float const* means, float const* scales, float const* dy,
                         float* dx, G* d_weight, G* d_bias) {
  std::int64_t const channels = a.config.channels;
  gpt::layer_norm_backward(a.config.rows(), channels, x, weight, means, scales, dy, dx, a.gradients, a.gradients + channels);
  add_gradient(channels, a.gradients, d_weight);
  add_gradient(channels, a.gradients + channels, d_bias);
}

/// Where block `layer` leaves its result: the input of the next one.
inline float* output_of(Activations& a, std::int64_t layer) {
  return layer + 1 < a.config.layers ? a.layers[static_cast<std::size_t>(layer + 1)].input : a.output;
}

}  // namespace detail

/// Starts a forward pass. @param tokens [rows] ids from 0 to vocabulary - 1
template <class W>
void embedding_forward(Activations& a, zero::UnitView<W> weights, std::int32_t const* tokens) {
  auto const [wte, wpe] = zero::pointers<2>(weights);
  std::int64_t const channels = a.config.channels;
  for (std::int64_t row = 0; row < a.config.rows(); ++row) {
    float* const x = a.layers.front().input + row * channels;
    auto const* const token = wte + tokens[row] * channels;
    auto const* const position = wpe + row % a.config.context * channels;
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < channels; ++i) x[i] = zero::element_cast<float>(token[i]) + zero::element_cast<float>(position[i]);
  }
}

/// Block `layer`, after those before it.
template <class W>
void block_forward(Activations& a, std::int64_t layer, zero::UnitView<W> weights) {
  auto const [ln_1_weight, ln_1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias,  //
              ln_2_weight, ln_2_bias, up_weight, up_bias, down_weight, down_bias] = zero::pointers<12>(weights);
  Activations::Layer const& l = a.layers[static_cast<std::size_t>(layer)];
  std::int64_t const rows = a.config.rows();
  std::int64_t const c = a.config.channels;
  layer_norm_forward(rows, c, l.input, ln_1_weight, ln_1_bias, l.normalized_1, l.means_1, l.scales_1);
  fill_with_bias(rows, 3 * c, qkv_bias, l.qkv);
  detail::add_linear(a, c, 3 * c, l.normalized_1, qkv_weight, l.qkv);
  attention_forward(a.config, l);
  fill_with_residual(rows, c, l.input, projection_bias, l.middle);
  detail::add_linear(a, c, c, l.heads, projection_weight, l.middle);

  layer_norm_forward(rows, c, l.middle, ln_2_weight, ln_2_bias, l.normalized_2, l.means_2, l.scales_2);
  fill_with_bias(rows, 4 * c, up_bias, l.slope);
  detail::add_linear(a, c, 4 * c, l.normalized_2, up_weight, l.slope);
  gelu_forward(rows * 4 * c, l.slope, l.hidden);
  float* const output = detail::output_of(a, layer);
  fill_with_residual(rows, c, l.middle, down_bias, output);
  detail::add_linear(a, 4 * c, c, l.hidden, down_weight, output);
}

/// Ends a forward pass for use rather than training. @return logits [rows, vocabulary], valid until the next pass
template <class W>
float const* head_forward(Activations& a, zero::UnitView<W> weights) {
  auto const [ln_weight, ln_bias, wte] = zero::pointers<3>(weights);
  std::int64_t const rows = a.config.rows();
  std::int64_t const c = a.config.channels;
  std::int64_t const vocabulary = a.config.vocabulary;
  layer_norm_forward(rows, c, a.output, ln_weight, ln_bias, a.normalized, a.means, a.scales);
  multiply_by_transposed(Into::replace, rows, vocabulary, c, {a.normalized, c}, {detail::as_float(wte, vocabulary * c, a.weights), c},
                         {a.logits, vocabulary});
  return a.logits;
}

/// Ends a forward pass. @param targets [rows] the ids that should have been predicted
/// @return the cross entropy, its mean over the rows [nats]
template <class W>
double head_forward_loss(Activations& a, zero::UnitView<W> weights, std::int32_t const* targets) {
  head_forward(a, weights);
  return cross_entropy(a.config.rows(), a.config.vocabulary, a.logits, targets);
}

/// Starts a backward pass, after `head_forward_loss`.
template <class W, class G>
void head_backward(Activations& a, zero::UnitView<W> weights, zero::UnitView<G> gradients) {
  auto const [ln_weight, ln_bias, wte] = zero::pointers<3>(weights);
  auto const [d_ln_weight, d_ln_bias, d_wte] = zero::pointers<3>(gradients);
  std::int64_t const rows = a.config.rows();
  std::int64_t const c = a.config.channels;
  std::int64_t const vocabulary = a.config.vocabulary;
  detail::add_weight_gradient(a, vocabulary, c, a.logits, a.normalized, d_wte);
  multiply(Into::replace, rows, c, vocabulary, {a.logits, vocabulary}, {detail::as_float(wte, vocabulary * c, a.weights), c},
           {a.d_branch, c});
  std::memset(a.d_stream, 0, static_cast<std::size_t>(rows * c) * sizeof(float));
  detail::layer_norm_backward(a, a.output, ln_weight, a.means, a.scales, a.d_branch, a.d_stream, d_ln_weight, d_ln_bias);
}

/// Block `layer`, after those behind it.
template <class W, class G>
void block_backward(Activations& a, std::int64_t layer, zero::UnitView<W> weights, zero::UnitView<G> gradients) {
  auto const [ln_1_weight, ln_1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias,  //
              ln_2_weight, ln_2_bias, up_weight, up_bias, down_weight, down_bias] = zero::pointers<12>(weights);
  auto const [d_ln_1_weight, d_ln_1_bias, d_qkv_weight, d_qkv_bias, d_projection_weight, d_projection_bias,  //
              d_ln_2_weight, d_ln_2_bias, d_up_weight, d_up_bias, d_down_weight, d_down_bias] = zero::pointers<12>(gradients);
  Activations::Layer const& l = a.layers[static_cast<std::size_t>(layer)];
  std::int64_t const c = a.config.channels;
  detail::linear_backward(a, 4 * c, c, l.hidden, down_weight, a.d_stream, a.d_rows, d_down_weight, d_down_bias);
  gelu_backward(a.config.rows() * 4 * c, l.slope, a.d_rows);
  detail::linear_backward(a, c, 4 * c, l.normalized_2, up_weight, a.d_rows, a.d_branch, d_up_weight, d_up_bias);
  detail::layer_norm_backward(a, l.middle, ln_2_weight, l.means_2, l.scales_2, a.d_branch, a.d_stream, d_ln_2_weight, d_ln_2_bias);

  detail::linear_backward(a, c, c, l.heads, projection_weight, a.d_stream, a.d_branch, d_projection_weight, d_projection_bias);
  attention_backward(a.config, l, a.d_branch, a.d_rows, a.d_attention);
  detail::linear_backward(a, c, 3 * c, l.normalized_1, qkv_weight, a.d_rows, a.d_branch, d_qkv_weight, d_qkv_bias);
  detail::layer_norm_backward(a, l.input, ln_1_weight, l.means_1, l.scales_1, a.d_branch, a.d_stream, d_ln_1_weight, d_ln_1_bias);
}

/// Ends a backward pass. @param tokens [rows] those given to `embedding_forward`
template <class G>
void embedding_backward(Activations& a, zero::UnitView<G> gradients, std::int32_t const* tokens) {
  auto const [d_wte, d_wpe] = zero::pointers<2>(gradients);
  std::int64_t const channels = a.config.channels;
  auto const scatter = [&](std::int64_t count, auto index_of, G* destination) {
    std::memset(a.gradients, 0, static_cast<std::size_t>(count * channels) * sizeof(float));
    for (std::int64_t row = 0; row < a.config.rows(); ++row) {
      float* const to = a.gradients + index_of(row) * channels;
      float const* const from = a.d_stream + row * channels;
      ZERO_INDEPENDENT_LOOP
      for (std::int64_t i = 0; i < channels; ++i) to[i] += from[i];
    }
    detail::add_gradient(count * channels, a.gradients, destination);
  };
  scatter(
      a.config.vocabulary, [&](std::int64_t row) { return std::int64_t{tokens[row]}; }, d_wte);
  scatter(
      a.config.context, [&](std::int64_t row) { return row % a.config.context; }, d_wpe);
}

}  // namespace gpt
