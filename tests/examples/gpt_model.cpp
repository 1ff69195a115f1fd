// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the example's model promises beyond the reference numbers: derivatives, 16-bit weights, equal bits, exponentials.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "examples/gpt_support.hpp"

namespace {

using zero::test::WholeModel;

struct Batch {
  std::vector<std::int32_t> tokens, targets;

  explicit Batch(gpt::Config const& config) {
    for (std::int64_t row = 0; row <= config.rows(); ++row) {
      auto const id =
          static_cast<std::int32_t>(zero::mixed_bits(static_cast<std::uint64_t>(row)) % static_cast<std::uint64_t>(config.vocabulary));
      if (row < config.rows()) tokens.push_back(id);
      if (row > 0) targets.push_back(id);
    }
  }
};

TEST_CASE("gradients_are_the_slope_of_the_loss") {
  // Sizes that are multiples of nothing: every loop has a tail.
  gpt::Config const config{.layers = 3, .heads = 3, .channels = 21, .context = 11, .vocabulary = 29, .batch = 2};
  Batch const batch(config);
  gpt::Activations activations(config);
  WholeModel<float> weights(config);
  WholeModel<float> gradients(config);
  zero::test::fill_randomly(weights, 0.3f);
  zero::test::forward(activations, weights, batch.tokens.data(), batch.targets.data());
  zero::test::backward(activations, weights, gradients, batch.tokens.data());
  for (zero::ParameterId const id : weights.layout.parameters()) {
    // Along a direction in one parameter, half of it random, by Richardson extrapolation of central differences: the truncation error is
    // of fourth order in the step, and fp32 loses about 1e-7 of a loss near 4 in a difference of about 1e-2.
    auto& values = weights.values[static_cast<std::size_t>(id)];
    auto const start = values;
    std::vector<float> direction(values.size());
    double length = 0;
    double slope = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = zero::test::random_value(1000 + i);
      length += static_cast<double>(direction[i]) * static_cast<double>(direction[i]);
    }
    auto const& gradient = gradients.values[static_cast<std::size_t>(id)];
    double size = 0;
    for (float const g : gradient) size += static_cast<double>(g) * static_cast<double>(g);
    for (std::size_t i = 0; i < direction.size(); ++i) {
      // The other half along the gradient, so that the slope is not small by chance.
      double const d = 0.5 * static_cast<double>(direction[i]) / std::sqrt(length) + static_cast<double>(gradient[i]) / std::sqrt(size);
      direction[i] = static_cast<float>(d);
      slope += d * static_cast<double>(gradient[i]);
    }
    auto const loss_at = [&](double step) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(static_cast<double>(start[i]) + step * static_cast<double>(direction[i]));
      return zero::test::forward(activations, weights, batch.tokens.data(), batch.targets.data());
    };
    auto const difference = [&](double step) { return (loss_at(step) - loss_at(-step)) / (2 * step); };
    double const step = 0.02;
    double const measured = (4 * difference(step / 2) - difference(step)) / 3;
    values = start;
    CHECK_MESSAGE(measured == doctest::Approx(slope).epsilon(2e-3), weights.layout.name(id));
  }
}

TEST_CASE("gradients_are_added_to_what_is_there") {
  gpt::Config const config{.layers = 1, .heads = 2, .channels = 8, .context = 5, .vocabulary = 7, .batch = 2};
  Batch const batch(config);
  gpt::Activations activations(config);
  WholeModel<float> weights(config);
  WholeModel<float> once(config);
  WholeModel<float> onto(config);
  zero::test::fill_randomly(weights, 0.3f);
  for (auto& values : onto.values) {
    for (float& value : values) value = 100.0f;
  }
  zero::test::forward(activations, weights, batch.tokens.data(), batch.targets.data());
  zero::test::backward(activations, weights, once, batch.tokens.data());
  zero::test::forward(activations, weights, batch.tokens.data(), batch.targets.data());
  zero::test::backward(activations, weights, onto, batch.tokens.data());
  for (std::size_t p = 0; p < once.values.size(); ++p) {
    for (std::size_t i = 0; i < once.values[p].size(); ++i) CHECK(std::abs(onto.values[p][i] - (100.0f + once.values[p][i])) <= 2e-5f);
  }
}

TEST_CASE("bf16_weights_give_the_bits_of_the_same_weights_in_fp32_and_gradients_rounded_once") {
  gpt::Config const config{.layers = 2, .heads = 2, .channels = 20, .context = 9, .vocabulary = 31, .batch = 3};
  Batch const batch(config);
  WholeModel<zero::bf16> narrow(config);
  WholeModel<float> wide(config);
  zero::test::fill_randomly(narrow, 0.3f);
  for (std::size_t p = 0; p < wide.values.size(); ++p) {
    for (std::size_t i = 0; i < wide.values[p].size(); ++i) wide.values[p][i] = static_cast<float>(narrow.values[p][i]);
  }
  gpt::Activations activations(config);
  WholeModel<zero::bf16> narrow_gradients(config);
  WholeModel<float> wide_gradients(config);
  double const narrow_loss = zero::test::forward(activations, narrow, batch.tokens.data(), batch.targets.data());
  zero::test::backward(activations, narrow, narrow_gradients, batch.tokens.data());
  double const wide_loss = zero::test::forward(activations, wide, batch.tokens.data(), batch.targets.data());
  zero::test::backward(activations, wide, wide_gradients, batch.tokens.data());
  CHECK(narrow_loss == wide_loss);
  for (zero::ParameterId const id : wide.layout.parameters()) {
    auto const p = static_cast<std::size_t>(id);
    bool const once = !wide.layout.tied(id);  // the tied weight is added to twice, and rounded twice
    for (std::size_t i = 0; i < wide.values[p].size(); ++i) {
      float const exact = wide_gradients.values[p][i];
      if (once) {
        CHECK(narrow_gradients.values[p][i].bits == zero::bf16(exact).bits);
      } else {
        CHECK(std::abs(static_cast<float>(narrow_gradients.values[p][i]) - exact) <= 0.02f * (std::abs(exact) + 0.05f));
      }
    }
  }
}

TEST_CASE("equal_inputs_give_equal_bits_wherever_they_lie") {
  gpt::Config const config{.layers = 2, .heads = 2, .channels = 24, .context = 13, .vocabulary = 37, .batch = 2};
  Batch const batch(config);
  WholeModel<float> weights(config);
  zero::test::fill_randomly(weights, 0.3f);
  WholeModel<float> first(config);
  WholeModel<float> second(config);
  gpt::Activations a(config);
  double const first_loss = zero::test::forward(a, weights, batch.tokens.data(), batch.targets.data());
  zero::test::backward(a, weights, first, batch.tokens.data());

  // The same numbers at addresses that are shifted by one element after the other.
  std::vector<std::vector<float>> moved;
  std::vector<std::vector<float*>> pointers;
  for (std::size_t p = 0; p < weights.values.size(); ++p) {
    moved.emplace_back(weights.values[p].size() + 16);
    std::memcpy(moved.back().data() + 1 + p % 15, weights.values[p].data(), weights.values[p].size() * sizeof(float));
  }
  for (zero::Unit const unit : weights.layout.units()) {
    pointers.emplace_back();
    for (zero::ParameterId const id : weights.layout.parameters(unit)) {
      auto const p = static_cast<std::size_t>(id);
      pointers.back().push_back(moved[p].data() + 1 + p % 15);
    }
  }
  auto const view = [&](std::int64_t unit) {
    return zero::UnitView<float const>(
        zero::UnitView<float>(weights.layout, static_cast<zero::Unit>(unit), pointers[static_cast<std::size_t>(unit)].data()));
  };
  gpt::Activations b(config);
  gpt::embedding_forward(b, view(0), batch.tokens.data());
  gpt::block_forward(b, 0, view(1));
  gpt::block_forward(b, 1, view(2));
  double const second_loss = gpt::head_forward_loss(b, view(3), batch.targets.data());
  gpt::head_backward(b, view(3), second[3]);
  gpt::block_backward(b, 1, view(2), second[2]);
  gpt::block_backward(b, 0, view(1), second[1]);
  gpt::embedding_backward(b, second[0], batch.tokens.data());
  CHECK(first_loss == second_loss);
  CHECK(first.values == second.values);
}

TEST_CASE("the_blas_may_be_called_by_several_ranks_at_once") {
  // Throws where the BLAS is one that takes no locks. Its wrong products come in rare bursts: provoking one takes seconds, and luck.
  CHECK_NOTHROW(gpt::use_one_blas_thread());
}

TEST_CASE("fast_exp_is_accurate_to_2e_7") {
  double worst = 0;
  for (double x = -87; x <= 88; x += 0.000913) {
    float const argument = static_cast<float>(x);
    double const exact = std::exp(static_cast<double>(argument));
    worst = std::max(worst, std::abs(static_cast<double>(gpt::fast_exp(argument)) - exact) / exact);
  }
  CHECK(worst < 2e-7);
  CHECK(gpt::fast_exp(0.0f) == 1.0f);
  CHECK(gpt::fast_exp(-1e30f) > 0.0f);
  CHECK(gpt::fast_exp(-1e30f) < 1e-37f);
  CHECK(std::isfinite(gpt::fast_exp(1e30f)));
}

TEST_CASE("sizes_that_make_no_model_are_refused") {
  CHECK_THROWS_WITH(gpt::check({.heads = 3, .channels = 64}), "64 channels cannot be divided into 3 heads of equal size");
  CHECK_THROWS_WITH(gpt::check({.layers = 0}), "the number of layers must be at least 1, not 0");
}

static_assert(gpt::make_layout({.layers = 12, .heads = 12, .channels = 768, .context = 1024, .vocabulary = 50257}).elements() == 124439808,
              "the published GPT-2 has 124,439,808 parameters");

}  // namespace
