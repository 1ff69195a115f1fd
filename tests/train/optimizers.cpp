// SPDX-License-Identifier: Apache-2.0
#include <zero/train/optimizers.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "support/fixture.hpp"

namespace {

// What is no optimizer.
struct WithoutStates {
  void operator()(float&, float) const {}
};
struct TooFewStates {
  [[maybe_unused]] static constexpr int states = 2;
  void operator()(float&, float, float&) const {}
};
struct ByValue {
  [[maybe_unused]] static constexpr int states = 0;
  void operator()(float, float) const {}
};
struct StateByValue {
  [[maybe_unused]] static constexpr int states = 1;
  void operator()(float&, float, float) const {}
};
struct NotConst {
  [[maybe_unused]] static constexpr int states = 0;
  void operator()(float&, float) {}
};
struct NotTrivial {
  [[maybe_unused]] static constexpr int states = 0;
  std::vector<float> rates;
  void operator()(float&, float) const {}
};
struct NegativeStates {
  [[maybe_unused]] static constexpr int states = -1;
  void operator()(float&, float) const {}
};
static_assert(!zero::Optimizer<WithoutStates> && !zero::Optimizer<TooFewStates> && !zero::Optimizer<ByValue> &&
              !zero::Optimizer<StateByValue> && !zero::Optimizer<NotConst> && !zero::Optimizer<NotTrivial> &&
              !zero::Optimizer<NegativeStates> && !zero::Optimizer<int>);

// What a user writes.
struct Lion {
  float learning_rate = 1e-3f, beta1 = 0.9f, beta2 = 0.99f;
  static constexpr int states = 1;
  ZERO_HOST_DEVICE void operator()(float& parameter, float gradient, float& momentum) const {
    float const u = beta1 * momentum + (1 - beta1) * gradient;
    parameter -= learning_rate * static_cast<float>((u > 0) - (u < 0));
    momentum = beta2 * momentum + (1 - beta2) * gradient;
  }
};
static_assert(zero::check_optimizer<Lion>());
static_assert(!zero::Optimizer<Lion, double>, "its states are float");
static_assert(std::is_same_v<zero::update_t<Lion>, Lion>);

struct Scheduled {
  static constexpr int states = 0;
  struct Update {
    float rate;
    ZERO_HOST_DEVICE void operator()(float& parameter, float gradient) const { parameter -= rate * gradient; }
  };
  [[nodiscard]] ZERO_HOST_DEVICE constexpr Update at(std::int64_t step) const { return {1.0f / static_cast<float>(step)}; }
};
static_assert(zero::check_optimizer<Scheduled>());
static_assert(std::is_same_v<zero::update_t<Scheduled>, Scheduled::Update>);
static_assert(zero::update_at(Scheduled{}, 4).rate == 0.25f);
static_assert(zero::SGD::states == 0 && zero::MomentumSGD::states == 1 && zero::AdamW::states == 2);

/// How many fp32 numbers lie between two of one sign.
std::int64_t ulps(float a, float b) {
  auto const place = [](float x) {
    auto const bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? -static_cast<std::int64_t>(bits & 0x7fffffff) : static_cast<std::int64_t>(bits);
  };
  std::int64_t const distance = place(a) - place(b);
  return distance < 0 ? -distance : distance;
}

zero::test::Fixture const& fixture() {
  static zero::test::Fixture const result{std::string(ZERO_TEST_FIXTURES) + "/optimizers.fixture"};
  return result;
}

struct Worst {
  std::int64_t ulps = 0;
  void add(float a, float b) {
    std::int64_t const distance = ::ulps(a, b);
    if (distance > ulps) ulps = distance;
  }
};

}  // namespace

/// Steps all elements through all steps of a fixture. `restart`: each step begins with torch's numbers of the step before, so that it is
/// one step alone that is compared; else roundings of all steps add up.
struct Run {
  Worst parameters, states[2];

  template <class O>
  Run(O const& optimizer, std::string const& name, std::vector<std::string> const& state_names, bool restart) {
    auto const& gradients = fixture().floats("gradients");
    auto p = fixture().floats("parameters");
    std::size_t const n = p.size();
    std::vector<float> s[2] = {std::vector<float>(n), std::vector<float>(n)};
    for (std::size_t first = 0; first < gradients.size(); first += n) {
      auto const update = zero::update_at(optimizer, static_cast<std::int64_t>(first / n) + 1);
      for (std::size_t i = 0; i < n; ++i) {
        if constexpr (O::states == 0) update(p[i], gradients[first + i]);
        if constexpr (O::states == 1) update(p[i], gradients[first + i], s[0][i]);
        if constexpr (O::states == 2) update(p[i], gradients[first + i], s[0][i], s[1][i]);
        float const expected = fixture().floats(name + "/parameters")[first + i];
        parameters.add(p[i], expected);
        if (restart) p[i] = expected;
        for (std::size_t k = 0; k < state_names.size(); ++k) {
          float const state = fixture().floats(name + "/" + state_names[k])[first + i];
          states[k].add(s[k][i], state);
          if (restart) s[k][i] = state;
        }
      }
    }
  }
};

/// One step within 2 ulp. Five steps: a state also carries what earlier steps rounded, each at most 2 and decaying; the parameters hardly
/// feel it.
template <class O>
void check_against_torch(O const& optimizer, std::string const& name, std::vector<std::string> const& state_names) {
  CAPTURE(name);
  Run const single{optimizer, name, state_names, true};
  CHECK(single.parameters.ulps <= 2);
  CHECK(single.states[0].ulps <= 2);
  CHECK(single.states[1].ulps <= 2);
  Run const all{optimizer, name, state_names, false};
  CHECK(all.parameters.ulps <= 2);
  CHECK(all.states[0].ulps <= 4);
  CHECK(all.states[1].ulps <= 4);
}

TEST_CASE("agrees_with_adamw_of_torch_within_two_units_in_the_last_place") {
  int cases = 0;
  for (; fixture().has("adamw." + std::to_string(cases) + "/options"); ++cases) {
    std::string const name = "adamw." + std::to_string(cases);
    auto const& o = fixture().floats(name + "/options");
    check_against_torch(zero::AdamW{.learning_rate = o[0], .beta1 = o[1], .beta2 = o[2], .epsilon = o[3], .weight_decay = o[4]}, name,
                        {"exp_avg", "exp_avg_sq"});
  }
  CHECK(cases >= 4);
}

TEST_CASE("agrees_with_sgd_of_torch_within_two_units_in_the_last_place") {
  int cases = 0;
  for (; fixture().has("sgd." + std::to_string(cases) + "/options"); ++cases) {
    std::string const name = "sgd." + std::to_string(cases);
    auto const& o = fixture().floats(name + "/options");
    if (fixture().has(name + "/momentum")) {
      check_against_torch(zero::MomentumSGD{.learning_rate = o[0], .momentum = o[1], .weight_decay = o[2]}, name, {"momentum"});
    } else {
      CHECK(o[1] == 0);
      check_against_torch(zero::SGD{.learning_rate = o[0], .weight_decay = o[2]}, name, {});
    }
  }
  CHECK(cases >= 4);
}

TEST_CASE("first_adamw_step_is_the_closed_form: field case 94") {
  // With states of zero the first step is lr g / (|g| + epsilon), whatever the betas: a step count that is off by one would scale it by 1.3
  // or more.
  for (double beta1 : {0.0, 0.5, 0.9}) {
    for (double beta2 : {0.5, 0.95, 0.999}) {
      zero::AdamW const optimizer{.learning_rate = 0.125, .beta1 = beta1, .beta2 = beta2, .epsilon = 1e-8, .weight_decay = 0};
      double p = 1, m = 0, v = 0;
      optimizer.at(1)(p, -0.375, m, v);
      CHECK(p == doctest::Approx(1 + 0.125 * 0.375 / (0.375 + 1e-8)).epsilon(1e-13));
    }
  }
}

TEST_CASE("the_mean_is_the_gradient_where_beta1_is_zero") {
  float p = 1, m = 1e8f, v = 0;
  zero::AdamW{.beta1 = 0}.at(3)(p, 1e-8f, m, v);
  CHECK(m == 1e-8f);
}

TEST_CASE("adamw_in_double_is_the_formula") {
  zero::AdamW const o{.learning_rate = 3e-2, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-6, .weight_decay = 0.1};
  double p = 1, m = 0, v = 0, q = 1, a = 0, b = 0;
  for (int t = 1; t <= 20; ++t) {
    double const g = 0.3 + 0.01 * t;
    o.at(t)(p, g, m, v);
    a = 0.8 * a + (1 - 0.8) * g;
    b = 0.9 * b + (1 - 0.9) * g * g;
    q = q - 3e-2 * 0.1 * q - 3e-2 * (a / (1 - std::pow(0.8, t))) / (std::sqrt(b / (1 - std::pow(0.9, t))) + 1e-6);
    CHECK(p == doctest::Approx(q).epsilon(1e-13));
  }
}

TEST_CASE("momentum_and_nesterov_are_the_formulas") {
  for (bool nesterov : {false, true}) {
    zero::MomentumSGD const o{.learning_rate = 0.125, .momentum = 0.5, .weight_decay = 0.25, .nesterov = nesterov};
    float p = 4, b = 0;
    o(p, 3.0f, b);  // d = 4, b = 4
    CHECK(b == 4.0f);
    CHECK(p == 4.0f - 0.125f * (nesterov ? 6.0f : 4.0f));
  }
}

TEST_CASE("integer_powers_are_right_for_any_step") {
  CHECK(zero::detail::integer_power(0.9, 0) == 1.0);
  CHECK(zero::detail::integer_power(0.5, 10) == 0x1p-10);
  CHECK(zero::detail::integer_power(3, 13) == 1594323.0);
  CHECK(zero::detail::integer_power(0.999, 100'000) == doctest::Approx(std::pow(0.999, 100'000)).epsilon(1e-10));
  CHECK(zero::detail::integer_power(0.999, std::int64_t{1} << 40) == 0.0);
}
