// SPDX-License-Identifier: Apache-2.0
/// @file
/// The plan against the numbers that the ZeRO paper prints, and against closed forms. That runs agree with it is in accounting.cpp.

#include <cmath>
#include <cstdint>
#include <string>

#include <doctest/doctest.h>
#include <zero/train/plan.hpp>

#include "support/stages.hpp"

namespace {

using Paper = zero::Precision<zero::bf16>;
using Single = zero::Precision<float>;
using DeferredReduction = zero::test::Triple<zero::Sharded, zero::Partial, zero::Sharded>;
using ReducedTooOften = zero::test::Triple<zero::Replicated, zero::Replicated, zero::Sharded>;

constexpr zero::ParameterLayout flat(std::int64_t elements) {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("model"), "weights", {elements});
  return layout;
}

constexpr zero::ParameterLayout three_units() {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("a"), "a.w", {64, 64});
  layout.add(layout.add_unit("b"), "b.w", {64, 64});
  layout.add(layout.add_unit("c"), "c.w", {64, 64});
  return layout;
}

/// A table with a parameter that first and last unit share.
constexpr zero::ParameterLayout tied_units() {
  zero::ParameterLayout layout;
  zero::Unit const first = layout.add_unit("first");
  zero::ParameterId const table = layout.add(first, "table", {128, 64});
  layout.add(layout.add_unit("middle"), "middle.w", {64, 64});
  layout.tie(table, layout.add_unit("last"));
  return layout;
}

constexpr std::int64_t psi = 3 * 64 * 64;

template <class S, class P = Single>
constexpr std::int64_t received(std::int64_t micro_batches, int ranks) {
  return zero::plan<S, P, zero::AdamW>(three_units(), ranks, {.micro_batches = micro_batches}).received_bytes();
}

/// Bytes of k Psi (N - 1) / N elements of fp32.
constexpr std::int64_t volume(std::int64_t k, int ranks) { return k * psi * 4 * (ranks - 1) / ranks; }

// Volumes, in constant expressions: 2, 2, M + 1, 3 M; 2 M + 1 for the two others.
static_assert(received<zero::Stage0>(1, 4) == volume(2, 4) && received<zero::Stage0>(5, 4) == volume(2, 4));
static_assert(received<zero::Stage1>(1, 4) == volume(2, 4) && received<zero::Stage1>(5, 4) == volume(2, 4));
static_assert(received<zero::Stage2>(1, 4) == volume(2, 4) && received<zero::Stage2>(5, 4) == volume(6, 4));
static_assert(received<zero::Stage3>(1, 4) == volume(3, 4) && received<zero::Stage3>(5, 4) == volume(15, 4));
static_assert(received<DeferredReduction>(5, 4) == volume(11, 4));
static_assert(received<ReducedTooOften>(5, 4) == volume(11, 4));
static_assert(received<zero::Stage3>(5, 1) == 0 && received<zero::Stage0>(5, 1) == 0);

// fp32 has no second copy: 4 + 4 + 8.
template <class S, class P>
constexpr std::int64_t states(int ranks) {
  return zero::plan<S, P, zero::AdamW>(three_units(), ranks).model_state_bytes();
}
static_assert(states<zero::Stage0, Single>(4) == 16 * psi);
static_assert(states<zero::Stage1, Single>(4) == 8 * psi + 8 * psi / 4);
static_assert(states<zero::Stage2, Single>(4) == 4 * psi + 12 * psi / 4);
static_assert(states<zero::Stage3, Single>(4) == 16 * psi / 4);
// bf16 with an fp32 accumulator: 18, 6 + 12/N, 2 + 16/N, 18/N.
using Wide = zero::Precision<zero::bf16, zero::bf16, zero::bf16, float>;
static_assert(states<zero::Stage0, Wide>(4) == 18 * psi);
static_assert(states<zero::Stage1, Wide>(4) == 6 * psi + 12 * psi / 4);
static_assert(states<zero::Stage2, Wide>(4) == 2 * psi + 16 * psi / 4);
static_assert(states<zero::Stage3, Wide>(4) == 18 * psi / 4);

/// Whether `gigabytes` is what the paper prints, which rounds in some places and truncates in others.
bool prints_as(double gigabytes, double printed, double last_place) {
  double const rounded = std::round(gigabytes / last_place) * last_place;
  double const truncated = std::floor(gigabytes / last_place + 1e-9) * last_place;
  return std::fabs(rounded - printed) < last_place / 4 || std::fabs(truncated - printed) < last_place / 4;
}

template <class S>
double gigabytes(std::int64_t parameters, int ranks) {
  return static_cast<double>(zero::plan<S, Paper, zero::AdamW>(flat(parameters), ranks).model_state_bytes()) / 1e9;
}

}  // namespace

TEST_CASE("reproduces figure 1 of the ZeRO paper: 7.5e9 parameters on 64 ranks") {
  std::int64_t const parameters = 7'500'000'000;
  CHECK(prints_as(gigabytes<zero::Stage0>(parameters, 64), 120, 1));
  CHECK(prints_as(gigabytes<zero::Stage1>(parameters, 64), 31.4, 0.1));
  CHECK(prints_as(gigabytes<zero::Stage2>(parameters, 64), 16.6, 0.1));
  CHECK(prints_as(gigabytes<zero::Stage3>(parameters, 64), 1.9, 0.1));
}

TEST_CASE("reproduces table 1 of the ZeRO paper: three models on 1 to 1024 ranks") {
  struct Row {
    int ranks;
    double printed[3][3];  // [model][P_os, P_os+g, P_os+g+p] [GB]
    double last_place[3][3];
  };
  constexpr Row rows[] = {
      {1, {{120, 120, 120}, {2048, 2048, 2048}, {16000, 16000, 16000}}, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}},
      {4, {{52.5, 41.3, 30}, {896, 704, 512}, {7000, 5500, 4000}}, {{.1, .1, 1}, {1, 1, 1}, {1, 1, 1}}},
      {16, {{35.6, 21.6, 7.5}, {608, 368, 128}, {4750, 2875, 1000}}, {{.1, .1, .1}, {1, 1, 1}, {1, 1, 1}}},
      {64, {{31.4, 16.6, 1.88}, {536, 284, 32}, {4187, 2218, 250}}, {{.1, .1, .01}, {1, 1, 1}, {1, 1, 1}}},
      {256, {{30.4, 15.4, 0.47}, {518, 263, 8}, {4046, 2054, 62.5}}, {{.1, .1, .01}, {1, 1, 1}, {1, 1, .1}}},
      {1024, {{30.1, 15.1, 0.12}, {513, 257, 2}, {4011, 2013, 15.6}}, {{.1, .1, .01}, {1, 1, 1}, {1, 1, .1}}},
  };
  constexpr std::int64_t models[] = {7'500'000'000, 128'000'000'000, 1'000'000'000'000};
  for (Row const& row : rows) {
    for (int m = 0; m < 3; ++m) {
      double const planned[] = {gigabytes<zero::Stage1>(models[m], row.ranks), gigabytes<zero::Stage2>(models[m], row.ranks),
                                gigabytes<zero::Stage3>(models[m], row.ranks)};
      for (int s = 0; s < 3; ++s) {
        CAPTURE(row.ranks);
        CAPTURE(m);
        CAPTURE(planned[s]);
        CHECK(prints_as(planned[s], row.printed[m][s], row.last_place[m][s]));
      }
    }
  }
}

TEST_CASE("reproduces the paper's volumes 2, 2, 2 and 3 Psi where there are many ranks") {
  int const ranks = 1024;
  auto const layout = flat(1024 * 128 * 16);
  auto const in_psi = [&](zero::Plan const& plan) {
    return static_cast<double>(plan.received_bytes()) / 2 / static_cast<double>(layout.elements());
  };
  CHECK(in_psi(zero::plan<zero::Stage0, Paper, zero::AdamW>(layout, ranks)) == doctest::Approx(2 * 1023.0 / 1024).epsilon(1e-12));
  CHECK(in_psi(zero::plan<zero::Stage1, Paper, zero::AdamW>(layout, ranks)) == doctest::Approx(2 * 1023.0 / 1024).epsilon(1e-12));
  CHECK(in_psi(zero::plan<zero::Stage2, Paper, zero::AdamW>(layout, ranks)) == doctest::Approx(2 * 1023.0 / 1024).epsilon(1e-12));
  CHECK(in_psi(zero::plan<zero::Stage3, Paper, zero::AdamW>(layout, ranks)) == doctest::Approx(3 * 1023.0 / 1024).epsilon(1e-12));
}

TEST_CASE("a tied parameter is gathered twice a pass and reduced once, whoever uses it") {
  std::int64_t const tied = 128 * 64;
  std::int64_t const middle = 64 * 64;
  auto const plan = zero::plan<zero::Stage3, Single, zero::SGD>(tied_units(), 4);
  CHECK(plan.received_bytes(zero::Subject::parameters) == 2 * (tied + middle) * 4 * 3 / 4);
  CHECK(plan.received_bytes(zero::Subject::gradients) == (tied + middle) * 4 * 3 / 4);
  // Resident from the first to the last unit: both segments at once.
  CHECK(plan.bytes(zero::Purpose::gathered) == (tied + middle) * 4);
  CHECK(plan.bytes(zero::Purpose::gradient_scratch) == (tied + middle) * 4);
}

TEST_CASE("weights that are held from forward to backward are gathered once and kept") {
  auto const twice = zero::plan<zero::Stage3, Single, zero::SGD>(three_units(), 4);
  auto const held = zero::plan<zero::Stage3, Single, zero::SGD>(three_units(), 4, {.backward_gathers = false});
  CHECK(twice.received_bytes(zero::Subject::parameters) == volume(2, 4));
  CHECK(held.received_bytes(zero::Subject::parameters) == volume(1, 4));
  CHECK(twice.bytes(zero::Purpose::gathered) == 64 * 64 * 4);
  CHECK(held.bytes(zero::Purpose::gathered) == psi * 4);
}

TEST_CASE("a second stream costs one more gradient buffer") {
  auto const one = zero::plan<zero::Stage2, Single, zero::SGD>(three_units(), 4);
  auto const two = zero::plan<zero::Stage2, Single, zero::SGD>(three_units(), 4, {.overlapped = true});
  CHECK(one.bytes(zero::Purpose::gradient_scratch) == 64 * 64 * 4);
  CHECK(two.bytes(zero::Purpose::gradient_scratch) == 2 * 64 * 64 * 4);
}

TEST_CASE("the norm is control traffic, and none where neither clipping nor the finite check asks for it") {
  auto const on = zero::plan<zero::Stage1, Single, zero::SGD>(three_units(), 2);
  auto const off = zero::plan<zero::Stage1, Single, zero::SGD>(three_units(), 2, {.step = {.skip_non_finite = false}});
  CHECK(on.received_bytes(zero::Subject::control) == 168);  // 2 (N - 1)/N of 21 words of 8 bytes
  CHECK(off.received_bytes(zero::Subject::control) == 0);
  CHECK(on.received_bytes() == off.received_bytes());
}

namespace {

/// What planning with that is refused with; empty if it is not, or if the error names another place than the call.
std::string refusal(int ranks, zero::Schedule const& schedule, int rank) {
  int line = 0;
  try {
    line = __LINE__ + 1;
    static_cast<void>(zero::plan<zero::Stage2, Single, zero::SGD>(three_units(), ranks, schedule, rank));
  } catch (zero::UsageError const& error) {
    bool const here = error.where().line == line && std::string(error.where().file).find("tests/train/plan.cpp") != std::string::npos;
    return here ? error.what() : "";
  }
  return "";
}

bool says(std::string const& text, char const* part) { return text.find(part) != std::string::npos; }

// What is legal stays a constant expression, to the last rank.
static_assert(zero::plan<zero::Stage2, Single, zero::SGD>(three_units(), 3, {.inference_passes = 1}, 2).received_bytes() > 0);

}  // namespace

TEST_CASE("a loop or a rank that cannot be is refused where it was asked for") {
  CHECK(says(refusal(0, {}, 0), "the number of ranks of a partition cannot be 0"));
  CHECK(says(refusal(-3, {}, 0), "cannot be -3"));
  CHECK(says(refusal(2, {.micro_batches = 0}, 0), "plan: a step has at least one micro-batch, not 0"));
  CHECK(says(refusal(2, {.micro_batches = -1}, 0), "not -1"));
  CHECK(says(refusal(2, {.inference_passes = -1}, 0), "plan: the number of inference passes is -1"));
  CHECK(says(refusal(2, {}, 2), "plan: the partition has no rank 2"));
  CHECK(says(refusal(2, {}, -1), "plan: the partition has no rank -1"));
  CHECK_THROWS_AS(static_cast<void>(zero::plan<zero::Stage0, Single, zero::SGD>(three_units(), 0)), zero::LayoutError);
}
