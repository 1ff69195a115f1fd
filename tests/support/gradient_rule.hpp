// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a test's backward adds to a gradient: a pure function of a key, the element and its weight, so that any rank and any reference can
/// evaluate it.

#include <cstdint>

#include <zero/core/hash.hpp>

namespace zero::test {

struct GradientRule {
  enum class Kind : std::int32_t { constant, integers, noise };

  Kind kind = Kind::constant;
  std::uint64_t key = 0;
  double a = 0;  ///< the constant; one in so many integers is not 0; what noise is multiplied with
  double b = 0;  ///< unused; the largest integer; what the weight is multiplied with

  /// Every element is `value`.
  static GradientRule constant(double value) { return {Kind::constant, 0, value, 0}; }
  /// One element in `one_in` is an integer in [-largest, largest] but 0, the others are 0.
  static GradientRule integers(std::uint64_t key, int one_in, int largest) {
    return {Kind::integers, key, static_cast<double>(one_in), static_cast<double>(largest)};
  }
  /// Uniform in [-scale, scale), plus `of_weight` times the weight.
  static GradientRule noise(std::uint64_t key, double scale, double of_weight) { return {Kind::noise, key, scale, of_weight}; }

  double operator()(std::int64_t element, double weight) const noexcept {
    if (kind == Kind::constant) return a;
    std::uint64_t const bits = Hasher{}.add(key).add(static_cast<std::uint64_t>(element)).value();
    if (kind == Kind::integers) {
      if (bits % static_cast<std::uint64_t>(a) != 0) return 0;
      auto const magnitude = 1 + static_cast<std::int64_t>((bits >> 20) % static_cast<std::uint64_t>(b));
      return static_cast<double>((bits >> 50 & 1u) != 0 ? magnitude : -magnitude);
    }
    return a * (static_cast<double>(bits >> 11) * 0x1p-52 - 1.0) + b * weight;
  }
};

}  // namespace zero::test
