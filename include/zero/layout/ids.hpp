// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Strong ids of units, parameters and segments, and the ranges that iterate over them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <zero/core/config.hpp>

namespace zero {

/// A unit of a layout: the parameters that are gathered, used and handed over together (a transformer block, say). Numbered from 0 in
/// the order in which the layout was told of them.
enum class Unit : std::int32_t {};

/// A parameter of a layout, numbered from 0 in declaration order over the whole layout.
enum class ParameterId : std::int32_t {};

/// A segment of a partition: see `Partition`.
enum class SegmentId : std::int32_t {};

/// One of the ids above.
template <class Id>
concept LayoutId = std::same_as<Id, Unit> || std::same_as<Id, ParameterId> || std::same_as<Id, SegmentId>;

/// The number inside an id: the position in an array that has one entry per unit, parameter or segment.
template <LayoutId Id>
[[nodiscard]] constexpr std::int32_t to_index(Id id) noexcept {
  return static_cast<std::int32_t>(id);
}

namespace detail {

/// `to_index` as a subscript of the standard containers.
template <LayoutId Id>
[[nodiscard]] constexpr std::size_t at(Id id) noexcept {
  return static_cast<std::size_t>(to_index(id));
}

}  // namespace detail

/// Ids that lie one after the other in memory that is somebody else's: a `std::span<Id const>`, to which it converts, that costs programs less to
/// compile.
template <LayoutId Id>
class IdList {
public:
  using value_type = Id;

  constexpr IdList() noexcept = default;
  constexpr IdList(Id const* data, std::size_t size) noexcept : data_(data), size_(size) {}

  [[nodiscard]] constexpr Id const* data() const noexcept { return data_; }
  [[nodiscard]] constexpr Id const* begin() const noexcept { return data_; }
  [[nodiscard]] constexpr Id const* end() const noexcept { return data_ + size_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

  /// @name Unchecked, as those of `std::span`
  /// @{
  [[nodiscard]] constexpr Id operator[](std::size_t position) const noexcept { return data_[position]; }
  [[nodiscard]] constexpr Id front() const noexcept { return data_[0]; }
  [[nodiscard]] constexpr IdList first(std::size_t count) const noexcept { return {data_, count}; }
  [[nodiscard]] constexpr IdList subspan(std::size_t begin) const noexcept { return {data_ + begin, size_ - begin}; }
  /// @}

private:
  Id const* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace zero

template <class Id>
inline constexpr bool std::ranges::enable_borrowed_range<zero::IdList<Id>> = true;

namespace zero {

/// The ids 0, 1, ..., n - 1, or the same backwards: `for (Unit unit : layout.units().reversed())`. A value: it refers to nothing and stays
/// what it was when the layout grows.
template <LayoutId Id>
class IdRange {
public:
  class iterator {
  public:
    using value_type = Id;
    using difference_type = std::ptrdiff_t;

    constexpr iterator() noexcept = default;
    constexpr iterator(std::int32_t index, std::int32_t step) noexcept : index_(index), step_(step) {}

    [[nodiscard]] constexpr Id operator*() const noexcept { return static_cast<Id>(index_); }
    constexpr iterator& operator++() noexcept {
      index_ += step_;
      return *this;
    }
    constexpr iterator operator++(int) noexcept {
      iterator const before = *this;
      index_ += step_;
      return before;
    }
    friend constexpr bool operator==(iterator, iterator) noexcept = default;

  private:
    std::int32_t index_ = 0;
    std::int32_t step_ = 1;
  };

  constexpr IdRange() noexcept = default;
  constexpr explicit IdRange(std::int32_t count) noexcept : count_(count) {}

  [[nodiscard]] constexpr iterator begin() const noexcept { return {first(), step()}; }
  [[nodiscard]] constexpr iterator end() const noexcept { return {first() + count_ * step(), step()}; }
  [[nodiscard]] constexpr std::int32_t size() const noexcept { return count_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return count_ == 0; }

  /// The id at a position of this range, unchecked.
  [[nodiscard]] constexpr Id operator[](std::int32_t position) const noexcept { return static_cast<Id>(first() + position * step()); }

  /// Whether an id is one of this range.
  [[nodiscard]] constexpr bool contains(Id id) const noexcept { return to_index(id) >= 0 && to_index(id) < count_; }

  /// The same ids in the opposite order.
  [[nodiscard]] constexpr IdRange reversed() const noexcept {
    IdRange result = *this;
    result.backwards_ = !backwards_;
    return result;
  }

private:
  [[nodiscard]] constexpr std::int32_t first() const noexcept { return backwards_ ? count_ - 1 : 0; }
  [[nodiscard]] constexpr std::int32_t step() const noexcept { return backwards_ ? -1 : 1; }

  std::int32_t count_ = 0;
  bool backwards_ = false;
};

}  // namespace zero
