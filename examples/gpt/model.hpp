// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// GPT-2, forward and backward, unit by unit: learned positions, LayerNorm before each branch, GELU in its tanh form, output weights tied
/// to the token embedding, no dropout.
///
/// The functions know nothing of ranks, stages or shards: they are given the whole weights of one unit and, in backward, memory of the same
/// shapes to add its gradients to. Weights and gradients may be of a 16-bit type; all arithmetic is fp32, and a gradient is rounded once,
/// when it is added. Equal inputs give equal bits. Where it is done is the matter of the `Math` (math.hpp) of the activations; weights,
/// gradients and activations are in the memory of its device, tokens and targets in the host's.

#include <cstdint>
#include <type_traits>

#include <zero/train/unit_view.hpp>

#include "gpt/activations.hpp"
#include "gpt/math.hpp"

namespace gpt {

namespace detail {

/// n weights as fp32: where they are if they are fp32, else converted into work space.
template <class M, class W>
float const* as_float(Activations<M>& a, W const* weights, std::int64_t n) {
  if constexpr (std::is_same_v<W, float>) {
    return weights;
  } else {
    widen(a.math, n, weights, a.weights);
    return a.weights;
  }
}

/// y [rows, out] += x [rows, in] weight [in, out]
template <class M, class W>
void add_linear(Activations<M>& a, std::int64_t in, std::int64_t out, float const* x, W const* weight, float* y) {
  multiply(a.math, Into::add, a.config.rows(), out, in, {x, in}, {as_float(a, weight, in * out), out}, {y, out});
}

/// Adds x^T dy, x [rows, in], dy [rows, out], to the gradient of a weight [in, out].
template <class M, class G>
void add_weight_gradient(Activations<M>& a, std::int64_t in, std::int64_t out, float const* x, float const* dy, G* d_weight) {
  if constexpr (std::is_same_v<G, float>) {
    multiply_transposed(a.math, Into::add, in, out, a.config.rows(), {x, in}, {dy, out}, {d_weight, out});
  } else {
    multiply_transposed(a.math, Into::replace, in, out, a.config.rows(), {x, in}, {dy, out}, {a.gradients, out});
    add_gradient(a.math, in * out, a.gradients, d_weight);
  }
}

/// dx [rows, in] = dy weight^T; adds the gradients of weight and bias.
template <class M, class W, class G>
void linear_backward(Activations<M>& a, std::int64_t in, std::int64_t out, float const* x, W const* weight, float const* dy, float* dx,
                     G* d_weight, G* d_bias) {
  std::int64_t const rows = a.config.rows();
  add_weight_gradient(a, in, out, x, dy, d_weight);
  bias_backward(a.math, rows, out, dy, a.gradients);
  add_gradient(a.math, out, a.gradients, d_bias);
  multiply_by_transposed(a.math, Into::replace, rows, in, out, {dy, out}, {as_float(a, weight, in * out), out}, {dx, in});
}

/// Adds the gradient of x to dx, and the gradients of weight and bias.
template <class M, class W, class G>
void norm_backward(Activations<M>& a, float const* x, W const* weight, float const* means, float const* scales, float const* dy, float* dx,
                   G* d_weight, G* d_bias) {
  std::int64_t const channels = a.config.channels;
  layer_norm_backward(a.math, a.config.rows(), channels, x, weight, means, scales, dy, dx, a.gradients, a.gradients + channels);
  add_gradient(a.math, channels, a.gradients, d_weight);
  add_gradient(a.math, channels, a.gradients + channels, d_bias);
}

/// Where block `layer` leaves its result: the input of the next one.
template <class M>
float* output_of(Activations<M>& a, std::int64_t layer) {
  return layer + 1 < a.config.layers ? a.layers[static_cast<std::size_t>(layer + 1)].input : a.output;
}

}  // namespace detail

/// Starts a forward pass. @param tokens [rows] ids from 0 to vocabulary - 1
template <class M, class W>
void embedding_forward(Activations<M>& a, zero::UnitView<W> weights, std::int32_t const* tokens) {
  auto const [wte, wpe] = zero::pointers<2>(weights);
  add_embeddings(a.math, a.config.rows(), a.config.context, a.config.channels, wte, wpe, tokens, a.layers.front().input);
}

/// Block `layer`, after those before it.
template <class M, class W>
void block_forward(Activations<M>& a, std::int64_t layer, zero::UnitView<W> weights) {
  auto const [ln_1_weight, ln_1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias,  //
              ln_2_weight, ln_2_bias, up_weight, up_bias, down_weight, down_bias] = zero::pointers<12>(weights);
  LayerActivations const& l = a.layers[static_cast<std::size_t>(layer)];
  std::int64_t const rows = a.config.rows();
  std::int64_t const c = a.config.channels;
  layer_norm_forward(a.math, rows, c, l.input, ln_1_weight, ln_1_bias, l.normalized_1, l.means_1, l.scales_1);
  fill_with_bias(a.math, rows, 3 * c, qkv_bias, l.qkv);
  detail::add_linear(a, c, 3 * c, l.normalized_1, qkv_weight, l.qkv);
  attention_forward(a.math, a.config, l);
  fill_with_residual(a.math, rows, c, l.input, projection_bias, l.middle);
  detail::add_linear(a, c, c, l.heads, projection_weight, l.middle);

  layer_norm_forward(a.math, rows, c, l.middle, ln_2_weight, ln_2_bias, l.normalized_2, l.means_2, l.scales_2);
  fill_with_bias(a.math, rows, 4 * c, up_bias, l.slope);
  detail::add_linear(a, c, 4 * c, l.normalized_2, up_weight, l.slope);
  gelu_forward(a.math, rows * 4 * c, l.slope, l.hidden);
  float* const output = detail::output_of(a, layer);
  fill_with_residual(a.math, rows, c, l.middle, down_bias, output);
  detail::add_linear(a, 4 * c, c, l.hidden, down_weight, output);
}

/// Ends a forward pass for use rather than training. @return logits [rows, vocabulary], valid until the next pass
template <class M, class W>
float const* head_forward(Activations<M>& a, zero::UnitView<W> weights) {
  auto const [ln_weight, ln_bias, wte] = zero::pointers<3>(weights);
  std::int64_t const rows = a.config.rows();
  std::int64_t const c = a.config.channels;
  std::int64_t const vocabulary = a.config.vocabulary;
  layer_norm_forward(a.math, rows, c, a.output, ln_weight, ln_bias, a.normalized, a.means, a.scales);
  multiply_by_transposed(a.math, Into::replace, rows, vocabulary, c, {a.normalized, c}, {detail::as_float(a, wte, vocabulary * c), c},
                         {a.logits, vocabulary});
  return a.logits;
}

/// Ends a forward pass. @param targets [rows] the ids that should have been predicted
/// @return the cross entropy, its mean over the rows [nats]
template <class M, class W>
double head_forward_loss(Activations<M>& a, zero::UnitView<W> weights, std::int32_t const* targets) {
  head_forward(a, weights);
  return cross_entropy(a.math, a.config.rows(), a.config.vocabulary, a.logits, targets);
}

/// Starts a backward pass, after `head_forward_loss`.
template <class M, class W, class G>
void head_backward(Activations<M>& a, zero::UnitView<W> weights, zero::UnitView<G> gradients) {
  auto const [ln_weight, ln_bias, wte] = zero::pointers<3>(weights);
  auto const [d_ln_weight, d_ln_bias, d_wte] = zero::pointers<3>(gradients);
  std::int64_t const rows = a.config.rows();
  std::int64_t const c = a.config.channels;
  std::int64_t const vocabulary = a.config.vocabulary;
  detail::add_weight_gradient(a, vocabulary, c, a.logits, a.normalized, d_wte);
  multiply(a.math, Into::replace, rows, c, vocabulary, {a.logits, vocabulary}, {detail::as_float(a, wte, vocabulary * c), c},
           {a.d_branch, c});
  M::Device::fill(a.math.stream(), a.d_stream, rows * c, 0.0f);
  detail::norm_backward(a, a.output, ln_weight, a.means, a.scales, a.d_branch, a.d_stream, d_ln_weight, d_ln_bias);
}

/// Block `layer`, after those behind it.
template <class M, class W, class G>
void block_backward(Activations<M>& a, std::int64_t layer, zero::UnitView<W> weights, zero::UnitView<G> gradients) {
  auto const [ln_1_weight, ln_1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias,  //
              ln_2_weight, ln_2_bias, up_weight, up_bias, down_weight, down_bias] = zero::pointers<12>(weights);
  auto const [d_ln_1_weight, d_ln_1_bias, d_qkv_weight, d_qkv_bias, d_projection_weight, d_projection_bias,  //
              d_ln_2_weight, d_ln_2_bias, d_up_weight, d_up_bias, d_down_weight, d_down_bias] = zero::pointers<12>(gradients);
  LayerActivations const& l = a.layers[static_cast<std::size_t>(layer)];
  std::int64_t const c = a.config.channels;
  detail::linear_backward(a, 4 * c, c, l.hidden, down_weight, a.d_stream, a.d_rows, d_down_weight, d_down_bias);
  gelu_backward(a.math, a.config.rows() * 4 * c, l.slope, a.d_rows);
  detail::linear_backward(a, c, 4 * c, l.normalized_2, up_weight, a.d_rows, a.d_branch, d_up_weight, d_up_bias);
  detail::norm_backward(a, l.middle, ln_2_weight, l.means_2, l.scales_2, a.d_branch, a.d_stream, d_ln_2_weight, d_ln_2_bias);

  detail::linear_backward(a, c, c, l.heads, projection_weight, a.d_stream, a.d_branch, d_projection_weight, d_projection_bias);
  attention_backward(a.math, a.config, l, a.d_branch, a.d_rows, a.d_attention);
  detail::linear_backward(a, c, 3 * c, l.normalized_1, qkv_weight, a.d_rows, a.d_branch, d_qkv_weight, d_qkv_bias);
  detail::norm_backward(a, l.input, ln_1_weight, l.means_1, l.scales_1, a.d_branch, a.d_stream, d_ln_1_weight, d_ln_1_bias);
}

/// Ends a backward pass. @param tokens [rows] those given to `embedding_forward`
template <class M, class G>
void embedding_backward(Activations<M>& a, zero::UnitView<G> gradients, std::int32_t const* tokens) {
  auto const [d_wte, d_wpe] = zero::pointers<2>(gradients);
  Config const& c = a.config;
  token_embedding_backward(a.math, c.rows(), c.vocabulary, c.channels, a.d_stream, tokens, a.gradients);
  add_gradient(a.math, c.vocabulary * c.channels, a.gradients, d_wte);
  position_embedding_backward(a.math, c.rows(), c.context, c.channels, a.d_stream, a.gradients);
  add_gradient(a.math, c.context * c.channels, a.gradients, d_wpe);
}

}  // namespace gpt
