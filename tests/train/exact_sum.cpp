// SPDX-License-Identifier: Apache-2.0
#include <zero/train/exact_sum.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace {

using Narrow = zero::ExactSum<20>;
using Wide = zero::ExactSum<68>;

static_assert(std::is_same_v<zero::exact_square_sum_t<float>, Narrow> && std::is_same_v<zero::exact_square_sum_t<zero::bf16>, Narrow>);
static_assert(std::is_same_v<zero::exact_square_sum_t<double>, Wide>);
static_assert(std::is_trivially_copyable_v<Wide> && sizeof(Narrow) == 168 && sizeof(Wide) == 552);

constexpr double summed(std::initializer_list<double> values) {
  Wide sum{};
  for (double value : values) sum.add(value);
  return sum.value();
}
static_assert(summed({}) == 0 && summed({1, 2, 3.5}) == 6.5);
static_assert(summed({1, 0x1p-53}) == 1 && summed({1, 0x1p-53, 0x1p-1074}) == 1 + 0x1p-52, "the last bit of all breaks the tie");
static_assert(summed({1 + 0x1p-52, 0x1p-53}) == 1 + 0x1p-51, "ties go to even");
// Room: between two carries each limb gains less than 2^32 an addition, and was below 2^32 per merged sum before.
static_assert(Narrow::adds_between_carries < (std::int64_t{1} << 31) - (std::int64_t{1} << 30) + 1);

double const infinity = std::numeric_limits<double>::infinity();
double const nan_value = std::numeric_limits<double>::quiet_NaN();

/// Non-negative numbers over a range of exponents, so wide that any order of fp64 additions would round differently.
std::vector<double> numbers(int n, int low_exponent, int high_exponent, unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> exponent(low_exponent, high_exponent);
  std::vector<double> result;
  for (int i = 0; i < n; ++i) {
    result.push_back(std::ldexp(static_cast<double>(random() >> 11 | std::uint64_t{1} << 52), exponent(random) - 52));
  }
  return result;
}

template <class Sum>
Sum sum_of(std::vector<double> const& values) {
  Sum sum{};
  for (double value : values) sum.add(value);
  sum.carry();
  return sum;
}

}  // namespace

TEST_CASE("has_the_same_bits_for_every_order_split_and_merge") {
  auto values = numbers(20'000, -240, 240, 1);
  Narrow const whole = sum_of<Narrow>(values);
  std::mt19937_64 random(2);
  for (std::size_t parts : {1u, 2u, 3u, 7u, 64u, 1000u}) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<Narrow> sums(parts);
    for (Narrow& sum : sums) sum.clear();
    for (std::size_t i = 0; i < values.size(); ++i) sums[random() % parts].add(values[i]);
    for (Narrow& sum : sums) sum.carry();
    std::shuffle(sums.begin(), sums.end(), random);
    Narrow merged{};
    for (Narrow const& sum : sums) merged.merge(sum);
    CHECK(merged.value() == whole.value());
    CHECK(merged.root() == whole.root());
    merged.carry();
    CHECK(merged == whole);
  }
}

TEST_CASE("is_exact") {
  // Integers that fp64 holds exactly but not their sum.
  Wide sum{};
  sum.add(0x1p80);
  for (int i = 0; i < 1000; ++i) sum.add(1);
  CHECK(sum.value() == 0x1p80);
  // The leading part cancels nothing, so look at the words: 2^80 and 1000 stand apart.
  sum.carry();
  CHECK(sum.words[(1088) / 32] == 1000);
  CHECK(sum.words[(1088 + 80) / 32] == 1 << ((1088 + 80) % 32));
}

TEST_CASE("rounds_correctly") {
  // Against the sum of two numbers, which the hardware rounds correctly.
  auto const a = numbers(20'000, -200, 200, 3);
  auto const b = numbers(20'000, -200, 200, 4);
  auto const near = numbers(20'000, -3, 60, 5);
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    wrong += sum_of<Narrow>({a[i], b[i]}).value() != a[i] + b[i];
    wrong += sum_of<Wide>({near[i], a[i], 0}).value() != near[i] + a[i];
    wrong += sum_of<Wide>({near[i], 1.5}).value() != near[i] + 1.5;
    wrong += sum_of<Narrow>({a[i]}).root() != std::sqrt(a[i]);
  }
  CHECK(wrong == 0);
}

TEST_CASE("covers_the_whole_range_of_fp64") {
  double const least = 0x1p-1074, greatest = std::numeric_limits<double>::max();
  CHECK(sum_of<Wide>({least}).value() == least);
  CHECK(sum_of<Wide>({least, least, least}).value() == 3 * least);
  CHECK(sum_of<Wide>({0x1.8p-1023, 0x1p-1074}).value() == 0x1.8p-1023 + 0x1p-1074);
  CHECK(sum_of<Wide>({greatest}).value() == greatest);
  CHECK(sum_of<Wide>({greatest, greatest}).value() == infinity);
  CHECK(sum_of<Wide>({greatest, greatest}).root() == doctest::Approx(std::sqrt(greatest) * std::sqrt(2.0)).epsilon(1e-15));
  CHECK(sum_of<Wide>({least}).root() == 0x1p-537);
  CHECK(sum_of<Wide>({0, 0}).value() == 0);
  CHECK(sum_of<Wide>({0, 0}).root() == 0);
}

TEST_CASE("covers_every_square_of_fp32") {
  double const least = 0x1p-149, greatest = static_cast<double>(std::numeric_limits<float>::max());
  CHECK(sum_of<Narrow>({least * least}).root() == least);
  CHECK(sum_of<Narrow>({greatest * greatest * 128}).value() == greatest * greatest * 128);
  CHECK(sum_of<Narrow>({greatest * greatest}).root() == greatest);
  CHECK(sum_of<Narrow>({greatest * greatest}).non_finite() == 0);
}

TEST_CASE("counts_what_is_infinite_or_nan_apart_from_the_sum: field case 19") {
  Narrow sum = sum_of<Narrow>({1, infinity, 2, nan_value, 3});
  CHECK(sum.non_finite() == 2);
  CHECK(std::bit_cast<std::uint64_t>(sum.value()) == std::bit_cast<std::uint64_t>(infinity));
  CHECK(std::bit_cast<std::uint64_t>(sum.root()) == std::bit_cast<std::uint64_t>(infinity));
  Narrow merged = sum_of<Narrow>({4});
  merged.merge(sum);
  CHECK(merged.non_finite() == 2);
  merged.words[Narrow::limb_count] = 0;
  CHECK(merged.value() == 10);
  CHECK(sum_of<Narrow>({0x1p400}).non_finite() == 1);  // beyond its range: never silently wrong
}

TEST_CASE("does_not_overflow_with_more_than_2_to_the_31_numbers: field case 108") {
  // All bits of the mantissa set, so that every limb that is touched gains as much as it can.
  double const value = std::ldexp(static_cast<double>((std::uint64_t{1} << 53) - 1), -52 + 43);
  Narrow sum{};
  sum.add(value);
  sum.carry();
  // Doubling 40 times stands for 2^40 additions, carried as often as `accumulate` carries; 2^30 additions fit without.
  Narrow many{};
  for (std::int64_t& word : many.words) word = 0xffffffff;
  many.words[Narrow::limb_count] = 0;
  for (int k = 0; k < Narrow::limb_count; ++k) {
    std::int64_t const room = std::numeric_limits<std::int64_t>::max() - many.words[k];
    CHECK(room / 0xffffffff >= Narrow::adds_between_carries);
  }
  for (int doubling = 0; doubling < 40; ++doubling) {
    sum.merge(Narrow{sum});
    sum.carry();
  }
  CHECK(sum.value() == value * 0x1p40);
  for (int k = 0; k + 1 < Narrow::limb_count; ++k) CHECK((sum.words[k] >= 0 && sum.words[k] <= 0xffffffff));
}
