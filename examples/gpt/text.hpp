// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Training data: any text files and folders, bytes as tokens, or files of 16-bit token ids; and the batches drawn from them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <zero/core/hash.hpp>

#include "gpt/config.hpp"

namespace gpt {

struct TextOptions {
  bool tokens16 = false;          // files hold little-endian 16-bit token ids instead of text
  std::int64_t vocabulary = 256;  // ids must be below
  std::int64_t context = 64;      // a sample is context + 1 tokens long
};

/// Token ids, split for training and validation.
struct Text {
  std::vector<std::uint16_t> training;
  std::vector<std::uint16_t> validation;
  std::int64_t files = 0;
};

namespace detail {

inline bool is_skipped_folder(std::filesystem::path const& path) {
  std::string const name = path.filename().string();
  std::error_code ignored;
  return name.starts_with(".") || name.starts_with("build") || name == "node_modules" || name == "__pycache__" ||
         std::filesystem::exists(path / "CMakeCache.txt", ignored);
}

/// The files of a folder and its folders, without hidden ones and build trees, sorted by path: file systems list them in any order.
inline std::vector<std::filesystem::path> files_in(std::filesystem::path const& folder) {
  std::vector<std::filesystem::path> files;
  std::filesystem::recursive_directory_iterator entry(folder, std::filesystem::directory_options::skip_permission_denied);
  for (; entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    std::filesystem::path const& path = entry->path();
    if (entry->is_directory() && !entry->is_symlink()) {
      if (is_skipped_folder(path)) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && !path.filename().string().starts_with(".")) {
      files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end(), [](auto const& a, auto const& b) { return a.generic_string() < b.generic_string(); });
  return files;
}

inline std::string read_file(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("data: " + path.string() + " cannot be opened");
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) throw std::runtime_error("data: " + path.string() + " cannot be read");
  return bytes;
}

inline bool is_binary(std::string const& bytes) { return bytes.find('\0') != std::string::npos; }

/// Appends raw 16-bit ids. A header of 256 32-bit words that starts with 20240520 is skipped: some tools that write such files put it
/// there.
inline void append_ids(std::string const& bytes, std::string const& path, std::int64_t vocabulary, std::vector<std::uint16_t>& tokens) {
  auto const byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(bytes[i])}; };
  std::size_t start = 0;
  if (bytes.size() >= 1024 && (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24) == 20240520u) start = 1024;
  if (bytes.size() % 2 != 0) throw std::runtime_error("data: " + path + " has an odd number of bytes, so it cannot hold 16-bit token ids");
  for (std::size_t i = start; i < bytes.size(); i += 2) {
    std::uint32_t const id = byte(i) | byte(i + 1) << 8;
    if (id >= static_cast<std::uint64_t>(vocabulary)) {
      throw std::runtime_error("data: " + path + " holds token id " + std::to_string(id) + ", but the vocabulary has " +
                               std::to_string(vocabulary) + " (--vocabulary)");
    }
    tokens.push_back(static_cast<std::uint16_t>(id));
  }
}

}  // namespace detail

/// Every tenth stretch of the tokens becomes validation data, so that it is of the same kind as the rest.
/// Throws std::runtime_error where there are too few.
inline Text split(std::vector<std::uint16_t> const& tokens, std::int64_t context) {
  auto const total = static_cast<std::int64_t>(tokens.size());
  std::int64_t const needed = 10 * (context + 1);
  if (total < needed) {
    throw std::runtime_error("data: " + std::to_string(total) + " tokens are too few: a context of " + std::to_string(context) +
                             " needs at least " + std::to_string(needed) + " (give more with --data, or a smaller --context)");
  }
  std::int64_t const stretch = std::clamp<std::int64_t>(total / 40, context + 1, 8192);
  Text text;
  for (std::int64_t begin = 0, i = 0; begin < total; begin += stretch, ++i) {
    std::int64_t const end = std::min(begin + stretch, total);
    auto& part = i % 10 == 9 ? text.validation : text.training;
    part.insert(part.end(), tokens.begin() + begin, tokens.begin() + end);
  }
  return text;
}

/// Reads files, and all files below folders, in a fixed order. Binary files in folders are skipped, unless `tokens16`: then folders give
/// their files that end in .bin. Throws std::runtime_error, in a sentence, where there is nothing to read, something unreadable or too
/// little.
inline Text load_text(std::vector<std::string> const& paths, TextOptions const& options) {
  namespace fs = std::filesystem;
  if (paths.empty()) throw std::runtime_error("data: no path given (--data)");
  std::vector<std::uint16_t> tokens;
  std::int64_t files = 0;
  auto const add = [&](fs::path const& path, bool named) {
    std::string const bytes = detail::read_file(path);
    if (options.tokens16) {
      detail::append_ids(bytes, path.string(), options.vocabulary, tokens);
    } else if (detail::is_binary(bytes)) {
      if (!named) return;
      throw std::runtime_error("data: " + path.string() + " is a binary file, not text (--tokens16 if it holds 16-bit token ids)");
    } else {
      for (char const c : bytes) tokens.push_back(static_cast<unsigned char>(c));
    }
    files += bytes.empty() ? 0 : 1;
  };
  for (std::string const& path : paths) {
    std::error_code error;
    fs::file_status const status = fs::status(path, error);
    if (fs::is_directory(status)) {
      for (fs::path const& file : detail::files_in(path)) {
        if (!options.tokens16 || file.extension() == ".bin") add(file, false);
      }
    } else if (fs::exists(status)) {
      add(path, true);
    } else {
      throw std::runtime_error("data: " + path + " does not exist");
    }
  }
  Text text = split(tokens, options.context);
  text.files = files;
  return text;
}

/// What one rank trains on in one micro-batch.
struct Batch {
  explicit Batch(Config const& config)
      : tokens(static_cast<std::size_t>(config.rows())), targets(static_cast<std::size_t>(config.rows())) {}

  std::vector<std::int32_t> tokens;   // [batch, context]
  std::vector<std::int32_t> targets;  // [batch, context] the token after each
};

namespace detail {

inline void copy_sample(std::span<std::uint16_t const> text, std::int64_t start, std::int64_t sequence, std::int64_t context,
                        Batch& batch) {
  for (std::int64_t i = 0; i < context; ++i) {
    auto const to = static_cast<std::size_t>(sequence * context + i);
    batch.tokens[to] = text[static_cast<std::size_t>(start + i)];
    batch.targets[to] = text[static_cast<std::size_t>(start + i + 1)];
  }
}

}  // namespace detail

/// Which batch: the same key gives the same batch, whatever was drawn before.
struct BatchKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  int rank = 0;
};

/// Fills `batch` with samples from random places of `text`, which must hold more than `config.context` tokens.
inline void draw_batch(std::span<std::uint16_t const> text, Config const& config, BatchKey const& key, Batch& batch) {
  auto const starts = static_cast<std::uint64_t>(text.size()) - static_cast<std::uint64_t>(config.context);
  for (std::int64_t sequence = 0; sequence < config.batch; ++sequence) {
    std::uint64_t const random = zero::Hasher{}
                                     .add(key.seed)
                                     .add(static_cast<std::uint64_t>(key.step))
                                     .add(static_cast<std::uint64_t>(key.micro_batch))
                                     .add(static_cast<std::uint64_t>(key.rank))
                                     .add(static_cast<std::uint64_t>(sequence))
                                     .value();
    detail::copy_sample(text, static_cast<std::int64_t>(random % starts), sequence, config.context, batch);
  }
}

/// How many different batches `take_batch` can give without looking at a token twice; at least 1.
inline std::int64_t batches_in(std::span<std::uint16_t const> text, Config const& config) {
  return std::max<std::int64_t>(1, (static_cast<std::int64_t>(text.size()) - 1) / config.context / config.batch);
}

/// Fills `batch` with the index-th group of samples of `text`, for validation: any few groups are spread over the whole text, and no sample
/// comes twice before all have come once.
inline void take_batch(std::span<std::uint16_t const> text, Config const& config, std::int64_t index, Batch& batch) {
  std::int64_t const samples = (static_cast<std::int64_t>(text.size()) - 1) / config.context;
  // Steps of about the golden section of the text fall between all earlier ones.
  std::int64_t stride = std::max<std::int64_t>(1, static_cast<std::int64_t>(0.618 * static_cast<double>(samples)));
  while (std::gcd(stride, samples) != 1) ++stride;
  for (std::int64_t sequence = 0; sequence < config.batch; ++sequence) {
    std::int64_t const sample = (index * config.batch + sequence) % samples * stride % samples;
    detail::copy_sample(text, sample * config.context, sequence, config.context, batch);
  }
}

}  // namespace gpt
