// SPDX-License-Identifier: Apache-2.0
/// @file
/// Text from a model: which tokens are drawn, what the model is shown, what a terminal is shown.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpt/sampling.hpp"

namespace {

TEST_CASE("temperature_zero_takes_the_likeliest") {
  std::vector<float> const logits{0.0f, 3.0f, 2.9f};
  for (std::int64_t position = 0; position < 20; ++position) CHECK(gpt::sample(logits, {.temperature = 0.0f}, position) == 1);
}

TEST_CASE("tokens_are_drawn_as_often_as_softmax_says") {
  std::vector<float> const logits{0.0f, 1.0f, 2.0f, -30.0f};
  gpt::SamplingOptions const options{.temperature = 0.5f, .top_k = 0, .seed = 3};
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit) / 0.5);
  constexpr int draws = 20000;
  std::vector<int> counts(4);
  for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(gpt::sample(logits, options, i))];
  for (std::size_t id = 0; id < 4; ++id) {
    double const share = std::exp(static_cast<double>(logits[id]) / 0.5) / total;
    // Five standard deviations of a binomial share, for one fixed sequence of random numbers.
    CHECK(std::abs(counts[id] / static_cast<double>(draws) - share) <= 5 * std::sqrt(share * (1 - share) / draws) + 1e-9);
  }
}

TEST_CASE("top_k_leaves_out_all_others") {
  std::vector<float> const logits{1.0f, 1.1f, 1.2f, 1.3f};
  for (std::int64_t position = 0; position < 200; ++position) CHECK(gpt::sample(logits, {.temperature = 5.0f, .top_k = 2}, position) >= 2);
  CHECK(gpt::sample(logits, {.temperature = 5.0f, .top_k = 1}, 0) == 3);
}

TEST_CASE("draws_depend_on_seed_and_position_only") {
  std::vector<float> const logits(100, 0.0f);
  gpt::SamplingOptions const options{.temperature = 1.0f, .top_k = 0, .seed = 1};
  CHECK(gpt::sample(logits, options, 5) == gpt::sample(logits, options, 5));
  bool differs = false;
  for (std::int64_t position = 0; position < 10; ++position) {
    differs =
        differs || gpt::sample(logits, options, position) != gpt::sample(logits, {.temperature = 1.0f, .top_k = 0, .seed = 2}, position);
  }
  CHECK(differs);
}

TEST_CASE("the_model_sees_the_last_tokens_from_the_start_of_its_context") {
  gpt::Config const config{.context = 4, .vocabulary = 10};
  std::vector<std::vector<std::int32_t>> seen;
  std::vector<float> logits(40);
  auto const text = gpt::generate(config, {7, 8}, 4, {.temperature = 0.0f}, [&](std::int32_t const* window) {
    seen.emplace_back(window, window + 4);
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::size_t id = 0; id < 10; ++id) logits[row * 10 + id] = id == row ? 1.0f : 0.0f;  // each place predicts its own number
    }
    return logits.data();
  });
  CHECK(text == std::vector<std::int32_t>{1, 2, 3, 3});
  CHECK(seen == std::vector<std::vector<std::int32_t>>{{7, 8, 0, 0}, {7, 8, 1, 0}, {7, 8, 1, 2}, {8, 1, 2, 3}});
}

TEST_CASE("an_empty_prompt_is_a_line_feed") {
  gpt::Config const config{.context = 2, .vocabulary = 256};
  std::vector<float> const logits(512);
  std::int32_t first = -1;
  gpt::generate(config, {}, 1, {.temperature = 0.0f}, [&](std::int32_t const* window) {
    first = window[0];
    return logits.data();
  });
  CHECK(first == '\n');
}

TEST_CASE("text_for_a_terminal_has_no_control_characters_and_is_utf8") {
  auto const readable = [](std::string const& bytes) { return gpt::readable(gpt::tokens_of(bytes)); };
  CHECK(readable("plain text,\n\ttabs") == "plain text,\n\ttabs");
  CHECK(readable("\x1b[2J\r\x7f") == "?[2J??");
  CHECK(readable("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82") == "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82");
  CHECK(readable("\xc3") == "?");  // cut off
  CHECK(readable("\xe2\x82") == "??");
  CHECK(readable("\x80") == "?");       // no beginning
  CHECK(readable("\xc2\x9b") == "??");  // a control character
  CHECK(readable("\xc0\xaf") == "??");  // longer than needed
  CHECK(readable("\xe0\x80\xaf") == "???");
  CHECK(readable("\xed\xa0\x80") == "???");       // a surrogate
  CHECK(readable("\xf4\x90\x80\x80") == "????");  // beyond Unicode
}

}  // namespace
