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
      : layout_(&layout), pointers_(pointers), unit_(unit) {}

  /// A read-only view of a writable one.
  template <class U>
    requires(std::is_same_v<U const, T> && !std::is_same_v<U, T>)
  constexpr UnitView(UnitView<U> other) noexcept : layout_(other.layout_), pointers_(other.pointers_), unit_(other.unit_) {}

  [[nodiscard]] constexpr Unit unit() const noexcept { return unit_; }
  /// The number of parameters.
  [[nodiscard]] constexpr std::int32_t size() const { return static_cast<std::int32_t>(ids().size()); }
  /// Their ids, in the order of this view.
  [[nodiscard]] constexpr std::span<ParameterId const> ids() const {
    return layout_ == nullptr ? std::span<ParameterId const>{} : layout_->parameters(unit_);
  }

  /// The i-th parameter of the unit, unchecked; also by an `enum class` whose values follow the order of declaration.
  template <class Index>
    requires(std::is_integral_v<Index> || (std::is_enum_v<Index> && !LayoutId<Index>))
  [[nodiscard]] constexpr T* operator[](Index index) const noexcept {
    return pointers_[static_cast<std::int64_t>(index)];
  }

  /// By name: the parameter's whole name, or what is left of it without the unit's name and a dot.
  /// @throws LayoutError naming the unit and what was asked for.
  [[nodiscard]] constexpr T* operator[](std::string_view name) const { return data(layout().find(unit_, name)); }
  [[nodiscard]] constexpr T* operator[](char const* name) const { return (*this)[std::string_view{name}]; }

  /// By id.
  /// @throws LayoutError if this unit does not use the parameter.
  [[nodiscard]] constexpr T* data(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    std::int32_t const position = layout().position(unit_, id);
    if (position < 0) {
      throw LayoutError("unit '" + std::string(layout().name(unit_)) + "' does not use parameter '" + std::string(layout().name(id)) + "'",
                        where);
    }
    return pointers_[position];
  }

  /// Elements of the i-th parameter.
  [[nodiscard]] constexpr std::int64_t elements(std::int32_t index) const {
    return layout().elements(ids()[static_cast<std::size_t>(index)]);
  }

private:
  template <class>
  friend class UnitView;

  [[nodiscard]] constexpr ParameterLayout const& layout(SourceLocation where = SourceLocation::current()) const {
    if (layout_ == nullptr) throw UsageError("an empty or released view has no parameters", where);
    return *layout_;
  }

  ParameterLayout const* layout_ = nullptr;
  T* const* pointers_ = nullptr;
  Unit unit_{};
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
