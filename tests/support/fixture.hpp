// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Reads the fixture files in tests/fixtures: named tensors of another framework's numbers (the format stands in fixture_file.py).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace zero::test {

static_assert(std::endian::native == std::endian::little, "fixture files are little-endian");

/// One tensor, row-major. One of the two vectors is filled, by element type.
struct FixtureTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> floats;
  std::vector<std::int32_t> integers;
};

/// All tensors of one file by name. Throws std::runtime_error where the file is missing or malformed and where a name is unknown.
class Fixture {
public:
  explicit Fixture(std::string const& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + ": cannot be opened");
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.size() < 8 || std::memcmp(bytes_.data(), "zerofix1", 8) != 0) throw std::runtime_error(path + ": not a fixture");
    at_ = 8;
    auto const count = read<std::uint32_t>();
    for (std::uint32_t i = 0; i < count; ++i) read_tensor();
    if (at_ != bytes_.size()) throw std::runtime_error(path + ": bytes after the last tensor");
    bytes_ = {};
  }

  [[nodiscard]] FixtureTensor const& operator[](std::string const& name) const {
    auto const found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error(path_ + ": no tensor " + name);
    return found->second;
  }

  [[nodiscard]] bool has(std::string const& name) const { return tensors_.count(name) != 0; }
  [[nodiscard]] std::vector<float> const& floats(std::string const& name) const { return (*this)[name].floats; }
  [[nodiscard]] std::vector<std::int32_t> const& integers(std::string const& name) const { return (*this)[name].integers; }

private:
  void take(void* to, std::size_t bytes) {
    if (bytes > bytes_.size() - at_) throw std::runtime_error(path_ + ": ends early");
    if (bytes != 0) std::memcpy(to, bytes_.data() + at_, bytes);
    at_ += bytes;
  }

  template <class T>
  T read() {
    T value;
    take(&value, sizeof value);
    return value;
  }

  void read_tensor() {
    std::string name(read<std::uint32_t>(), '\0');
    take(name.data(), name.size());
    auto const type = read<std::uint32_t>();
    FixtureTensor tensor;
    tensor.shape.resize(read<std::uint32_t>());
    std::int64_t elements = 1;
    for (std::int64_t& size : tensor.shape) elements *= size = read<std::int64_t>();
    auto const n = static_cast<std::size_t>(elements);
    if (n > bytes_.size() / 4) throw std::runtime_error(path_ + ": ends early");
    if (type == 0) {
      tensor.floats.resize(n);
      take(tensor.floats.data(), 4 * n);
    } else if (type == 1) {
      tensor.integers.resize(n);
      take(tensor.integers.data(), 4 * n);
    } else {
      throw std::runtime_error(path_ + ": unknown element type of " + name);
    }
    tensors_[name] = tensor;
  }

  std::string path_;
  std::vector<char> bytes_;
  std::size_t at_ = 0;
  std::map<std::string, FixtureTensor> tensors_;
};

}  // namespace zero::test
