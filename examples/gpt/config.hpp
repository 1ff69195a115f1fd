// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The size of a GPT-2 model and of one rank's micro-batch.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpt {

struct Config {
  std::int64_t layers = 3;
  std::int64_t heads = 4;
  std::int64_t channels = 64;
  std::int64_t context = 64;      // longest sequence [tokens]
  std::int64_t vocabulary = 256;  // token ids are 0 to vocabulary - 1
  std::int64_t batch = 4;         // sequences in one micro-batch of one rank

  [[nodiscard]] constexpr std::int64_t rows() const { return batch * context; }  // tokens in one micro-batch of one rank
  [[nodiscard]] constexpr std::int64_t head_channels() const { return channels / heads; }
};

/// Throws std::invalid_argument, in a sentence, for sizes that make no model.
inline void check(Config const& config) {
  auto const at_least_one = [](std::int64_t value, char const* name) {
    if (value < 1) throw std::invalid_argument(std::string(name) + " must be at least 1, not " + std::to_string(value));
  };
  at_least_one(config.layers, "the number of layers");
  at_least_one(config.heads, "the number of heads");
  at_least_one(config.channels, "the number of channels");
  at_least_one(config.context, "the context");
  at_least_one(config.vocabulary, "the vocabulary");
  at_least_one(config.batch, "the batch");
  if (config.channels % config.heads != 0) {
    throw std::invalid_argument(std::to_string(config.channels) + " channels cannot be divided into " + std::to_string(config.heads) +
                                " heads of equal size");
  }
}

}  // namespace gpt
