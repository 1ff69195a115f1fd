// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The parameters of GPT-2, with the names and shapes of the checkpoint that Hugging Face publishes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <zero/layout/parameter_layout.hpp>

#include "gpt/config.hpp"

namespace gpt {

namespace detail {

/// "h.11.attn.c_attn.bias", also in constant expressions, for which not every standard library's string is fit.
class BlockName {
public:
  constexpr explicit BlockName(std::int64_t layer) {
    add("h.");
    std::int64_t power = 1;
    while (layer / power >= 10) power *= 10;
    for (; power > 0; power /= 10) text_[size_++] = static_cast<char>('0' + layer / power % 10);
  }
  [[nodiscard]] constexpr BlockName dot(std::string_view rest) const {
    BlockName longer = *this;
    longer.add(".");
    longer.add(rest);
    return longer;
  }
  constexpr operator std::string_view() const { return {text_, size_}; }

private:
  constexpr void add(std::string_view text) {
    for (char const c : text) text_[size_++] = c;
  }

  char text_[64] = {};
  std::size_t size_ = 0;
};

}  // namespace detail

/// Units in the order of a forward pass: "embedding", "h.0", "h.1", ..., "head". The head computes its logits with the embedding's
/// wte.weight. Weights of products are stored [in, out], as in the checkpoint.
constexpr zero::ParameterLayout make_layout(Config const& config) {
  std::int64_t const channels = config.channels;
  zero::ParameterLayout layout;

  zero::Unit const embedding = layout.add_unit("embedding");
  zero::ParameterId const tokens = layout.add(embedding, "wte.weight", {config.vocabulary, channels});
  layout.add(embedding, "wpe.weight", {config.context, channels});

  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    detail::BlockName const name(layer);
    zero::Unit const block = layout.add_unit(name);
    auto const add = [&](std::string_view parameter, zero::Shape const& shape) { layout.add(block, name.dot(parameter), shape); };
    add("ln_1.weight", {channels});
    add("ln_1.bias", {channels});
    add("attn.c_attn.weight", {channels, 3 * channels});
    add("attn.c_attn.bias", {3 * channels});
    add("attn.c_proj.weight", {channels, channels});
    add("attn.c_proj.bias", {channels});
    add("ln_2.weight", {channels});
    add("ln_2.bias", {channels});
    add("mlp.c_fc.weight", {channels, 4 * channels});
    add("mlp.c_fc.bias", {4 * channels});
    add("mlp.c_proj.weight", {4 * channels, channels});
    add("mlp.c_proj.bias", {channels});
  }

  zero::Unit const head = layout.add_unit("head");
  layout.add(head, "ln_f.weight", {channels});
  layout.add(head, "ln_f.bias", {channels});
  layout.tie(tokens, head);
  return layout;
}

}  // namespace gpt
