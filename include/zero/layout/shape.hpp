// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The shape of a parameter: up to eight dimensions, counted without overflow.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <zero/core/config.hpp>
#include <zero/core/error.hpp>

namespace zero {

/// The most elements a parameter, a layout or a padded partition may have: 2^56. It is far more than any machine holds, and it leaves room
/// to multiply by the bytes of an element without another overflow check.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 56;

/// Extents of a tensor in row-major order, `Shape{50257, 768}`. `Shape{}` is a scalar: no axis, one element.
class Shape {
public:
  /// The most axes a shape can have.
  static constexpr int max_axes = 8;

  constexpr Shape() noexcept = default;

  /// @throws LayoutError for more than `max_axes` extents. What the extents are is checked by `elements()` and by `ParameterLayout::add`.
  constexpr Shape(std::initializer_list<std::int64_t> extents, SourceLocation where = SourceLocation::current())
      : Shape(extents.begin(), extents.size(), where) {}

  /// The same from extents known at run time. @throws LayoutError for more than `max_axes` extents.
  constexpr explicit Shape(std::span<std::int64_t const> extents, SourceLocation where = SourceLocation::current())
      : Shape(extents.data(), extents.size(), where) {}

  /// The number of axes; 0 for a scalar.
  [[nodiscard]] constexpr int axes() const noexcept { return axes_; }

  /// The extent along an axis, 0 <= axis < axes(), unchecked [elements].
  [[nodiscard]] constexpr std::int64_t operator[](int axis) const noexcept { return extents_[axis]; }

  [[nodiscard]] constexpr std::int64_t const* begin() const noexcept { return extents_; }
  [[nodiscard]] constexpr std::int64_t const* end() const noexcept { return extents_ + axes_; }

  /// The product of the extents. @throws LayoutError if an extent is negative or the product is above `max_elements`.
  [[nodiscard]] constexpr std::int64_t elements(SourceLocation where = SourceLocation::current()) const {
    if (negative_axis() >= 0) {
      throw_negative_extent(where);
    }
    std::int64_t const result = elements_or_negative();
    if (result < 0) {
      throw_too_many_elements(where);
    }
    return result;
  }

  /// The first axis with a negative extent, -1 if there is none.
  [[nodiscard]] constexpr int negative_axis() const noexcept {
    for (int axis = 0; axis < axes_; ++axis) {
      if (extents_[axis] < 0) {
        return axis;
      }
    }
    return -1;
  }

  /// The product of extents that are not negative, -1 if it is above `max_elements`.
  [[nodiscard]] constexpr std::int64_t elements_or_negative() const noexcept {
    std::int64_t product = 1;
    bool too_many = false;
    for (std::int64_t const extent : *this) {
      if (extent == 0) {
        return 0;  // also where the other extents alone would be too many
      }
      too_many = too_many || product > max_elements / extent;
      product = too_many ? 1 : product * extent;
    }
    return too_many ? -1 : product;
  }

  friend constexpr bool operator==(Shape const& a, Shape const& b) noexcept {
    if (a.axes_ != b.axes_) {
      return false;
    }
    for (int axis = 0; axis < a.axes_; ++axis) {
      if (a.extents_[axis] != b.extents_[axis]) {
        return false;
      }
    }
    return true;
  }

  /// The shape as `[50257, 768]`, for messages.
  [[nodiscard]] std::string text() const {
    std::string result = "[";
    for (int axis = 0; axis < axes_; ++axis) {
      result += (axis == 0 ? "" : ", ") + std::to_string(extents_[axis]);
    }
    return result + "]";
  }

private:
  constexpr Shape(std::int64_t const* extents, std::size_t axes, SourceLocation where) {
    if (axes > static_cast<std::size_t>(max_axes)) {
      throw_too_many_axes(axes, where);
    }
    axes_ = static_cast<int>(axes);
    for (int axis = 0; axis < axes_; ++axis) {
      extents_[axis] = extents[axis];
    }
  }

  [[noreturn]] static void throw_too_many_axes(std::size_t axes, SourceLocation where) {
    throw LayoutError(std::string("a shape of ") + std::to_string(axes) + " axes: at most " + std::to_string(max_axes) + " are supported",
                      where);
  }
  [[noreturn]] void throw_negative_extent(SourceLocation where) const {
    throw LayoutError(std::string("shape ") + text() + ": the extent of axis " + std::to_string(negative_axis()) + " is negative", where);
  }
  [[noreturn]] void throw_too_many_elements(SourceLocation where) const {
    throw LayoutError(std::string("shape ") + text() + ": more than 2^56 elements", where);
  }

  std::int64_t extents_[max_axes] = {};
  int axes_ = 0;
};

}  // namespace zero
