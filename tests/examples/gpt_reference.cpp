// SPDX-License-Identifier: Apache-2.0
/// @file
/// The example's model against the transformers library: logits, loss and every gradient (tests/fixtures/make_gpt2_fixture.py).

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "examples/gpt_support.hpp"
#include "support/fixture.hpp"

namespace {

using zero::test::relative_error;

// An fp32 product of 128 terms in another order differs by a few 1e-7; both sides chain a dozen such products.
constexpr double tolerance = 1e-5;

struct Reference {
  zero::test::Fixture fixture{ZERO_TEST_FIXTURES "/gpt2_small.fixture"};
  gpt::Config config{.layers = 2, .heads = 2, .channels = 32, .context = 16, .vocabulary = 67, .batch = 4};
  std::vector<std::int32_t> tokens, targets;  // of the first step

  Reference() {
    auto const& ids = fixture.integers("tokens");
    for (std::size_t sequence = 0; sequence < 4; ++sequence) {
      for (std::size_t position = 0; position < 16; ++position) {
        tokens.push_back(ids[sequence * 17 + position]);
        targets.push_back(ids[sequence * 17 + position + 1]);
      }
    }
  }

  void load(zero::test::WholeModel<float>& model) const {
    for (zero::ParameterId const id : model.layout.parameters()) {
      auto const& tensor = fixture["weight/" + std::string(model.layout.name(id))];
      zero::Shape const& shape = model.layout.shape(id);
      CHECK_MESSAGE(std::vector<std::int64_t>(shape.begin(), shape.end()) == tensor.shape, model.layout.name(id));
      model.values[static_cast<std::size_t>(id)].assign(tensor.floats.begin(), tensor.floats.end());
    }
  }
};

TEST_CASE("parameters_have_the_names_and_shapes_of_the_checkpoint") {
  Reference const reference;
  zero::test::WholeModel<float> weights(reference.config);
  reference.load(weights);
  CHECK(weights.layout.parameter_count() == 28);
  CHECK(weights.layout.elements() == 67 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
}

TEST_CASE("logits_loss_and_gradients_agree_with_the_transformers_library") {
  Reference const reference;
  zero::test::WholeModel<float> weights(reference.config);
  zero::test::WholeModel<float> gradients(reference.config);
  reference.load(weights);
  gpt::use_one_blas_thread();
  gpt::Activations activations(reference.config);

  zero::test::forward(activations, weights, reference.tokens.data(), reference.targets.data());
  float const* const logits = gpt::head_forward(activations, weights[3]);
  auto const& expected_logits = reference.fixture.floats("logits");
  CHECK(relative_error(logits, expected_logits, expected_logits.size()) < tolerance);

  double const loss = zero::test::forward(activations, weights, reference.tokens.data(), reference.targets.data());
  CHECK(loss == doctest::Approx(static_cast<double>(reference.fixture.floats("loss")[0])).epsilon(tolerance));

  zero::test::backward(activations, weights, gradients, reference.tokens.data());
  for (zero::ParameterId const id : weights.layout.parameters()) {
    std::string const name(weights.layout.name(id));
    auto const& expected = reference.fixture.floats("gradient/" + name);
    double const error = relative_error(gradients.values[static_cast<std::size_t>(id)], expected, expected.size());
    CHECK_MESSAGE(error < tolerance, name << " differs by " << error);
  }
}

TEST_CASE("gradients_of_parts_of_a_batch_add_up") {
  Reference const reference;
  zero::test::WholeModel<float> weights(reference.config);
  zero::test::WholeModel<float> gradients(reference.config);
  reference.load(weights);
  gpt::Config part = reference.config;
  part.batch = 1;
  gpt::Activations activations(part);
  double loss = 0;
  for (std::size_t sequence = 0; sequence < 4; ++sequence) {
    loss +=
        zero::test::forward(activations, weights, reference.tokens.data() + 16 * sequence, reference.targets.data() + 16 * sequence) / 4;
    zero::test::backward(activations, weights, gradients, reference.tokens.data() + 16 * sequence);
  }
  CHECK(loss == doctest::Approx(static_cast<double>(reference.fixture.floats("loss")[0])).epsilon(tolerance));
  for (zero::ParameterId const id : weights.layout.parameters()) {
    std::string const name(weights.layout.name(id));
    std::vector<float> expected = reference.fixture.floats("gradient/" + name);
    for (float& value : expected) value *= 4;  // each part's loss is a mean over its own quarter
    double const error = relative_error(gradients.values[static_cast<std::size_t>(id)], expected, expected.size());
    CHECK_MESSAGE(error < tolerance, name << " differs by " << error);
  }
}

}  // namespace
