// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The row-wise parts of a transformer: LayerNorm, GELU, softmax, cross entropy, biases. Plain loops that compilers vectorise.
///
/// Sums are formed in an order that depends on the number of elements only, so equal inputs give equal bits wherever they lie in memory.

#include <bit>
#include <cmath>
#include <cstdint>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>

namespace gpt {

/// The sum of f(0) to f(n - 1) in 16 interleaved partial sums.
template <class F>
float sum(std::int64_t n, F f) {
  constexpr std::int64_t lanes = 16;
  float partial[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) partial[lane] += f(i + lane);
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) partial[lane] += f(i);
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
  }
  return partial[0];
}

/// The largest of n > 0 numbers.
inline float largest(std::int64_t n, float const* x) {
  constexpr std::int64_t lanes = 16;
  float top[lanes];
  for (float& t : top) t = x[0];
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) top[lane] = x[i + lane] > top[lane] ? x[i + lane] : top[lane];
  }
  for (; i < n; ++i) top[0] = x[i] > top[0] ? x[i] : top[0];
  for (float const t : top) top[0] = t > top[0] ? t : top[0];
  return top[0];
}

/// e^x without a library call, so that loops vectorise: x = n ln 2 + r, the Taylor polynomial of degree 7 for e^r, and n put into the
/// exponent. The relative error is below 2e-7 in [-87, 88]; arguments outside are moved to the nearer end. Rounding to an integer by adding
/// 1.5 * 2^23 needs the written order of operations: not for -ffast-math.
inline float fast_exp(float x) {
  // The nearer end by masks: g++ turns the obvious conditional into a branch, which keeps the loop from being vectorised.
  auto const choose = [](bool condition, float a, float b) {
    std::uint32_t const mask = 0u - static_cast<std::uint32_t>(condition);
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(a) & mask) | (std::bit_cast<std::uint32_t>(b) & ~mask));
  };
  x = choose(x < -87.0f, -87.0f, x);
  x = choose(x > 88.0f, 88.0f, x);
  constexpr float round = 12582912.0f;
  float const n = (x * 1.44269504f + round) - round;
  float const r = (x - n * 0.693145751953125f) - n * 1.42860682e-6f;  // ln 2 in two parts; the first product is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 1.0f / 2;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

/// y = (x - mean) * scale * weight + bias for each row of `channels` elements, scale = 1 / sqrt(variance + 1e-5). Keeps mean and scale.
template <class W>
void layer_norm_forward(std::int64_t rows, std::int64_t channels, float const* x, W const* weight, W const* bias, float* y, float* means,
                        float* scales) {
  float const count = static_cast<float>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    float const mean = sum(channels, [x](std::int64_t i) { return x[i]; }) / count;
    float const variance = sum(channels, [x, mean](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
    float const scale = 1.0f / std::sqrt(variance + 1e-5f);
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < channels; ++i) {
      y[i] = (x[i] - mean) * scale * zero::element_cast<float>(weight[i]) + zero::element_cast<float>(bias[i]);
    }
    means[row] = mean;
    scales[row] = scale;
  }
}

/// Adds the gradient with respect to x to `dx`; overwrites `dweight` and `dbias` [channels].
template <class W>
void layer_norm_backward(std::int64_t rows, std::int64_t channels, float const* x, W const* weight, float const* means, float const* scales,
                         float const* dy, float* dx, float* dweight, float* dbias) {
  float const count = static_cast<float>(channels);
  for (std::int64_t i = 0; i < channels; ++i) dweight[i] = dbias[i] = 0.0f;
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    float const mean = means[row];
    float const scale = scales[row];
    auto const through_weight = [=](std::int64_t i) { return dy[i] * zero::element_cast<float>(weight[i]); };
    auto const normalized = [=](std::int64_t i) { return (x[i] - mean) * scale; };
    float const average = sum(channels, through_weight) / count;
    float const along = sum(channels, [=](std::int64_t i) { return through_weight(i) * normalized(i); }) / count;
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < channels; ++i) {
      dx[i] += (through_weight(i) - average - normalized(i) * along) * scale;
      dweight[i] += dy[i] * normalized(i);
      dbias[i] += dy[i];
    }
  }
}

/// GELU in the form 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x / (1 + exp(-2 sqrt(2 / pi) (...))): no tanh, no
/// cancellation. Replaces x by the derivative, which is all that backward needs.
inline void gelu_forward(std::int64_t n, float* x, float* y) {
  constexpr float twice_root = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    float const z = x[i];
    float const e = fast_exp(-twice_root * (z + 0.044715f * z * z * z));
    float const s = 1.0f / (1.0f + e);
    y[i] = z * s;
    x[i] = s + z * (e * s) * s * (twice_root * (1.0f + 3 * 0.044715f * z * z));
  }
}

/// dx = dy * slope, in place.
inline void gelu_backward(std::int64_t n, float const* slope, float* dy) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) dy[i] *= slope[i];
}

/// y = bias for each row, for a product to be added to.
template <class W>
void fill_with_bias(std::int64_t rows, std::int64_t columns, W const* bias, float* y) {
  for (std::int64_t row = 0; row < rows; ++row, y += columns) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < columns; ++i) y[i] = zero::element_cast<float>(bias[i]);
  }
}

/// y = x + bias for each row, for a product to be added to: the end of a residual branch.
template <class W>
void fill_with_residual(std::int64_t rows, std::int64_t columns, float const* x, W const* bias, float* y) {
  for (std::int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < columns; ++i) y[i] = x[i] + zero::element_cast<float>(bias[i]);
  }
}

/// dbias [columns] = the sum of the rows.
inline void bias_backward(std::int64_t rows, std::int64_t columns, float const* dy, float* dbias) {
  for (std::int64_t i = 0; i < columns; ++i) dbias[i] = 0.0f;
  for (std::int64_t row = 0; row < rows; ++row, dy += columns) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < columns; ++i) dbias[i] += dy[i];
  }
}

/// Replaces x[0] to x[n - 1] by exp(x - max) and returns their sum: softmax without the division.
inline float exponentials(std::int64_t n, float* x, float top) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) x[i] = fast_exp(x[i] - top);
  return sum(n, [x](std::int64_t i) { return x[i]; });
}

/// Softmax of row i of a square matrix over its columns 0 to i; the others become 0.
inline void causal_softmax_forward(std::int64_t size, float* x) {
  for (std::int64_t row = 0; row < size; ++row, x += size) {
    std::int64_t const seen = row + 1;
    float const factor = 1.0f / exponentials(seen, x, largest(seen, x));
    for (std::int64_t i = 0; i < seen; ++i) x[i] *= factor;
    for (std::int64_t i = seen; i < size; ++i) x[i] = 0.0f;
  }
}

/// dx = y (dy - sum of y dy), in place.
inline void causal_softmax_backward(std::int64_t size, float const* y, float* dy) {
  for (std::int64_t row = 0; row < size; ++row, y += size, dy += size) {
    std::int64_t const seen = row + 1;
    float const along = sum(seen, [y, dy](std::int64_t i) { return y[i] * dy[i]; });
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < seen; ++i) dy[i] = y[i] * (dy[i] - along);
    for (std::int64_t i = seen; i < size; ++i) dy[i] = 0.0f;
  }
}

/// Mean over the rows of -log softmax(logits)[target]. Replaces the logits by the gradient of that mean.
inline double cross_entropy(std::int64_t rows, std::int64_t vocabulary, float* logits, std::int32_t const* targets) {
  double total = 0;
  float const share = 1.0f / static_cast<float>(rows);
  for (std::int64_t row = 0; row < rows; ++row, logits += vocabulary) {
    float const top = largest(vocabulary, logits);
    float const chosen = logits[targets[row]] - top;
    float const denominator = exponentials(vocabulary, logits, top);
    total += std::log(static_cast<double>(denominator)) - static_cast<double>(chosen);
    float const factor = share / denominator;
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < vocabulary; ++i) logits[i] *= factor;
    logits[targets[row]] -= share;
  }
  return total / static_cast<double>(rows);
}

}  // namespace gpt
