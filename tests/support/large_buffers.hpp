// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Buffers of some GiB for tests: how much memory there is, guard bytes behind a buffer, values that are written and compared as fast as memory
/// allows.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/core/hash.hpp>

namespace zero::test {

/// Memory that can be had without swapping [bytes]; 0 where the system does not say.
inline std::int64_t available_memory() {
  std::int64_t available = 0;
  std::ifstream system("/proc/meminfo");
  for (std::string word; system >> word;) {
    if (word == "MemAvailable:" && system >> available) available *= 1024;
  }
  // What the control group of a container leaves, as its second version has it.
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  std::ifstream used("/sys/fs/cgroup/memory.current");
  std::int64_t most = 0;
  std::int64_t now = 0;
  if (limit >> most && used >> now) available = std::min(available, most - now);
  return available;
}

/// Addresses, given back to the system at the end.
class Mapping {
public:
  explicit Mapping(std::size_t bytes) : bytes_(bytes) {
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::runtime_error("no addresses for " + std::to_string(bytes) + " bytes");
    begin_ = static_cast<std::byte*>(address);
  }
  Mapping(Mapping&& other) noexcept : bytes_(other.bytes_), begin_(std::exchange(other.begin_, nullptr)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (begin_ != nullptr) ::munmap(begin_, bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

private:
  std::size_t bytes_;
  std::byte* begin_ = nullptr;
};

/// Memory for one buffer at a time, with guard bytes before and behind it.
class GuardedMemory {
public:
  /// @param bytes of the largest buffer.
  explicit GuardedMemory(std::int64_t bytes) : memory_(static_cast<std::size_t>(bytes) + 2 * guard_bytes) {
    static_cast<void>(::madvise(memory_.data(), memory_.size(), MADV_HUGEPAGE));
  }

  /// The buffer, in the place of the one before, filled with something that no test expects.
  template <Element T>
  [[nodiscard]] T* take(std::int64_t count) {
    used_ = static_cast<std::size_t>(count) * sizeof(T);
    if (used_ + 2 * guard_bytes > memory_.size()) throw std::runtime_error("GuardedMemory: too little");
    std::memset(memory_.data(), guard, used_ + 2 * guard_bytes);
    return reinterpret_cast<T*>(memory_.data() + guard_bytes);
  }

  /// @throws std::runtime_error if somebody has written beside the buffer.
  void check_guards() const {
    for (std::size_t i = 0; i < guard_bytes; ++i) {
      if (memory_.data()[i] != std::byte{guard}) throw std::runtime_error("byte -" + std::to_string(guard_bytes - i) + " was written");
      if (memory_.data()[guard_bytes + used_ + i] != std::byte{guard}) {
        throw std::runtime_error("byte " + std::to_string(used_ + i) + " of " + std::to_string(used_) + " was written");
      }
    }
  }

private:
  static constexpr unsigned char guard = 0xA5;
  static constexpr std::size_t guard_bytes = 4096;

  Mapping memory_;
  std::size_t used_ = 0;
};

/// Values without an end. They repeat after a number of bytes that has a large prime factor, so what comes from a place that is wrong by a power of
/// two shows.
template <Element T>
class RepeatedValues {
public:
  explicit RepeatedValues(std::uint64_t key) : values_(static_cast<std::size_t>(period)) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      std::uint64_t const bits = mixed_bits((key << 32) + i);
      if constexpr (RealElement<T>) values_[i] = static_cast<T>(static_cast<float>(bits % 16));  // Sums of a few of these are exact.
      else values_[i] = static_cast<T>(bits);
    }
  }

  void add(RepeatedValues const& other) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<T>(compute_t<T>(values_[i]) + compute_t<T>(other.values_[i]));
  }
  void multiply(float factor) {
    for (T& value : values_) value = static_cast<T>(float(value) * factor);
  }

  /// Writes values number 0 to count - 1.
  void write(T* to, std::int64_t count) const {
    for_parts(0, count, [&](std::int64_t begin, T const* values, std::size_t bytes) { std::memcpy(to + begin, values, bytes); });
  }

  /// @param first the number of the value that is expected first.
  /// @throws std::runtime_error if a value is another one.
  void expect(T const* from, std::int64_t count, std::int64_t first = 0) const {
    for_parts(first, count, [&](std::int64_t begin, T const* values, std::size_t bytes) {
      if (std::memcmp(from + begin, values, bytes) == 0) return;
      while (std::memcmp(from + begin, values, sizeof(T)) == 0) ++begin, ++values;
      throw std::runtime_error("element " + std::to_string(begin) + " of " + std::to_string(count) + " is " +
                               std::to_string(double(compute_t<T>(from[begin]))) + " instead of " +
                               std::to_string(double(compute_t<T>(*values))));
    });
  }

  /// Values number 0 to count - 1 as memory that can be read but takes only one period: its pages are there many times.
  [[nodiscard]] Mapping read_only(std::int64_t count) const {
    std::size_t const bytes = static_cast<std::size_t>(count) * sizeof(T);
    int const file = ::memfd_create("values", 0);
    if (file < 0) throw std::runtime_error("memfd_create failed");
    bool good = ::write(file, values_.data(), period_bytes) == static_cast<::ssize_t>(period_bytes);
    Mapping result((bytes + period_bytes - 1) / period_bytes * period_bytes);
    for (std::size_t place = 0; place < result.size(); place += period_bytes) {
      good = good && ::mmap(result.data() + place, period_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    }
    ::close(file);
    if (!good) throw std::runtime_error("the values could not be mapped");
    return result;
  }

private:
  static constexpr std::size_t period_bytes = std::size_t{8191} * 4096;  // A prime number of pages.
  static constexpr std::int64_t period = period_bytes / sizeof(T);

  /// Calls part(begin, values, bytes) for parts of `count` elements whose values lie together.
  template <class Part>
  void for_parts(std::int64_t first, std::int64_t count, Part const& part) const {
    for (std::int64_t begin = 0; begin < count;) {
      std::int64_t const phase = (first + begin) % period;
      std::int64_t const size = std::min(period - phase, count - begin);
      part(begin, values_.data() + phase, static_cast<std::size_t>(size) * sizeof(T));
      begin += size;
    }
  }

  std::vector<T> values_;
};

}  // namespace zero::test
