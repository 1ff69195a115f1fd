// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a model's functions get: the full-size parameters or gradients of one unit, by order, by enum, by name or by id.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <zero/core/error.hpp>
#include <zero/layout/ids.hpp>
#include <zero/layout/parameter_layout.hpp>

namespace zero {

namespace detail {

/// A position between the brackets of a view, with the file and line where they stand: in C++20 an operator has no defaulted parameters.
struct PositionAt {
  template <class Index>
    requires(std::is_integral_v<Index> || (std::is_enum_v<Index> && !LayoutId<Index>))
  constexpr PositionAt(Index index, SourceLocation location = SourceLocation::current()) noexcept
      : position(static_cast<std::int64_t>(index)), where(location) {}

  std::int64_t position;
  SourceLocation where;
};

/// The same of a name.
struct NameAt {
  template <class Text>
    requires std::is_convertible_v<Text const&, std::string_view>
  constexpr NameAt(Text const& text, SourceLocation location = SourceLocation::current()) : name(text), where(location) {}

  std::string_view name;
  SourceLocation where;
};

}  // namespace detail

/// View of the parameters of one unit (weights or gradients), each whole and contiguous, in the order of `ParameterLayout::parameters(unit)`:
/// the unit's own in declaration order, then the tied ones. Trivially copyable; the same type at every stage, so that a model's functions are
/// no templates over the stage.
///
/// The gradient of a frozen parameter is a null pointer.
///
/// A view is for the thread that runs the loop, as long as the scope it came from is open. Work that is enqueued on a stream and runs later takes
/// the pointers, not the view: the view looks them up in a table that the next gather changes.
/// @tparam T  Element type; `T const` for weights.
template <class T>
class UnitView {
public:
  using element_type = T;

  UnitView() = default;
  constexpr UnitView(ParameterLayout const& layout, Unit unit, T* const* pointers) noexcept
      : layout_(&layout),
        pointers_(pointers),
        unit_(unit),
        size_(layout.units().contains(unit) ? static_cast<std::int32_t>(layout.parameters(unit).size()) : 0) {}

  /// A read-only view of a writable one.
  template <class U>
    requires(std::is_same_v<U const, T> && !std::is_same_v<U, T>)
  constexpr UnitView(UnitView<U> other) noexcept
      : layout_(other.layout_), pointers_(other.pointers_), unit_(other.unit_), size_(other.size_) {}

  [[nodiscard]] constexpr Unit unit() const noexcept { return unit_; }
  /// The number of parameters.
  [[nodiscard]] constexpr std::int32_t size() const noexcept { return size_; }
  /// Their ids, in the order of this view.
  [[nodiscard]] constexpr IdList<ParameterId> ids() const { return size_ == 0 ? IdList<ParameterId>{} : layout_->parameters(unit_); }

  /// The i-th parameter of the unit; also by an `enum class` whose values follow the order of declaration.
  /// @throws LayoutError naming the unit if it has no such parameter; UsageError if the view is empty.
  [[nodiscard]] constexpr T* operator[](detail::PositionAt at) const {
    check(at);
    return pointers_[at.position];
  }

  /// By name: the parameter's whole name, or what is left of it without the unit's name and a dot.
  /// @throws LayoutError naming the unit and what was asked for; UsageError if the view is empty.
  [[nodiscard]] constexpr T* operator[](detail::NameAt at) const { return data(layout(at.where).find(unit_, at.name, at.where), at.where); }

  /// By id.
  /// @throws LayoutError if this unit does not use the parameter; UsageError if the view is empty.
  [[nodiscard]] constexpr T* data(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    std::int32_t const position = layout(where).position(unit_, id, where);
    if (position < 0) {
      throw LayoutError(
          "unit '" + std::string(layout_->name(unit_)) + "' does not use parameter '" + std::string(layout_->name(id, where)) + "'", where);
    }
    return pointers_[position];
  }

  /// Elements of the i-th parameter.
  /// @throws LayoutError naming the unit if it has no such parameter; UsageError if the view is empty.
  [[nodiscard]] constexpr std::int64_t elements(detail::PositionAt at) const {
    check(at);
    return layout_->elements(ids()[static_cast<std::size_t>(at.position)]);
  }

private:
  template <class>
  friend class UnitView;

  [[nodiscard]] constexpr ParameterLayout const& layout(SourceLocation where) const {
    if (layout_ == nullptr) throw UsageError("an empty or released view has no parameters", where);
    return *layout_;
  }
  constexpr void check(detail::PositionAt at) const {
    if (at.position >= 0 && at.position < size_) return;
    throw LayoutError("unit '" + std::string(layout(at.where).name(unit_, at.where)) + "' has " + std::to_string(size_) +
                          " parameters, none with the number " + std::to_string(at.position),
                      at.where);
  }

  ParameterLayout const* layout_ = nullptr;
  T* const* pointers_ = nullptr;
  Unit unit_{};
  std::int32_t size_ = 0;
};

/// All parameters of a unit as named pointers: `auto [weight, bias] = zero::pointers<2>(view);`
/// @tparam N  How many the caller expects.
/// @throws UsageError if the unit has another number of parameters.
template <int N, class T>
[[nodiscard]] constexpr std::array<T*, static_cast<std::size_t>(N)> pointers(UnitView<T> view,
                                                                             SourceLocation where = SourceLocation::current()) {
  if (view.size() != N) {
    throw UsageError("pointers<" + std::to_string(N) + ">: the unit has " + std::to_string(view.size()) + " parameters", where);
  }
  std::array<T*, static_cast<std::size_t>(N)> result{};
  for (int i = 0; i < N; ++i) result[static_cast<std::size_t>(i)] = view[i];
  return result;
}

}  // namespace zero
