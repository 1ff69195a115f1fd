// SPDX-License-Identifier: Apache-2.0
#include <zero/core/element.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

namespace {

using zero::bf16;
using zero::element_cast;
using zero::half;

static_assert(sizeof(bf16) == 2 && sizeof(half) == 2 && std::is_trivially_copyable_v<bf16> && std::is_trivially_copyable_v<half>);
static_assert(std::is_same_v<zero::compute_t<bf16>, float> && std::is_same_v<zero::compute_t<std::int8_t>, std::int8_t>);
static_assert(zero::RealElement<half> && !zero::RealElement<int> && zero::Element<std::uint64_t> && !zero::Element<bool>);
static_assert(float(bf16(1.0f)) == 1.0f && float(half(65504.0f)) == 65504.0f && half(65520.0f).bits == 0x7c00);

template <class T>
double value(std::uint16_t bits) {
  return static_cast<double>(static_cast<float>(T::from_bits(bits)));
}

/// The nearest number of the type, ties to even, found by looking at both neighbours in fp64.
template <class T>
std::uint16_t nearest(double x) {
  constexpr std::uint16_t infinity = std::is_same_v<T, bf16> ? 0x7f80 : 0x7c00;
  std::uint16_t const sign = std::signbit(x) ? 0x8000 : 0;
  double const magnitude = std::fabs(x);
  std::uint16_t low = 0;
  std::uint16_t high = infinity;
  while (high - low > 1) {
    auto const middle = static_cast<std::uint16_t>((low + high) / 2);
    (value<T>(middle) <= magnitude ? low : high) = middle;
  }
  // Beyond the largest number, the place of infinity is where the next number would be.
  double const step = value<T>(low) - value<T>(static_cast<std::uint16_t>(low - 1));
  double const above = high == infinity ? value<T>(low) + step : value<T>(high);
  double const down = magnitude - value<T>(low);
  double const up = above - magnitude;
  bool const rounds_up = down > up || (down == up && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (rounds_up ? high : low));
}

template <class T>
void check_rounding(int lowest_exponent, int highest_exponent) {
  // What each number is, and that it comes back.
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    float const x = static_cast<float>(T::from_bits(static_cast<std::uint16_t>(bits)));
    if (std::isnan(x)) {
      wrong += !std::isnan(static_cast<float>(T(x)));
    } else {
      wrong += T(x).bits != bits;
    }
  }
  CHECK(wrong == 0);
  // Numbers near, on and between all midpoints; from fp32 and from fp64.
  std::mt19937_64 random(5);
  for (int i = 0; i < 200'000; ++i) {
    int const exponent = lowest_exponent + static_cast<int>(random() % static_cast<std::uint64_t>(highest_exponent - lowest_exponent));
    double const x = std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52, exponent) * (random() & 1 ? 1 : -1);
    wrong += element_cast<T>(x).bits != nearest<T>(x);
    wrong += T(static_cast<float>(x)).bits != nearest<T>(static_cast<double>(static_cast<float>(x)));
    std::uint16_t const low = nearest<T>(x);
    double const midpoint = (value<T>(low) + value<T>(static_cast<std::uint16_t>(low + 1))) / 2;
    if (!std::isfinite(midpoint)) continue;
    for (double const y : {midpoint, std::nextafter(midpoint, 1e300), std::nextafter(midpoint, -1e300)}) {
      wrong += element_cast<T>(y).bits != nearest<T>(y);
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("bf16 rounds to nearest even, once, from fp32 and fp64") { check_rounding<bf16>(-140, 128); }

TEST_CASE("half rounds to nearest even, once, from fp32 and fp64, through its denormals") { check_rounding<half>(-30, 17); }

TEST_CASE("what fp32 would round to a midpoint first is not rounded twice") {
  CHECK(float(element_cast<bf16>(1 + 0x1p-8 + 0x1p-40)) == 1 + 0x1p-7f);
  CHECK(float(element_cast<bf16>(1 + 0x1p-8 - 0x1p-40)) == 1.0f);
  CHECK(float(element_cast<bf16>(-(1 + 0x1p-8 + 0x1p-40))) == -(1 + 0x1p-7f));
  CHECK(float(element_cast<half>(1 + 0x1p-11 + 0x1p-40)) == 1 + 0x1p-10f);
}

TEST_CASE("infinities, NaN, zeroes and what is beyond fp32") {
  double const infinity = std::numeric_limits<double>::infinity();
  for (double const huge : {infinity, 1e300}) {
    CHECK(float(element_cast<bf16>(huge)) == std::numeric_limits<float>::infinity());
    CHECK(float(element_cast<half>(-huge)) == -std::numeric_limits<float>::infinity());
  }
  CHECK(std::isnan(float(element_cast<bf16>(std::numeric_limits<double>::quiet_NaN()))));
  CHECK(std::isnan(float(element_cast<half>(std::numeric_limits<double>::quiet_NaN()))));
  // A NaN of which only low bits are set must not become infinity.
  CHECK(std::isnan(float(bf16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(float(half(std::bit_cast<float>(0xff800001u)))));
  CHECK(element_cast<bf16>(-0.0).bits == 0x8000);
  CHECK(element_cast<half>(1e-300).bits == 0);
  CHECK(element_cast<half>(-1e-300).bits == 0x8000);
}

TEST_CASE("casts between other types are those of the language") {
  CHECK(element_cast<float>(0.1) == 0.1f);
  CHECK(element_cast<double>(0.1f) == static_cast<double>(0.1f));
  CHECK(element_cast<std::int32_t>(bf16(-7.0f)) == -7);
  CHECK(element_cast<half>(std::int8_t{-3}).bits == half(-3.0f).bits);
  CHECK(float(element_cast<half>(bf16(0.5f))) == 0.5f);
}
