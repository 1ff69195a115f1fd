// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer's data: which files are read, how they are split, which batches are drawn, and what is said when there is nothing to read.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gpt/text.hpp"

namespace {

namespace fs = std::filesystem;

/// A folder for one test, removed at its end.
struct Folder {
  fs::path path;

  Folder() {
    std::string name = (fs::temp_directory_path() / "gpt_text_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;

  std::string write(std::string const& name, std::string const& bytes) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
};

std::string all_of(gpt::Text const& text) {
  std::string bytes;
  for (std::uint16_t token : text.training) bytes += static_cast<char>(token);
  return bytes;
}

std::size_t size_of(gpt::Text const& text) { return text.training.size() + text.validation.size(); }

std::string ids(std::vector<unsigned> const& values) {
  std::string bytes;
  for (unsigned value : values) bytes += {static_cast<char>(value & 255u), static_cast<char>(value >> 8)};
  return bytes;
}

std::string message_of(std::vector<std::string> const& paths, gpt::TextOptions const& options) {
  try {
    gpt::load_text(paths, options);
  } catch (std::runtime_error const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_CASE("reads_folders_in_a_fixed_order_without_what_is_no_text") {
  Folder const folder;
  folder.write("b.txt", std::string(300, 'b'));
  folder.write("a/z.md", std::string(300, 'a'));
  folder.write("c", std::string(300, 'c'));
  folder.write("picture", std::string(100, 'p') + std::string(1, '\0') + std::string(100, 'p'));
  folder.write(".hidden", std::string(300, 'h'));
  folder.write(".git/objects/x", std::string(300, 'g'));
  folder.write("build/x", std::string(300, 'o'));
  folder.write("out/CMakeCache.txt", std::string(300, 'o'));
  folder.write("empty", "");
  gpt::Text const text = gpt::load_text({folder.path.string()}, {.context = 8});
  CHECK(text.files == 3);
  CHECK(size_of(text) == 900);
  std::string const bytes = all_of(text);
  CHECK(bytes.find_first_not_of("abc") == std::string::npos);
  CHECK(bytes.find("ba") == std::string::npos);
  CHECK(bytes.find("cb") == std::string::npos);
}

TEST_CASE("a_named_file_is_read_even_where_a_folder_would_skip_it") {
  Folder const folder;
  std::string const hidden = folder.write(".hidden", std::string(200, 'h'));
  CHECK(size_of(gpt::load_text({hidden}, {.context = 8})) == 200);
}

TEST_CASE("validation_data_are_every_tenth_stretch") {
  std::vector<std::uint16_t> tokens(4000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i);
  gpt::Text const text = gpt::split(tokens, 16);
  CHECK(text.training.size() == 3600);
  CHECK(text.validation.size() == 400);
  CHECK(text.validation.front() == 900);
  CHECK(text.validation[100] == 1900);
  std::set<std::uint16_t> all(text.training.begin(), text.training.end());
  all.insert(text.validation.begin(), text.validation.end());
  CHECK(all.size() == 4000);
}

TEST_CASE("the_shortest_text_that_is_taken_still_has_both_parts") {
  for (std::int64_t context : {1, 5, 64}) {
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(10 * (context + 1)));
    gpt::Text const text = gpt::split(tokens, context);
    CHECK(static_cast<std::int64_t>(text.training.size()) > context);
    CHECK(static_cast<std::int64_t>(text.validation.size()) > context);
    tokens.pop_back();
    CHECK_THROWS_AS(gpt::split(tokens, context), std::runtime_error);
  }
}

TEST_CASE("token_files_hold_little_endian_ids_and_may_have_a_header") {
  Folder const folder;
  std::vector<unsigned> values(100, 300);
  std::string const plain = folder.write("plain.bin", ids(values));
  gpt::Text const text = gpt::load_text({plain}, {.tokens16 = true, .vocabulary = 301, .context = 4});
  CHECK(size_of(text) == 100);
  CHECK(text.training.front() == 300);
  std::string header(1024, '\0');
  header.replace(0, 4, ids({20240520u & 0xffffu, 20240520u >> 16}));
  std::string const headed = folder.write("headed.bin", header + ids(values));
  CHECK(size_of(gpt::load_text({headed}, {.tokens16 = true, .vocabulary = 301, .context = 4})) == 100);
  folder.write("notes.txt", "not tokens");
  CHECK(size_of(gpt::load_text({folder.path.string()}, {.tokens16 = true, .vocabulary = 301, .context = 4})) == 200);
}

TEST_CASE("what_cannot_be_read_is_said_in_a_sentence") {
  Folder const folder;
  CHECK(message_of({}, {}) == "data: no path given (--data)");
  std::string const missing = (folder.path / "missing").string();
  CHECK(message_of({missing}, {}) == "data: " + missing + " does not exist");
  CHECK(message_of({folder.path.string()}, {.context = 64}) ==
        "data: 0 tokens are too few: a context of 64 needs at least 650 (give more with --data, or a smaller --context)");
  std::string const binary = folder.write("binary", std::string(2000, '\0'));
  CHECK(message_of({binary}, {}) == "data: " + binary + " is a binary file, not text (--tokens16 if it holds 16-bit token ids)");
  std::string const odd = folder.write("odd.bin", std::string(2001, '\0'));
  CHECK(message_of({odd}, {.tokens16 = true}) == "data: " + odd + " has an odd number of bytes, so it cannot hold 16-bit token ids");
  std::string const large = folder.write("large.bin", ids({1, 2, 500}));
  CHECK(message_of({large}, {.tokens16 = true, .vocabulary = 500}) ==
        "data: " + large + " holds token id 500, but the vocabulary has 500 (--vocabulary)");
}

TEST_CASE("a_batch_depends_on_its_key_and_on_nothing_else") {
  gpt::Config const config{.context = 16, .batch = 4};
  std::vector<std::uint16_t> text(10000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint16_t>(i);
  gpt::Batch first(config);
  gpt::Batch second(config);
  gpt::draw_batch(text, config, {1, 2, 3, 4}, first);
  for (gpt::BatchKey const& other :
       {gpt::BatchKey{2, 2, 3, 4}, gpt::BatchKey{1, 3, 3, 4}, gpt::BatchKey{1, 2, 4, 4}, gpt::BatchKey{1, 2, 3, 5}}) {
    gpt::draw_batch(text, config, other, second);
    CHECK(first.tokens != second.tokens);
  }
  gpt::draw_batch(text, config, {1, 2, 3, 4}, second);
  CHECK(first.tokens == second.tokens);
  CHECK(first.tokens[0] != first.tokens[16]);
  for (std::size_t i = 0; i < first.tokens.size(); ++i) {
    CHECK(first.targets[i] == first.tokens[i] + 1);
    if (i % 16 != 0) CHECK(first.tokens[i] == first.tokens[i - 1] + 1);
  }
}

TEST_CASE("batches_reach_both_ends_of_the_text") {
  gpt::Config const config{.context = 4, .batch = 64};
  std::vector<std::uint16_t> const text{0, 1, 2, 3, 4, 5, 6};  // three places: 0, 1 and 2
  gpt::Batch batch(config);
  gpt::draw_batch(text, config, {}, batch);
  std::set<std::int32_t> starts;
  for (std::size_t sequence = 0; sequence < 64; ++sequence) starts.insert(batch.tokens[4 * sequence]);
  CHECK(starts == std::set<std::int32_t>{0, 1, 2});
}

TEST_CASE("validation_batches_take_every_sample_once_and_start_over") {
  gpt::Config const config{.context = 4, .batch = 2};
  for (std::int64_t samples = 1; samples <= 40; ++samples) {
    std::vector<std::uint16_t> text(static_cast<std::size_t>(4 * samples + 1));
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint16_t>(i);
    CHECK(gpt::batches_in(text, config) == std::max<std::int64_t>(1, samples / 2));
    gpt::Batch batch(config);
    std::vector<std::int32_t> starts;
    for (std::int64_t index = 0; index < samples; ++index) {
      gpt::take_batch(text, config, index, batch);
      for (std::size_t i = 0; i < 8; ++i) CHECK(batch.targets[i] == batch.tokens[i] + 1);
      starts.push_back(batch.tokens[0]);
      starts.push_back(batch.tokens[4]);
    }
    auto const half = starts.begin() + samples;
    CHECK(std::equal(starts.begin(), half, half));
    CHECK(std::set<std::int32_t>(starts.begin(), half).size() == static_cast<std::size_t>(samples));
    for (std::int32_t start : starts) CHECK(start % 4 == 0);
  }
}

TEST_CASE("a_few_validation_batches_are_spread_over_the_text") {
  gpt::Config const config{.context = 4, .batch = 2};
  std::vector<std::uint16_t> text(4001);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint16_t>(i);
  gpt::Batch batch(config);
  std::set<std::int32_t> tenths;
  for (std::int64_t index = 0; index < 10; ++index) {
    gpt::take_batch(text, config, index, batch);
    tenths.insert(batch.tokens[0] / 400);
    tenths.insert(batch.tokens[4] / 400);
  }
  CHECK(tenths.size() == 10);
}

}  // namespace
