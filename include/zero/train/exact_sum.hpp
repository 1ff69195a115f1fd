// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A sum of non-negative fp64 numbers without rounding: the same for any order, any split over ranks and any way of merging.

#include <cstdint>
#include <type_traits>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/train/arithmetic.hpp>

namespace zero {

/// The exact sum of non-negative fp64 numbers, as a fixed-point number in `Limbs` 64-bit words of which each carries 32 bits of its weight
/// and has 31 bits of room for additions, and a count of what was infinite or NaN. The words are plain integers: ranks merge by an integer
/// sum of all `word_count` of them, in any order, and a device may add with atomics. (A small superaccumulator: Kulisch and Miranker,
/// "Computer Arithmetic in Theory and Practice", 1981; the limbs with room as in Neal, "Fast exact summation using small and large
/// superaccumulators", arXiv 1505.05571.)
///
/// It covers 2^-(16 Limbs) .. 2^(16 Limbs). 20 limbs hold any sum of squares of fp32 or 16-bit numbers (2^-298 .. 2^319 for up to 2^63
/// elements); 68 limbs hold any sum of finite fp64 numbers. The start is all zero bytes.
template <int Limbs>
struct ExactSum {
  static_assert(Limbs >= 4);

  static constexpr int limb_count = Limbs;                                     ///< 32 bits each, least significant first
  static constexpr int word_count = Limbs + 1;                                 ///< the limbs, then the count of non-finite numbers
  static constexpr int lowest_exponent = -16 * Limbs;                          ///< the weight of the lowest bit
  static constexpr std::int64_t adds_between_carries = std::int64_t{1} << 30;  ///< `add` at most this often between two `carry`

  std::int64_t words[word_count];

  /// What one number adds to three limbs in a row. `non_finite` is 1 for a non-finite number, and nothing is added to the limbs.
  struct Parts {
    int limb;
    std::uint32_t part[3];
    std::int64_t non_finite;
  };

  /// Splits a non-negative number. Bits below the range are dropped (there are none in squares of fp32), numbers above it count as
  /// non-finite.
  [[nodiscard]] ZERO_HOST_DEVICE static constexpr Parts parts(double value) noexcept {
    std::uint64_t const bits = __builtin_bit_cast(std::uint64_t, value);
    int const field = static_cast<int>((bits >> 52) & 0x7ffu);
    std::uint64_t mantissa = bits & 0xfffffffffffffu;
    if (field != 0) mantissa |= std::uint64_t{1} << 52;
    int position = (field == 0 ? 1 : field) - 1075 - lowest_exponent;  // of the mantissa's lowest bit
    if (field == 0x7ff || position / 32 > Limbs - 3) return Parts{0, {0, 0, 0}, 1};
    if (position < 0) {
      mantissa = position > -64 ? mantissa >> -position : 0;
      position = 0;
    }
    int const shift = position % 32;
    std::uint64_t const low = mantissa << shift;
    std::uint64_t const high = shift == 0 ? 0 : mantissa >> (64 - shift);
    return Parts{
        position / 32, {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high)}, 0};
  }

  /// Adds a non-negative number exactly. Call `carry` at least once in `adds_between_carries` calls.
  ZERO_HOST_DEVICE constexpr void add(double value) noexcept {
    Parts const p = parts(value);
    words[p.limb] += p.part[0];
    words[p.limb + 1] += p.part[1];
    words[p.limb + 2] += p.part[2];
    words[Limbs] += p.non_finite;
  }

  /// Moves what each limb holds above 32 bits to the next one. The value stays the same; afterwards there is room for additions and merges.
  ZERO_HOST_DEVICE constexpr void carry() noexcept {
    std::int64_t carried = 0;
    for (int k = 0; k + 1 < Limbs; ++k) {
      std::int64_t const value = words[k] + carried;
      words[k] = value & 0xffffffff;
      carried = value >> 32;
    }
    words[Limbs - 1] += carried;
  }

  /// Adds another sum, word by word: what an integer all-reduce over ranks does. Both are carried before; up to 2^30 sums can be merged.
  ZERO_HOST_DEVICE constexpr void merge(ExactSum const& other) noexcept {
    for (int k = 0; k < word_count; ++k) words[k] += other.words[k];
  }

  ZERO_HOST_DEVICE constexpr void clear() noexcept {
    for (std::int64_t& word : words) word = 0;
  }

  /// How many infinite or NaN numbers were added. They are in this count only: `value` and `root` are infinite then.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr std::int64_t non_finite() const noexcept { return words[Limbs]; }

  /// The sum, correctly rounded (to nearest, ties to even); infinite above fp64's range.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr double value() const noexcept {
    Rounded const r = rounded();
    int const half = r.exponent / 2;
    return r.significand * detail::power_of_two(half) * detail::power_of_two(r.exponent - half);
  }

  /// The square root of the correctly rounded sum, correctly rounded; finite even where the sum is above fp64's range.
  [[nodiscard]] ZERO_HOST_DEVICE double root() const noexcept {
    Rounded const r = rounded();
    bool const odd = (r.exponent & 1) != 0;
    double const significand = odd ? 2 * r.significand : r.significand;
    return detail::square_root(significand) * detail::power_of_two((r.exponent - (odd ? 1 : 0)) / 2);
  }

  [[nodiscard]] friend constexpr bool operator==(ExactSum const&, ExactSum const&) = default;

private:
  struct Rounded {
    double significand;  // an integer up to 2^53, or infinity
    int exponent;
  };

  [[nodiscard]] ZERO_HOST_DEVICE constexpr Rounded rounded() const noexcept {
    if (non_finite() != 0) return {__builtin_bit_cast(double, std::uint64_t{0x7ff0000000000000u}), 0};
    ExactSum sum = *this;
    sum.carry();
    int top = Limbs - 1;
    while (top > 0 && sum.words[top] == 0) --top;
    auto const limb = [&](int k) { return k < 0 ? std::uint64_t{0} : static_cast<std::uint64_t>(sum.words[k]); };
    if (limb(top) == 0) return {0.0, 0};
    bool rest = false;
    for (int k = 0; k < top - 2; ++k) rest = rest || sum.words[k] != 0;
    // The upper 64 bits of three limbs, the first bit set; what is below only breaks ties.
    int zeros = 0;
    while ((limb(top) << zeros & 0x80000000u) == 0) ++zeros;
    std::uint64_t const upper = (limb(top) << 32 | limb(top - 1)) << zeros | limb(top - 2) << zeros >> 32;
    rest = rest || (limb(top - 2) << zeros & 0xffffffffu) != 0;
    std::uint64_t kept = upper >> 11;
    std::uint64_t const dropped = upper & 0x7ffu;
    if (dropped > 0x400u || (dropped == 0x400u && (rest || (kept & 1u) != 0))) ++kept;
    return {static_cast<double>(kept), lowest_exponent + 32 * (top - 1) - zeros + 11};
  }
};

/// The exact sum that holds the squares of gradients of type T: 20 limbs (168 bytes with the count) where they are added in fp32, 68 (552
/// bytes) for fp64. A square beyond fp64's range (a gradient above 1.3e154) counts as non-finite; one below it (under 1.5e-154) loses bits
/// or is 0.
template <RealElement T>
using exact_square_sum_t = ExactSum<std::is_same_v<compute_t<T>, double> ? 68 : 20>;

}  // namespace zero
