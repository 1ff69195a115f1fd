// SPDX-License-Identifier: Apache-2.0
#include <zero/train/optimizer_step.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <zero/core/hash.hpp>

namespace {

using zero::StepState;
using zero::UpdateState;
using zero::detail::OptimizerStep;

static_assert(std::is_trivially_copyable_v<OptimizerStep<zero::AdamW, float, zero::bf16, zero::bf16>>);
static_assert(sizeof(OptimizerStep<zero::AdamW, float, zero::bf16, zero::bf16>) <= 248, "it must fit a host stream's queue");

/// What a user would write; 1 state, and a formula that a compiler would like to fuse.
struct Lion {
  float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.99f;
  [[maybe_unused]] static constexpr int states = 1;
  ZERO_HOST_DEVICE void operator()(float& parameter, float gradient, float& momentum) const {
    float const u = beta1 * momentum + (1 - beta1) * gradient;
    parameter -= learning_rate * static_cast<float>((u > 0) - (u < 0));
    momentum = beta2 * momentum + (1 - beta2) * gradient;
  }
};

float number(std::size_t i, unsigned salt) {
  std::uint64_t const h = zero::mixed_bits(i * 64 + salt);
  float const mantissa = 1 + static_cast<float>(h >> 40) * 0x1p-24f;
  float const scale[] = {1e-4f, 1e-2f, 1, 10};
  return (h & 4 ? mantissa : -mantissa) * scale[h & 3];
}

/// Arrays of n elements and what one step makes of them, with a guard element behind each.
template <class O, class Master, class Gradient, class Parameter>
struct Arrays {
  static constexpr std::size_t states = static_cast<std::size_t>(O::states);
  std::vector<Master> master, state[states > 0 ? states : 1];
  std::vector<Gradient> gradient;
  std::vector<Parameter> parameter;

  Arrays(std::size_t first, std::size_t n) {
    for (std::size_t i = first; i <= first + n; ++i) {
      bool const guard = i == first + n;
      master.push_back(guard ? Master(7) : static_cast<Master>(number(i, 0)));
      for (auto& s : state) s.push_back(guard ? Master(7) : static_cast<Master>(number(i, 1) * number(i, 1)));
      gradient.push_back(guard ? Gradient(7.0f) : static_cast<Gradient>(number(i, 2)));
      parameter.push_back(Parameter(7.0f));
    }
  }

  OptimizerStep<O, Master, Gradient, Parameter> step(StepState const& decision, UpdateState<O> const& update, bool rounds) {
    OptimizerStep<O, Master, Gradient, Parameter> result{
        &decision, &update, master.data(), gradient.data(), rounds ? parameter.data() : nullptr, {}};
    for (std::size_t k = 0; k < states; ++k) result.states[k] = state[k].data();
    return result;
  }
};

template <class T>
bool same_bits(T const& a, T const& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Every element of a long step must be what a step of that element alone gives.
template <class O, class Master, class Gradient, class Parameter>
void check_positions(O const& optimizer, bool rounds) {
  std::size_t const n = 100'003;
  StepState decision{};
  UpdateState<O> update{};
  decide(decision, {.factor = 1.0 / 3});
  advance(update, optimizer, decision);
  Arrays<O, Master, Gradient, Parameter> all(0, n);
  all.step(decision, update, rounds)(0, static_cast<std::int64_t>(n));
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Arrays<O, Master, Gradient, Parameter> one(i, 1);
    one.step(decision, update, rounds)(0, 1);
    wrong += !same_bits(one.master[0], all.master[i]);
    wrong += !same_bits(one.parameter[0], all.parameter[i]);
    for (std::size_t k = 0; k < all.states; ++k) wrong += !same_bits(one.state[k][0], all.state[k][i]);
  }
  CHECK(wrong == 0);
  CHECK(all.master[n] == Master(7));  // field case 109: nothing is written behind the end
  CHECK(same_bits(all.parameter[n], Parameter(7.0f)));
  CHECK(same_bits(all.parameter[0], Parameter(7.0f)) == !rounds);
}

}  // namespace

#if !defined(__FAST_MATH__)
TEST_CASE("what_an_element_becomes_does_not_depend_on_its_position: field case 109") {
  SUBCASE("AdamW, bf16") { check_positions<zero::AdamW, float, zero::bf16, zero::bf16>({.weight_decay = 0.1}, true); }
  SUBCASE("AdamW, fp32") { check_positions<zero::AdamW, float, float, float>({.weight_decay = 0.1}, false); }
  SUBCASE("AdamW without momentum") { check_positions<zero::AdamW, float, float, zero::bf16>({.beta1 = 0}, true); }
  SUBCASE("AdamW, half") { check_positions<zero::AdamW, float, zero::half, zero::half>({}, true); }
  SUBCASE("AdamW, fp64") { check_positions<zero::AdamW, double, double, double>({}, false); }
  SUBCASE("SGD") { check_positions<zero::SGD, float, float, zero::bf16>({.weight_decay = 0.1}, true); }
  SUBCASE("MomentumSGD") {
    check_positions<zero::MomentumSGD, float, zero::bf16, zero::bf16>({.weight_decay = 0.1, .nesterov = true}, true);
  }
  SUBCASE("a user's") { check_positions<Lion, float, float, zero::bf16>({}, true); }
}

TEST_CASE("fuses_no_product_with_a_sum_in_any_build") {
  // 1 - (1 + 2^-12)^2 rounds to -2^-11 where the product is rounded first, and keeps the -2^-24 where it is not.
  std::size_t const n = 1000;
  std::vector<float> master(n, 1), gradient(n, 1 + 0x1p-12f);
  StepState decision{};
  UpdateState<zero::SGD> update{};
  decide(decision, {.factor = 1 + 0x1p-12});
  advance(update, zero::SGD{.learning_rate = 1 + 0x1p-12}, decision);
  decision.multiplier = 1;
  OptimizerStep<zero::SGD, float, float, float>{&decision, &update, master.data(), gradient.data(), nullptr, {}}(
      0, static_cast<std::int64_t>(n));
  std::int64_t fused = 0;
  for (float x : master) fused += x != -0x1p-11f;
  CHECK(fused == 0);
}
#endif

TEST_CASE("the_gradient_is_multiplied_once_in_the_type_of_the_master") {
  float const third = static_cast<float>(1.0 / 3);
  std::vector<float> master{0};
  std::vector<zero::bf16> gradient{zero::bf16{7.0f}};
  StepState decision{};
  UpdateState<zero::SGD> update{};
  decide(decision, {.factor = 1.0 / 3});
  advance(update, zero::SGD{.learning_rate = 1}, decision);
  OptimizerStep<zero::SGD, float, zero::bf16, float>{&decision, &update, master.data(), gradient.data(), nullptr, {}}(0, 1);
  CHECK(master[0] == -(7.0f * third));
}

TEST_CASE("one_element_at_a_time_is_the_same_as_the_loop") {
  std::size_t const n = 300;
  StepState decision{};
  UpdateState<zero::AdamW> update{};
  decide(decision, {.factor = 0.5});
  advance(update, zero::AdamW{}, decision);
  Arrays<zero::AdamW, float, zero::bf16, zero::bf16> a(0, n), b(0, n);
  a.step(decision, update, true)(0, static_cast<std::int64_t>(n));
  auto const single = b.step(decision, update, true);
  for (std::int64_t i = static_cast<std::int64_t>(n) - 1; i >= 0; --i) single(i);
  CHECK(a.parameter.size() == n + 1);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i <= n; ++i) wrong += a.parameter[i].bits != b.parameter[i].bits;
  CHECK(wrong == 0);
}

TEST_CASE("a_skipped_step_changes_nothing: field case 19") {
  std::size_t const n = 200;
  using Step = Arrays<zero::AdamW, float, float, zero::bf16>;
  StepState decision{};
  UpdateState<zero::AdamW> update{};
  Step before(0, n), after(0, n);
  after.gradient[3] = static_cast<float>(1e30) * 1e30f;
  zero::ExactSum<20> sum{};
  sum.words[zero::ExactSum<20>::limb_count] = 1;
  decide(decision, sum, {.max_norm = 1});
  advance(update, zero::AdamW{}, decision);
  after.step(decision, update, true)(0, static_cast<std::int64_t>(n));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(n); ++i) after.step(decision, update, true)(i);
  CHECK(std::memcmp(before.master.data(), after.master.data(), n * sizeof(float)) == 0);
  CHECK(std::memcmp(before.state[0].data(), after.state[0].data(), n * sizeof(float)) == 0);
  CHECK(std::memcmp(before.state[1].data(), after.state[1].data(), n * sizeof(float)) == 0);
  CHECK(std::memcmp(before.parameter.data(), after.parameter.data(), n * sizeof(zero::bf16)) == 0);
}

TEST_CASE("no_elements_are_no_work: field case 14") {
  StepState decision{};
  UpdateState<zero::AdamW> update{};
  decide(decision, {});
  advance(update, zero::AdamW{}, decision);
  OptimizerStep<zero::AdamW, float, float, float>{&decision, &update, nullptr, nullptr, nullptr, {}}(0, 0);
}
