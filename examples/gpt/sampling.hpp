// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Text from a trained model: temperature, top-k, random numbers that depend on seed and position only.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <zero/core/hash.hpp>

#include "gpt/config.hpp"

namespace gpt {

struct SamplingOptions {
  float temperature = 0.8f;  // 0: always the likeliest token
  std::int64_t top_k = 40;   // only among the k likeliest; 0: among all
  std::uint64_t seed = 1;
};

/// One token id for position `position` of the text.
inline std::int32_t sample(std::span<float const> logits, SamplingOptions const& options, std::int64_t position) {
  auto const likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  float least = -HUGE_VALF;
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(logits.size())) {
    std::vector<float> sorted(logits.begin(), logits.end());
    std::nth_element(sorted.begin(), sorted.begin() + (options.top_k - 1), sorted.end(), std::greater<>{});
    least = sorted[static_cast<std::size_t>(options.top_k - 1)];
  }
  auto const weight = [&](float logit) {
    return logit < least
               ? 0.0
               : std::exp((static_cast<double>(logit) - static_cast<double>(*likeliest)) / static_cast<double>(options.temperature));
  };
  double total = 0;
  for (float const logit : logits) total += weight(logit);
  std::uint64_t const bits = zero::Hasher{}.add(options.seed).add(static_cast<std::uint64_t>(position)).value();
  double rest = static_cast<double>(bits >> 11) * 0x1p-53 * total;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    rest -= weight(logits[id]);
    if (rest < 0) return static_cast<std::int32_t>(id);
  }
  return static_cast<std::int32_t>(likeliest - logits.begin());
}

/// Continues `prompt` by `count` tokens and returns these. An empty prompt stands for one token 10 (a line feed in bytes) or 0.
/// @param logits_of  Called with [context] tokens, of which the unused ones at the end are 0; returns logits [context, vocabulary].
template <class Logits>
std::vector<std::int32_t> generate(Config const& config, std::vector<std::int32_t> prompt, std::int64_t count,
                                   SamplingOptions const& options, Logits logits_of) {
  if (prompt.empty()) prompt.push_back(config.vocabulary > 10 ? 10 : 0);
  std::vector<std::int32_t> text = prompt;
  std::vector<std::int32_t> window(static_cast<std::size_t>(config.context));
  while (static_cast<std::int64_t>(text.size() - prompt.size()) < count) {
    std::size_t const seen = std::min(text.size(), window.size());
    std::fill(std::copy(text.end() - static_cast<std::ptrdiff_t>(seen), text.end(), window.begin()), window.end(), 0);
    float const* const logits = logits_of(window.data());
    std::span<float const> const last(logits + static_cast<std::int64_t>(seen - 1) * config.vocabulary,
                                      static_cast<std::size_t>(config.vocabulary));
    text.push_back(sample(last, options, static_cast<std::int64_t>(text.size())));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

/// Bytes as tokens.
inline std::vector<std::int32_t> tokens_of(std::string const& text) {
  std::vector<std::int32_t> tokens;
  for (char const c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// Text for a terminal: printable ASCII, line feeds, tabs and well-formed UTF-8 stay; any other byte, a control character say, becomes '?'.
inline std::string readable(std::span<std::int32_t const> tokens) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size();) {
    std::int32_t const first = tokens[i];
    std::size_t const length = first >= 0xc2 && first < 0xe0   ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 1;
    bool fit = length > 1 ? i + length <= tokens.size() : (first >= 0x20 && first < 0x7f) || first == '\n' || first == '\t';
    std::int32_t code = length == 2 ? first & 0x1f : length == 3 ? first & 0x0f : first & 0x07;
    for (std::size_t k = 1; fit && k < length; ++k) {
      fit = tokens[i + k] >= 0x80 && tokens[i + k] < 0xc0;
      code = code << 6 | (tokens[i + k] & 0x3f);
    }
    // Second control block, overlong forms, surrogates, and what lies beyond Unicode.
    if (length == 2) fit = fit && code >= 0xa0;
    if (length == 3) fit = fit && code >= 0x800 && (code < 0xd800 || code > 0xdfff);
    if (length == 4) fit = fit && code >= 0x10000 && code < 0x110000;
    if (!fit) {
      text += '?';
      ++i;
      continue;
    }
    for (std::size_t k = 0; k < length; ++k) text += static_cast<char>(tokens[i + k]);
    i += length;
  }
  return text;
}

}  // namespace gpt
