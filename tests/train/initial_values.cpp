// SPDX-License-Identifier: Apache-2.0
#include <zero/train/initial_values.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string_view>

namespace {

using zero::InitialValue;
using zero::RandomWords;

// Philox 4x32-10 of the published known-answer vectors (kat_vectors of the authors' Random123 1.14).
static_assert(zero::philox({{0, 0, 0, 0}}, 0) == RandomWords{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
static_assert(zero::philox({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffffffffffff) ==
              RandomWords{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
static_assert(zero::philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822) ==
              RandomWords{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});

constexpr std::uint64_t key(std::uint64_t seed, std::string_view name) { return zero::initial_key(seed, zero::Hasher{}.add(name).value()); }

static_assert(zero::initial_value(InitialValue::constant(0.5f), key(1, "w"), 7) == 0.5);

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0, least = 1e300, greatest = -1e300;
};

Moments moments(InitialValue const& what, std::uint64_t k, std::int64_t n, double center) {
  double s1 = 0, s2 = 0, s3 = 0, s4 = 0;
  Moments m;
  for (std::int64_t i = 0; i < n; ++i) {
    double const x = zero::initial_value(what, k, i) - center;
    s1 += x;
    s2 += x * x;
    s3 += x * x * x;
    s4 += x * x * x * x;
    if (x < m.least) m.least = x;
    if (x > m.greatest) m.greatest = x;
  }
  double const count = static_cast<double>(n);
  m.mean = s1 / count;
  m.variance = s2 / count - m.mean * m.mean;
  m.skewness = s3 / count / std::pow(m.variance, 1.5);
  m.kurtosis = s4 / count / (m.variance * m.variance) - 3;
  return m;
}

}  // namespace

TEST_CASE("normal_values_have_the_moments_that_are_promised") {
  std::int64_t const n = 1'000'000;
  Moments const m = moments(InitialValue::normal(0, 1), key(42, "h.0.attn.c_attn.weight"), n, 0);
  // Five standard errors of a million samples: mean 1e-3, variance 1.4e-3, skewness 2.4e-3, kurtosis 4.9e-3 each.
  CHECK(std::fabs(m.mean) < 5e-3);
  CHECK(std::fabs(m.variance - 1) < 7e-3);
  CHECK(std::fabs(m.skewness) < 1.3e-2);
  CHECK(std::fabs(m.kurtosis + 0.1) < 2.5e-2);
  CHECK(m.greatest < 6);
  CHECK(m.least > -6);
  CHECK(m.greatest > 4);
  CHECK(m.least < -4);
}

TEST_CASE("mean_and_deviation_scale_normal_values_exactly") {
  for (std::int64_t i = 0; i < 1000; ++i) {
    double const z = zero::initial_value(InitialValue::normal(0, 1), key(1, "w"), i);
    CHECK(zero::initial_value(InitialValue::normal(0, 0.25f), key(1, "w"), i) == 0.25 * z);
    CHECK(zero::initial_value(InitialValue::normal(3, 2), key(1, "w"), i) == 3 + 2 * z);
    CHECK(z * 0x1p21 == std::floor(z * 0x1p21));
  }
}

TEST_CASE("uniform_values_fill_their_interval") {
  Moments const m = moments(InitialValue::uniform(-1, 3), key(42, "w"), 1'000'000, 1);
  CHECK(std::fabs(m.mean) < 6e-3);
  CHECK(std::fabs(m.variance - 16.0 / 12) < 6e-3);
  CHECK(m.least >= -2);
  CHECK(m.least < -1.9999);
  CHECK(m.greatest < 2);
  CHECK(m.greatest > 1.9999);
}

TEST_CASE("a_value_depends_on_seed_name_and_index_and_on_nothing_else: field case 106") {
  auto const what = InitialValue::normal(0, 1);
  double const value = zero::initial_value(what, key(1, "w"), 5);
  CHECK(zero::initial_value(what, key(1, "w"), 5) == value);
  CHECK(zero::initial_value(what, key(2, "w"), 5) != value);
  CHECK(zero::initial_value(what, key(1, "v"), 5) != value);
  CHECK(zero::initial_value(what, key(1, "w"), 6) != value);
  CHECK(zero::initial_value(what, key(1, "w"), 5 + (std::int64_t{1} << 32)) != value);  // field case 108
}

TEST_CASE("values_stay_what_they_are") {
  // Numbers of an independent implementation in Python: a checkpointed seed must give the same model for ever.
  CHECK(zero::initial_value(InitialValue::normal(0, 1), 0x0123456789abcdef, 0) == 0x1.c971ap-1);
  CHECK(zero::initial_value(InitialValue::normal(0, 1), 0x0123456789abcdef, std::int64_t{1} << 40) == -0x1.7f0bbp-1);
  CHECK(zero::initial_value(InitialValue::uniform(0, 1), 0x0123456789abcdef, 1) == 0x1.5b9428cp-1);
}
