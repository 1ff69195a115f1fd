// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The row-wise parts of a transformer: LayerNorm, GELU, softmax, cross entropy, biases, embeddings. What is done to one row or element is for
/// every device; the functions of a `HostMath` are plain loops over it that compilers vectorise.
///
/// Sums are formed in an order that depends on the number of elements only, so equal inputs give equal bits wherever they lie in memory.

#include <cmath>
#include <cstdint>
#include <vector>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>

#include "gpt/math.hpp"

namespace gpt {

/// The sum of f(0) to f(n - 1) in 16 interleaved partial sums.
template <class F>
ZERO_HOST_DEVICE float sum(std::int64_t n, F f) {
  constexpr std::int64_t lanes = 16;
  float partial[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) partial[lane] += f(i + lane);
  }
  for (std::int64_t lane = 0; lane < lanes; ++lane) {  // to a constant end: a GPU keeps the sums in registers then
    if (i + lane < n) partial[lane] += f(i + lane);
  }
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
  }
  return partial[0];
}

/// The largest of n > 0 numbers.
ZERO_HOST_DEVICE inline float largest(std::int64_t n, float const* x) {
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
ZERO_HOST_DEVICE inline float fast_exp(float x) {
  // The nearer end by masks: g++ turns the obvious conditional into a branch, which keeps the loop from being vectorised.
  auto const choose = [](bool condition, float a, float b) {
    std::uint32_t const mask = 0u - static_cast<std::uint32_t>(condition);
    return __builtin_bit_cast(float, (__builtin_bit_cast(std::uint32_t, a) & mask) | (__builtin_bit_cast(std::uint32_t, b) & ~mask));
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
  return p * __builtin_bit_cast(float, (static_cast<std::int32_t>(n) + 127) << 23);
}

/// y = (x - mean) * scale * weight + bias for a row of `channels` elements, scale = 1 / sqrt(variance + 1e-5). Keeps mean and scale.
template <class W>
ZERO_HOST_DEVICE void normalize_row(std::int64_t channels, float const* x, W const* weight, W const* bias, float* y, float& kept_mean,
                                    float& kept_scale) {
  float const count = static_cast<float>(channels);
  float const mean = sum(channels, [x](std::int64_t i) { return x[i]; }) / count;
  float const variance = sum(channels, [x, mean](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
  float const scale = 1.0f / std::sqrt(variance + 1e-5f);
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < channels; ++i) {
    y[i] = (x[i] - mean) * scale * zero::element_cast<float>(weight[i]) + zero::element_cast<float>(bias[i]);
  }
  kept_mean = mean;
  kept_scale = scale;
}

/// LayerNorm of each row.
template <class W>
void layer_norm_forward(HostMath, std::int64_t rows, std::int64_t channels, float const* x, W const* weight, W const* bias, float* y,
                        float* means, float* scales) {
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    normalize_row(channels, x, weight, bias, y, means[row], scales[row]);
  }
}

/// Adds the gradient of `normalize_row` with respect to x to `dx`, and where asked those of weight and bias to `dweight` and `dbias`.
template <bool OfParametersToo, class W>
ZERO_HOST_DEVICE void normalize_row_backward(std::int64_t channels, float const* x, W const* weight, float mean, float scale,
                                             float const* dy, float* dx, [[maybe_unused]] float* dweight, [[maybe_unused]] float* dbias) {
  float const count = static_cast<float>(channels);
  auto const through_weight = [=](std::int64_t i) { return dy[i] * zero::element_cast<float>(weight[i]); };
  auto const normalized = [=](std::int64_t i) { return (x[i] - mean) * scale; };
  float const average = sum(channels, through_weight) / count;
  float const along = sum(channels, [=](std::int64_t i) { return through_weight(i) * normalized(i); }) / count;
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < channels; ++i) {
    dx[i] += (through_weight(i) - average - normalized(i) * along) * scale;
    if constexpr (OfParametersToo) {
      dweight[i] += dy[i] * normalized(i);
      dbias[i] += dy[i];
    }
  }
}

/// Adds the gradient with respect to x to `dx`; overwrites `dweight` and `dbias` [channels].
template <class W>
void layer_norm_backward(HostMath, std::int64_t rows, std::int64_t channels, float const* x, W const* weight, float const* means,
                         float const* scales, float const* dy, float* dx, float* dweight, float* dbias) {
  for (std::int64_t i = 0; i < channels; ++i) dweight[i] = dbias[i] = 0.0f;
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    normalize_row_backward<true>(channels, x, weight, means[row], scales[row], dy, dx, dweight, dbias);
  }
}

/// GELU in the form 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x / (1 + exp(-2 sqrt(2 / pi) (...))): no tanh, no
/// cancellation. Replaces x by the derivative, which is all that backward needs.
ZERO_HOST_DEVICE inline void gelu(float& x, float& y) {
  constexpr float twice_root = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  float const z = x;
  float const e = fast_exp(-twice_root * (z + 0.044715f * z * z * z));
  float const s = 1.0f / (1.0f + e);
  y = z * s;
  x = s + z * (e * s) * s * (twice_root * (1.0f + 3 * 0.044715f * z * z));
}

/// GELU of n elements.
inline void gelu_forward(HostMath, std::int64_t n, float* x, float* y) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) gelu(x[i], y[i]);
}

/// dx = dy * slope, in place.
inline void gelu_backward(HostMath, std::int64_t n, float const* slope, float* dy) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) dy[i] *= slope[i];
}

/// y = bias for each row, for a product to be added to.
template <class W>
void fill_with_bias(HostMath, std::int64_t rows, std::int64_t columns, W const* bias, float* y) {
  for (std::int64_t row = 0; row < rows; ++row, y += columns) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < columns; ++i) y[i] = zero::element_cast<float>(bias[i]);
  }
}

/// y = x + bias for each row, for a product to be added to: the end of a residual branch.
template <class W>
void fill_with_residual(HostMath, std::int64_t rows, std::int64_t columns, float const* x, W const* bias, float* y) {
  for (std::int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < columns; ++i) y[i] = x[i] + zero::element_cast<float>(bias[i]);
  }
}

/// dbias [columns] = the sum of the rows.
inline void bias_backward(HostMath, std::int64_t rows, std::int64_t columns, float const* dy, float* dbias) {
  for (std::int64_t i = 0; i < columns; ++i) dbias[i] = 0.0f;
  for (std::int64_t row = 0; row < rows; ++row, dy += columns) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < columns; ++i) dbias[i] += dy[i];
  }
}

/// Replaces x[0] to x[n - 1] by exp(x - max) and returns their sum: softmax without the division.
ZERO_HOST_DEVICE inline float exponentials(std::int64_t n, float* x, float top) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) x[i] = fast_exp(x[i] - top);
  return sum(n, [x](std::int64_t i) { return x[i]; });
}

/// Softmax of a row over its first `seen` columns; the others become 0.
ZERO_HOST_DEVICE inline void softmax_row(std::int64_t seen, std::int64_t columns, float* x) {
  float const factor = 1.0f / exponentials(seen, x, largest(seen, x));
  for (std::int64_t i = 0; i < seen; ++i) x[i] *= factor;
  for (std::int64_t i = seen; i < columns; ++i) x[i] = 0.0f;
}

/// dx = y (dy - sum of y dy) in the first `seen` columns, in place; the others become 0.
ZERO_HOST_DEVICE inline void softmax_row_backward(std::int64_t seen, std::int64_t columns, float const* y, float* dy) {
  float const along = sum(seen, [y, dy](std::int64_t i) { return y[i] * dy[i]; });
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < seen; ++i) dy[i] = y[i] * (dy[i] - along);
  for (std::int64_t i = seen; i < columns; ++i) dy[i] = 0.0f;
}

/// Softmax of row i of a square matrix over its columns 0 to i.
inline void causal_softmax_forward(HostMath, std::int64_t size, float* x) {
  for (std::int64_t row = 0; row < size; ++row, x += size) softmax_row(row + 1, size, x);
}

inline void causal_softmax_backward(HostMath, std::int64_t size, float const* y, float* dy) {
  for (std::int64_t row = 0; row < size; ++row, y += size, dy += size) softmax_row_backward(row + 1, size, y, dy);
}

/// -log softmax(logits)[target] of a row. Replaces the logits by its gradient times `share`.
ZERO_HOST_DEVICE inline double cross_entropy_row(std::int64_t vocabulary, float* logits, std::int32_t target, float share) {
  float const top = largest(vocabulary, logits);
  float const chosen = logits[target] - top;
  float const denominator = exponentials(vocabulary, logits, top);
  float const factor = share / denominator;
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < vocabulary; ++i) logits[i] *= factor;
  logits[target] -= share;
  return std::log(static_cast<double>(denominator)) - static_cast<double>(chosen);
}

/// The mean of the rows' cross entropies. Replaces the logits by the gradient of that mean.
inline double cross_entropy(HostMath, std::int64_t rows, std::int64_t vocabulary, float* logits, std::int32_t const* targets) {
  double total = 0;
  float const share = 1.0f / static_cast<float>(rows);
  for (std::int64_t row = 0; row < rows; ++row, logits += vocabulary) total += cross_entropy_row(vocabulary, logits, targets[row], share);
  return total / static_cast<double>(rows);
}

/// x = the embedding of each row's token and that of its position.
template <class W>
void add_embeddings(HostMath, std::int64_t rows, std::int64_t context, std::int64_t channels, W const* wte, W const* wpe,
                    std::int32_t const* tokens, float* x) {
  for (std::int64_t row = 0; row < rows; ++row, x += channels) {
    W const* const token = wte + tokens[row] * channels;
    W const* const position = wpe + row % context * channels;
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < channels; ++i) x[i] = zero::element_cast<float>(token[i]) + zero::element_cast<float>(position[i]);
  }
}

namespace detail {

/// to[index_of(row)] = the sum of the rows with that index.
template <class F>
void sum_rows(std::int64_t rows, std::int64_t channels, float const* from, F index_of, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count * channels; ++i) to[i] = 0.0f;
  for (std::int64_t row = 0; row < rows; ++row, from += channels) {
    float* const sum = to + index_of(row) * channels;
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < channels; ++i) sum[i] += from[i];
  }
}

}  // namespace detail

/// dwte [vocabulary, channels] = for each token the sum of its rows of dx.
inline void token_embedding_backward(HostMath, std::int64_t rows, std::int64_t vocabulary, std::int64_t channels, float const* dx,
                                     std::int32_t const* tokens, float* dwte) {
  detail::sum_rows(
      rows, channels, dx, [=](std::int64_t row) { return std::int64_t{tokens[row]}; }, vocabulary, dwte);
}

/// dwpe [context, channels] = for each position the sum of its rows of dx.
inline void position_embedding_backward(HostMath, std::int64_t rows, std::int64_t context, std::int64_t channels, float const* dx,
                                        float* dwpe) {
  detail::sum_rows(
      rows, channels, dx, [=](std::int64_t row) { return row % context; }, context, dwpe);
}

/// n weights as fp32.
template <class W>
void widen(HostMath, std::int64_t n, W const* weights, float* to) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = zero::element_cast<float>(weights[i]);
}

/// destination += gradient, rounded once.
template <class G>
void add_gradient(HostMath, std::int64_t n, float const* gradient, G* destination) {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < n; ++i) destination[i] = zero::element_cast<G>(zero::element_cast<float>(destination[i]) + gradient[i]);
}

/// n numbers of the model where the calling thread reads them; `copy` holds them where they must be copied.
inline float const* on_host(HostMath, std::int64_t, float const* values, std::vector<float>&) { return values; }

}  // namespace gpt
