// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Initial values that depend on a seed, a parameter's name and an element's index, and on nothing else: not on ranks, stages or devices.

#include <cstdint>

#include <zero/core/config.hpp>
#include <zero/core/hash.hpp>

namespace zero {

/// Four 32-bit random words.
struct RandomWords {
  std::uint32_t word[4];
  [[nodiscard]] friend constexpr bool operator==(RandomWords const&, RandomWords const&) = default;
};

/// Philox 4x32-10, a counter-based generator: a fixed function of counter and key whose values for different counters look independent.
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. It passes that work's published test vectors.
///
/// @param counter 128 bits, least significant word first
/// @param key 64 bits
[[nodiscard]] ZERO_HOST_DEVICE constexpr RandomWords philox(RandomWords counter, std::uint64_t key) noexcept {
  std::uint32_t low_key = static_cast<std::uint32_t>(key);
  std::uint32_t high_key = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const a = std::uint64_t{0xd2511f53u} * counter.word[0];
    std::uint64_t const b = std::uint64_t{0xcd9e8d57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ low_key, static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ high_key, static_cast<std::uint32_t>(a)}};
    low_key += 0x9e3779b9u;
    high_key += 0xbb67ae85u;
  }
  return counter;
}

/// How the elements of a parameter begin: all the same, uniform in an interval, or normal.
///
/// The numbers are fp32, so that their products with random integers are exact in fp64 and no build can round them in another way.
struct InitialValue {
  enum class Kind : std::int32_t { constant, uniform, normal };

  Kind kind = Kind::constant;
  float a = 0;  ///< the constant, the lower end, the mean
  float b = 0;  ///< unused, the width, the standard deviation

  /// Every element is `value`.
  [[nodiscard]] ZERO_HOST_DEVICE static constexpr InitialValue constant(float value) noexcept { return {Kind::constant, value, 0}; }

  /// Uniform on the 2^29 points low + w k / 2^29, 0 <= k < 2^29, with w = high - low rounded to fp32: so the largest may exceed high by that
  /// rounding, and by the one to the element type.
  [[nodiscard]] ZERO_HOST_DEVICE static constexpr InitialValue uniform(float low, float high) noexcept {
    return {Kind::uniform, low, high - low};
  }

  /// Nearly normal: mean + deviation z, with z the sum of twelve uniform integers of 21 bits, centred and scaled to variance 1 (to
  /// 2.3e-13). It needs neither logarithm nor cosine, which differ between mathematical libraries and devices. Against a true normal: no
  /// value is beyond 6 standard deviations (two in 10^9 would be), the excess kurtosis is -0.1 (Irwin-Hall distribution), the skewness is
  /// 0. The grid of z is 2^-21.
  [[nodiscard]] ZERO_HOST_DEVICE static constexpr InitialValue normal(float mean, float deviation) noexcept {
    return {Kind::normal, mean, deviation};
  }

  [[nodiscard]] friend constexpr bool operator==(InitialValue const&, InitialValue const&) = default;
};

/// The key of a parameter's random numbers.
///
/// @param seed of the whole model
/// @param name_hash hash of the parameter's name, e.g. `Hasher{}.add(name).value()`
[[nodiscard]] constexpr std::uint64_t initial_key(std::uint64_t seed, std::uint64_t name_hash) noexcept {
  return Hasher{}.add(seed).add(name_hash).value();
}

/// The initial value of one element, in fp64; convert it to the element type by `element_cast`.
///
/// @param key of `initial_key`
/// @param index of the element in its whole parameter
[[nodiscard]] ZERO_HOST_DEVICE constexpr double initial_value(InitialValue const& what, std::uint64_t key, std::int64_t index) noexcept {
  if (what.kind == InitialValue::Kind::constant) return static_cast<double>(what.a);
  std::uint64_t const at = static_cast<std::uint64_t>(index);
  RandomWords counter{{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), 0, 0}};
  RandomWords const first = philox(counter, key);
  if (what.kind == InitialValue::Kind::uniform) {
    return static_cast<double>(what.a) + static_cast<double>(what.b) * (static_cast<double>(first.word[0] >> 3) * 0x1p-29);
  }
  counter.word[2] = 1;
  RandomWords const second = philox(counter, key);
  std::int64_t sum = 0;
  for (RandomWords const& r : {first, second}) {
    for (int half = 0; half < 4; half += 2) {
      std::uint64_t const bits = std::uint64_t{r.word[half + 1]} << 32 | r.word[half];
      sum += static_cast<std::int64_t>((bits & 0x1fffffu) + (bits >> 21 & 0x1fffffu) + (bits >> 42 & 0x1fffffu));
    }
  }
  constexpr std::int64_t twelve_means = 6 * 0x1fffff;
  return static_cast<double>(what.a) + static_cast<double>(what.b) * (static_cast<double>(sum - twelve_means) * 0x1p-21);
}

}  // namespace zero
