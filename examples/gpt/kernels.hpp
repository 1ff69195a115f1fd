// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a device runs beside matrix products: functors over rows, columns or elements, each written to by one call, so that no sum has an
/// order of its own and bits repeat. One thread does a row or a column: simple, and far from the fastest that a GPU can do.

#include <cstdint>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>

#include "gpt/layers.hpp"

namespace gpt::kernel {

/// Of a row.
template <class W>
struct NormalizeRow {
  std::int64_t channels;
  float const* x;
  W const *weight, *bias;
  float *y, *means, *scales;

  ZERO_HOST_DEVICE void operator()(std::int64_t row) const {
    normalize_row(channels, x + row * channels, weight, bias, y + row * channels, means[row], scales[row]);
  }
};

/// Of a row: adds LayerNorm's gradient with respect to x.
template <class W>
struct NormalizeRowBackward {
  std::int64_t channels;
  float const* x;
  W const* weight;
  float const *means, *scales, *dy;
  float* dx;

  ZERO_HOST_DEVICE void operator()(std::int64_t row) const {
    normalize_row_backward<false>(channels, x + row * channels, weight, means[row], scales[row], dy + row * channels, dx + row * channels,
                                  nullptr, nullptr);
  }
};

/// Of a column: LayerNorm's gradients with respect to weight and bias.
struct NormParameterGradient {
  std::int64_t rows, channels;
  float const *x, *means, *scales, *dy;
  float *dweight, *dbias;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    float weight = 0.0f;
    float bias = 0.0f;
    for (std::int64_t row = 0; row < rows; ++row) {
      float const d = dy[row * channels + i];
      weight += d * ((x[row * channels + i] - means[row]) * scales[row]);
      bias += d;
    }
    dweight[i] = weight;
    dbias[i] = bias;
  }
};

struct Gelu {
  float *x, *y;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { gelu(x[i], y[i]); }
};

struct GeluBackward {
  float const* slope;
  float* dy;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { dy[i] *= slope[i]; }
};

/// y = bias, and x where there is one.
template <class W>
struct FillWithBias {
  std::int64_t columns;
  float const* x;  // or null
  W const* bias;
  float* y;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    float const b = zero::element_cast<float>(bias[i % columns]);
    y[i] = x == nullptr ? b : x[i] + b;
  }
};

/// Of a column: the sum of its rows.
struct SumColumn {
  std::int64_t rows, columns;
  float const* from;
  float* to;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    float total = 0.0f;
    for (std::int64_t row = 0; row < rows; ++row) total += from[row * columns + i];
    to[i] = total;
  }
};

/// Of a row of one of many square matrices that follow each other.
struct CausalSoftmax {
  std::int64_t size;
  float* x;
  ZERO_HOST_DEVICE void operator()(std::int64_t row) const { softmax_row(row % size + 1, size, x + row * size); }
};

struct CausalSoftmaxBackward {
  std::int64_t size;
  float const* y;
  float* dy;
  ZERO_HOST_DEVICE void operator()(std::int64_t row) const { softmax_row_backward(row % size + 1, size, y + row * size, dy + row * size); }
};

/// Of a row.
struct CrossEntropy {
  std::int64_t vocabulary;
  float* logits;
  std::int32_t const* targets;
  float share;
  double* losses;  // [rows]

  ZERO_HOST_DEVICE void operator()(std::int64_t row) const {
    losses[row] = cross_entropy_row(vocabulary, logits + row * vocabulary, targets[row], share);
  }
};

template <class W>
struct AddEmbeddings {
  std::int64_t context, channels;
  W const *wte, *wpe;
  std::int32_t const* tokens;
  float* x;

  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    std::int64_t const row = i / channels;
    std::int64_t const channel = i % channels;
    x[i] = zero::element_cast<float>(wte[tokens[row] * channels + channel]) +
           zero::element_cast<float>(wpe[row % context * channels + channel]);
  }
};

/// Of a channel: adds its elements of all rows to those of their tokens, in the order of the rows.
struct AddToTokens {
  std::int64_t rows, channels;
  float const* dx;
  std::int32_t const* tokens;
  float* dwte;

  ZERO_HOST_DEVICE void operator()(std::int64_t channel) const {
    for (std::int64_t row = 0; row < rows; ++row) dwte[tokens[row] * channels + channel] += dx[row * channels + channel];
  }
};

template <class W>
struct Widen {
  W const* from;
  float* to;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = zero::element_cast<float>(from[i]); }
};

template <class G>
struct AddGradient {
  float const* gradient;
  G* to;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = zero::element_cast<G>(zero::element_cast<float>(to[i]) + gradient[i]); }
};

}  // namespace gpt::kernel
