// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The model's arithmetic on a device: everything is enqueued to one stream, and only the loss is waited for.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/device/device.hpp>
#include <zero/device/memory.hpp>

#include "gpt/activations.hpp"
#include "gpt/config.hpp"
#include "gpt/kernels.hpp"
#include "gpt/math.hpp"

namespace gpt {

/// A view: stream, memory and products must outlive it.
/// @tparam D  Runs the functors of kernels.hpp.
/// @tparam P  Has enqueue(Product const&), which computes it on the same stream.
template <zero::Device D, class P>
class DeviceMath {
public:
  using Device = D;

  /// @param memory  Takes blocks back in stream order, or waits for the device.
  DeviceMath(typename D::Stream stream, zero::MemoryResource& memory, P& products)
      : stream_(stream), memory_(&memory), products_(&products) {}

  [[nodiscard]] typename D::Stream stream() const { return stream_; }
  [[nodiscard]] zero::MemoryResource& memory() const { return *memory_; }
  [[nodiscard]] P& products() const { return *products_; }

  template <class F>
  void for_each(std::int64_t n, F const& f) const {
    D::for_each(stream_, n, f);
  }

  /// A copy of the host's numbers, for what is enqueued while it exists.
  template <class T>
  [[nodiscard]] zero::Buffer<T> on_device(T const* values, std::int64_t n) const {
    zero::Buffer<T> copy(memory(), n, zero::Purpose::staging);
    D::copy(stream_, copy.data(), values, copy.bytes());
    return copy;
  }

private:
  typename D::Stream stream_;
  zero::MemoryResource* memory_;
  P* products_;
};

template <class D, class P>
void compute(DeviceMath<D, P> const& math, Product const& product) {
  math.products().enqueue(product);
}

template <class D, class P, class W>
void layer_norm_forward(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t channels, float const* x, W const* weight,
                        W const* bias, float* y, float* means, float* scales) {
  math.for_each(rows, kernel::NormalizeRow<W>{channels, x, weight, bias, y, means, scales});
}

template <class D, class P, class W>
void layer_norm_backward(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t channels, float const* x, W const* weight,
                         float const* means, float const* scales, float const* dy, float* dx, float* dweight, float* dbias) {
  math.for_each(rows, kernel::NormalizeRowBackward<W>{channels, x, weight, means, scales, dy, dx});
  math.for_each(channels, kernel::NormParameterGradient{rows, channels, x, means, scales, dy, dweight, dbias});
}

template <class D, class P>
void gelu_forward(DeviceMath<D, P> const& math, std::int64_t n, float* x, float* y) {
  math.for_each(n, kernel::Gelu{x, y});
}

template <class D, class P>
void gelu_backward(DeviceMath<D, P> const& math, std::int64_t n, float const* slope, float* dy) {
  math.for_each(n, kernel::GeluBackward{slope, dy});
}

template <class D, class P, class W>
void fill_with_bias(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t columns, W const* bias, float* y) {
  math.for_each(rows * columns, kernel::FillWithBias<W>{columns, nullptr, bias, y});
}

template <class D, class P, class W>
void fill_with_residual(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t columns, float const* x, W const* bias, float* y) {
  math.for_each(rows * columns, kernel::FillWithBias<W>{columns, x, bias, y});
}

template <class D, class P>
void bias_backward(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t columns, float const* dy, float* dbias) {
  math.for_each(columns, kernel::SumColumn{rows, columns, dy, dbias});
}

template <class D, class P>
double cross_entropy(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t vocabulary, float* logits, std::int32_t const* targets) {
  auto const ids = math.on_device(targets, rows);
  zero::Buffer<double> losses(math.memory(), rows, zero::Purpose::staging);
  math.for_each(rows, kernel::CrossEntropy{vocabulary, logits, ids.data(), 1.0f / static_cast<float>(rows), losses.data()});
  std::vector<double> copy(static_cast<std::size_t>(rows));
  D::copy(math.stream(), copy.data(), losses.data(), losses.bytes());
  D::synchronize(math.stream());
  double total = 0;
  for (double const loss : copy) total += loss;
  return total / static_cast<double>(rows);
}

template <class D, class P, class W>
void add_embeddings(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t context, std::int64_t channels, W const* wte,
                    W const* wpe, std::int32_t const* tokens, float* x) {
  auto const ids = math.on_device(tokens, rows);
  math.for_each(rows * channels, kernel::AddEmbeddings<W>{context, channels, wte, wpe, ids.data(), x});
}

template <class D, class P>
void token_embedding_backward(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t vocabulary, std::int64_t channels,
                              float const* dx, std::int32_t const* tokens, float* dwte) {
  auto const ids = math.on_device(tokens, rows);
  D::fill(math.stream(), dwte, vocabulary * channels, 0.0f);
  math.for_each(channels, kernel::AddToTokens{rows, channels, dx, ids.data(), dwte});
}

template <class D, class P>
void position_embedding_backward(DeviceMath<D, P> const& math, std::int64_t rows, std::int64_t context, std::int64_t channels,
                                 float const* dx, float* dwpe) {
  math.for_each(context * channels, kernel::SumColumn{rows / context, context * channels, dx, dwpe});  // over the sequences
}

template <class D, class P, class W>
void widen(DeviceMath<D, P> const& math, std::int64_t n, W const* weights, float* to) {
  math.for_each(n, kernel::Widen<W>{weights, to});
}

template <class D, class P, class G>
void add_gradient(DeviceMath<D, P> const& math, std::int64_t n, float const* gradient, G* destination) {
  math.for_each(n, kernel::AddGradient<G>{gradient, destination});
}

/// Waits for the stream.
template <class D, class P>
float const* on_host(DeviceMath<D, P> const& math, std::int64_t n, float const* values, std::vector<float>& copy) {
  copy.resize(static_cast<std::size_t>(n));
  D::copy(math.stream(), copy.data(), values, n * static_cast<std::int64_t>(sizeof(float)));
  D::synchronize(math.stream());
  return copy.data();
}

// Attention: the heads of a sequence are one product, repeated.

template <class D, class P>
std::int64_t attention_work(DeviceMath<D, P> const&, Config const& config) {
  return config.rows() * config.heads * config.context;
}

template <class D, class P>
void attention_forward(DeviceMath<D, P> const& math, Config const& config, LayerActivations const& layer) {
  std::int64_t const channels = config.channels;
  std::int64_t const context = config.context;
  std::int64_t const width = config.head_channels();
  std::int64_t const square = context * context;
  float const factor = 1.0f / std::sqrt(static_cast<float>(width));
  for (std::int64_t s = 0; s < config.batch; ++s) {
    float const* const qkv = layer.qkv + s * context * 3 * channels;
    multiply_by_transposed(math, Into::replace, context, context, width, {qkv, 3 * channels}, {qkv + channels, 3 * channels},
                           {layer.attention + s * config.heads * square, context}, factor, {config.heads, width, width, square});
  }
  math.for_each(config.rows() * config.heads, kernel::CausalSoftmax{context, layer.attention});
  for (std::int64_t s = 0; s < config.batch; ++s) {
    float const* const v = layer.qkv + s * context * 3 * channels + 2 * channels;
    multiply(math, Into::replace, context, width, context, {layer.attention + s * config.heads * square, context}, {v, 3 * channels},
             {layer.heads + s * context * channels, channels}, 1.0f, {config.heads, square, width, width});
  }
}

template <class D, class P>
void attention_backward(DeviceMath<D, P> const& math, Config const& config, LayerActivations const& layer, float const* d_heads,
                        float* d_qkv, float* d_attention) {
  std::int64_t const channels = config.channels;
  std::int64_t const context = config.context;
  std::int64_t const width = config.head_channels();
  std::int64_t const square = context * context;
  float const factor = 1.0f / std::sqrt(static_cast<float>(width));
  Repeat const squares_by_rows{config.heads, square, width, width};
  for (std::int64_t s = 0; s < config.batch; ++s) {
    float const* const v = layer.qkv + s * context * 3 * channels + 2 * channels;
    float* const dv = d_qkv + s * context * 3 * channels + 2 * channels;
    Matrix<float const> const dy{d_heads + s * context * channels, channels};
    multiply_transposed(math, Into::replace, context, width, context, {layer.attention + s * config.heads * square, context}, dy,
                        {dv, 3 * channels}, 1.0f, squares_by_rows);
    multiply_by_transposed(math, Into::replace, context, context, width, dy, {v, 3 * channels},
                           {d_attention + s * config.heads * square, context}, 1.0f, {config.heads, width, width, square});
  }
  math.for_each(config.rows() * config.heads, kernel::CausalSoftmaxBackward{context, layer.attention, d_attention});
  for (std::int64_t s = 0; s < config.batch; ++s) {
    float const* const qkv = layer.qkv + s * context * 3 * channels;
    float* const d_first = d_qkv + s * context * 3 * channels;
    Matrix<float const> const d_scores{d_attention + s * config.heads * square, context};
    multiply(math, Into::replace, context, width, context, d_scores, {qkv + channels, 3 * channels}, {d_first, 3 * channels}, factor,
             squares_by_rows);
    multiply_transposed(math, Into::replace, context, width, context, d_scores, {qkv, 3 * channels}, {d_first + channels, 3 * channels},
                        factor, squares_by_rows);
  }
}

}  // namespace gpt
