// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Arrays that are cheap to compile and to use in constant expressions.

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include <zero/core/config.hpp>

namespace zero::detail {

/// `std::vector` with the few members that the library needs. It compiles faster, which each program pays for each type of element, and takes
/// fewer steps in constant expressions, which compilers limit (clang to a million).
///
/// Elements have a default value, and assigning one by move never throws. What grows keeps its value where memory is exhausted.
template <class T>
class PlainArray {
public:
  // NOLINTNEXTLINE(modernize-use-equals-default): nvcc would warn of members without a value
  constexpr PlainArray() noexcept {}
  constexpr explicit PlainArray(std::size_t size, T const& value = {}) : PlainArray() { assign(size, value); }
  constexpr PlainArray(PlainArray const& other) : PlainArray() {
    reserve(other.size_);
    append(other.data_, other.size_);
  }
  constexpr PlainArray(PlainArray&& other) noexcept { swap(other); }
  constexpr PlainArray& operator=(PlainArray const& other) {
    if (this != &other) *this = PlainArray(other);
    return *this;
  }
  constexpr PlainArray& operator=(PlainArray&& other) noexcept {
    PlainArray taken(std::move(other));
    swap(taken);
    return *this;
  }
  constexpr ~PlainArray() { delete[] data_; }

  [[nodiscard]] constexpr T* data() noexcept { return data_; }
  [[nodiscard]] constexpr T const* data() const noexcept { return data_; }
  [[nodiscard]] constexpr T* begin() noexcept { return data_; }
  [[nodiscard]] constexpr T const* begin() const noexcept { return data_; }
  [[nodiscard]] constexpr T* end() noexcept { return data_ + size_; }
  [[nodiscard]] constexpr T const* end() const noexcept { return data_ + size_; }
  [[nodiscard]] constexpr T& operator[](std::size_t i) noexcept { return data_[i]; }
  [[nodiscard]] constexpr T const& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

  constexpr void reserve(std::size_t capacity) {
    if (capacity > capacity_) {
      T* const data = new T[capacity]{};
      move(data, data_, size_);
      delete[] data_;
      data_ = data;
      capacity_ = capacity;
    }
  }

  /// Room for `more` further elements with geometric growth, so that the insertions which follow cannot fail.
  constexpr void reserve_more(std::size_t more) {
    std::size_t const needed = size_ + more;
    if (needed > capacity_) {
      reserve(needed > 2 * capacity_ ? needed : 2 * capacity_);
    }
  }

  /// So many elements of that value.
  constexpr void assign(std::size_t size, T const& value) {
    PlainArray fresh;
    fresh.reserve(size);
    for (; fresh.size_ < size; ++fresh.size_) {
      fresh.data_[fresh.size_] = value;
    }
    swap(fresh);
  }

  /// Forgets the elements from the given number on, and keeps their memory. @param size  at most size()
  constexpr void truncate(std::size_t size) noexcept { size_ = size; }

  constexpr void push_back(T value) { insert(size_, std::move(value)); }

  /// Puts an element before the one at `position`, or at the end.
  constexpr void insert(std::size_t position, T value) {
    reserve_more(1);
    for (std::size_t i = size_; i > position; --i) {
      data_[i] = std::move(data_[i - 1]);
    }
    data_[position] = std::move(value);
    ++size_;
  }

  /// Appends values, which may lie in this array.
  constexpr void append(T const* values, std::size_t count) {
    if (size_ + count > capacity_) {
      PlainArray grown;
      grown.reserve(size_ + count > 2 * capacity_ ? size_ + count : 2 * capacity_);
      copy(grown.data_ + size_, values, count);  // First: they may be about to move.
      move(grown.data_, data_, size_);
      grown.size_ = size_;
      swap(grown);
    } else {
      copy(data_ + size_, values, count);
    }
    size_ += count;
  }

private:
  static_assert(std::is_nothrow_move_assignable_v<T>);

  static constexpr void copy(T* to, T const* from, std::size_t count) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      if (!std::is_constant_evaluated()) {  // a loop here, unrolled at -O3, makes g++ 12 warn of writes that cannot happen
        if (count != 0) std::memcpy(to, from, count * sizeof(T));
        return;
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = from[i];
    }
  }
  static constexpr void move(T* to, T* from, std::size_t count) noexcept {
    if constexpr (std::is_trivially_copyable_v<T>) {
      copy(to, from, count);
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        to[i] = std::move(from[i]);
      }
    }
  }
  constexpr void swap(PlainArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

/// So many elements with their default value, at one place: they may be neither copied nor moved. A `std::unique_ptr<T[]>` that compiles faster.
template <class T>
class FixedArray {
public:
  FixedArray() noexcept = default;
  explicit FixedArray(std::size_t size) : data_(new T[size]{}) {}
  FixedArray(FixedArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  FixedArray& operator=(FixedArray other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~FixedArray() { delete[] data_; }

  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }
  [[nodiscard]] T* data() const noexcept { return data_; }

private:
  T* data_ = nullptr;
};

}  // namespace zero::detail
