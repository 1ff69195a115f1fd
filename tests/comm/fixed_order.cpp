// SPDX-License-Identifier: Apache-2.0
/// @file
/// The order of additions over ranks, against a recursion written out element by element.

#include <zero/comm/detail/fixed_order.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <zero/core/hash.hpp>

namespace {

using zero::bf16;
using zero::half;
using zero::Max;
using zero::Sum;

/// Real numbers of mixed sign and magnitude, so that the order of adding shows.
template <class T>
T noise(int rank, std::int64_t i) {
  std::uint64_t const bits = zero::mixed_bits(static_cast<std::uint64_t>(rank) * 1'000'003u + static_cast<std::uint64_t>(i));
  auto const mantissa = static_cast<float>(static_cast<std::int32_t>(bits >> 40)) / 16777216.0f - 0.5f;
  return static_cast<T>(std::ldexp(mantissa, static_cast<int>(bits % 12)));
}

/// tree(lo, n) = tree(lo, p) + tree(lo + p, n - p). Volatile: no flag may reorder it.
template <class T, class C>
C reference(std::vector<std::vector<T>> const& from, int lo, int n, std::size_t i) {
  if (n == 1) return static_cast<C>(from[static_cast<std::size_t>(lo)][i]);
  int const p = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  C const volatile a = reference<T, C>(from, lo, p, i);
  C const volatile b = reference<T, C>(from, lo + p, n - p, i);
  C const volatile sum = a + b;
  return sum;
}

template <class T>
std::int64_t wrong_elements(int ranks, std::int64_t count, float factor) {
  using C = zero::compute_t<T>;
  std::vector<std::vector<T>> from(static_cast<std::size_t>(ranks));
  std::vector<T const*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t i = 0; i < count; ++i) from[static_cast<std::size_t>(rank)].push_back(noise<T>(rank, i));
    pointers.push_back(from[static_cast<std::size_t>(rank)].data());
  }
  std::vector<T> result(static_cast<std::size_t>(count));
  zero::detail::reduce_in_order<Sum>(pointers.data(), ranks, result.data(), count, factor);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    C const volatile scaled = reference<T, C>(from, 0, ranks, i) * static_cast<C>(factor);
    T const expected = static_cast<T>(static_cast<C>(scaled));
    wrong += std::memcmp(&expected, &result[i], sizeof(T)) != 0 ? 1 : 0;
  }
  return wrong;
}

/// Elements for which the order from left to right gives other bits.
std::int64_t differ_from_linear(int ranks, std::int64_t count) {
  std::int64_t differ = 0;
  std::vector<std::vector<float>> from(static_cast<std::size_t>(ranks));
  std::vector<float const*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t i = 0; i < count; ++i) from[static_cast<std::size_t>(rank)].push_back(noise<float>(rank, i));
    pointers.push_back(from[static_cast<std::size_t>(rank)].data());
  }
  std::vector<float> result(static_cast<std::size_t>(count));
  zero::detail::reduce_in_order<Sum>(pointers.data(), ranks, result.data(), count, 1.0f);
  for (std::size_t i = 0; i < result.size(); ++i) {
    float volatile linear = from[0][i];
    for (int rank = 1; rank < ranks; ++rank) linear = linear + from[static_cast<std::size_t>(rank)][i];
    differ += linear != result[i] ? 1 : 0;
  }
  return differ;
}

template <class T>
T reduce_two(T a, T b) {
  T const* const pointers[] = {&a, &b};
  T result{};
  zero::detail::reduce_in_order<Max>(pointers, 2, &result, 1, 1.0f);
  return result;
}

static_assert(zero::detail::tree_split(2) == 1 && zero::detail::tree_split(3) == 2 && zero::detail::tree_split(4) == 2);
static_assert(zero::detail::tree_split(5) == 4 && zero::detail::tree_split(8) == 4 && zero::detail::tree_split(9) == 8);
static_assert(zero::detail::tree_split(64) == 32 && zero::detail::tree_split(65) == 64);

}  // namespace

TEST_CASE("sums follow the binary tree over ranks to the bit, whatever the compiler's flags") {
  for (int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 31, 64}) {
    CAPTURE(ranks);
    for (float factor : {1.0f, 0.25f, 1.0f / 3.0f}) {
      for (std::int64_t count : {0, 1, 63, 64, 65, 2500}) {
        CHECK(wrong_elements<float>(ranks, count, factor) == 0);
        CHECK(wrong_elements<double>(ranks, count, factor) == 0);
        CHECK(wrong_elements<bf16>(ranks, count, factor) == 0);
        CHECK(wrong_elements<half>(ranks, count, factor) == 0);
      }
    }
  }
}

TEST_CASE("the data of that test tell orders apart") {
  CHECK(differ_from_linear(2, 2000) == 0);
  for (int ranks : {4, 5, 8, 16}) CHECK(differ_from_linear(ranks, 2000) > 200);
}

TEST_CASE("groups of consecutive ranks, powers of two, add up to the sum over all ranks") {
  std::int64_t const count = 1000;
  std::vector<std::vector<float>> from(8);
  std::vector<float const*> pointers;
  for (int rank = 0; rank < 8; ++rank) {
    for (std::int64_t i = 0; i < count; ++i) from[static_cast<std::size_t>(rank)].push_back(noise<float>(rank, i));
    pointers.push_back(from[static_cast<std::size_t>(rank)].data());
  }
  std::vector<float> all(static_cast<std::size_t>(count));
  zero::detail::reduce_in_order<Sum>(pointers.data(), 8, all.data(), count, 1.0f);
  for (int group : {2, 4}) {
    std::vector<std::vector<float>> inner(static_cast<std::size_t>(8 / group), std::vector<float>(static_cast<std::size_t>(count)));
    std::vector<float const*> outer;
    for (int g = 0; g < 8 / group; ++g) {
      zero::detail::reduce_in_order<Sum>(pointers.data() + g * group, group, inner[static_cast<std::size_t>(g)].data(), count, 1.0f);
      outer.push_back(inner[static_cast<std::size_t>(g)].data());
    }
    std::vector<float> nested(static_cast<std::size_t>(count));
    zero::detail::reduce_in_order<Sum>(outer.data(), 8 / group, nested.data(), count, 1.0f);
    CHECK(std::memcmp(nested.data(), all.data(), sizeof(float) * all.size()) == 0);
  }
}

TEST_CASE("field case 79: half sums of 64 ranks do not overflow on the way, and a factor is applied before the rounding") {
  std::vector<half> value(1, half(40000.0f));
  std::vector<half const*> pointers(64, value.data());
  half result{};
  zero::detail::reduce_in_order<Sum>(pointers.data(), 64, &result, 1, 1.0f / 64);
  CHECK(float(result) == float(half(40000.0f)));
  std::vector<half> opposite(1, half(-40000.0f));
  for (std::size_t rank = 32; rank < 64; ++rank) pointers[rank] = opposite.data();
  zero::detail::reduce_in_order<Sum>(pointers.data(), 64, &result, 1, 1.0f);
  CHECK(float(result) == 0.0f);
}

TEST_CASE("16-bit sums are rounded once: small addends are not lost") {
  // 256 + 7 times 0.5 is 259.5; rounded at every step it would stay 256 in bf16.
  bf16 const big(256.0f);
  bf16 const small(0.5f);
  std::vector<bf16 const*> pointers(8, &small);
  pointers[0] = &big;
  bf16 result{};
  zero::detail::reduce_in_order<Sum>(pointers.data(), 8, &result, 1, 1.0f);
  CHECK(float(result) == 260.0f);
}

TEST_CASE("a NaN on any rank makes the maximum NaN, also where the compiler assumes there is none") {
  float const nan = std::bit_cast<float>(0x7fc12345u);
  auto const bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  CHECK(bits(reduce_two(1.0f, nan)) == 0x7fc12345u);
  CHECK(bits(reduce_two(nan, 1.0f)) == 0x7fc12345u);
  CHECK(reduce_two(-2.0f, -1.0f) == -1.0f);
  CHECK(reduce_two(3.0, 5.0) == 5.0);
  CHECK(reduce_two(bf16::from_bits(0x7fc0), bf16(1.0f)).bits == 0x7fc0);
  CHECK(reduce_two(bf16(1.0f), bf16::from_bits(0xffc0)).bits == 0xffc0);
  CHECK(bits(reduce_two(1.0f, std::bit_cast<float>(0x7f800000u))) == 0x7f800000u);
  CHECK(reduce_two(std::int64_t{-5}, std::int64_t{-7}) == -5);
  std::uint64_t const large = std::numeric_limits<std::uint64_t>::max();
  CHECK(reduce_two(large, std::uint64_t{1}) == large);
}

TEST_CASE("integers wrap around") {
  std::int32_t const most = std::numeric_limits<std::int32_t>::max();
  std::int32_t const one = 1;
  std::int32_t const* const pointers[] = {&most, &one};
  std::int32_t result = 0;
  zero::detail::reduce_in_order<Sum>(pointers, 2, &result, 1, 1.0f);
  CHECK(result == std::numeric_limits<std::int32_t>::min());
}
