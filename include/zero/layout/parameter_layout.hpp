// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What the user says about a model: its units, their parameters, what is tied and what is trained. Pure integers, no device.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <zero/core/config.hpp>
#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/layout/ids.hpp>
#include <zero/layout/name_table.hpp>
#include <zero/layout/shape.hpp>

namespace zero {

/// What a layout knows of one parameter; its name is `layout.name(id)`.
struct Parameter {
  Unit unit;              ///< the unit that owns it
  Shape shape;            ///< its whole shape, never that of a shard
  bool trainable;         ///< false: frozen, it has no gradient and no optimizer state
  std::int64_t elements;  ///< the product of its shape
};

/// Choices for one parameter.
struct ParameterOptions {
  bool trainable = true;  ///< false: frozen, it has no gradient and no optimizer state
};

/// The description of a model: parameters by global unique names, grouped in units. Works in constant expressions
/// (`static_assert(f(make_layout()))`); a mistake made there does not compile, and the compiler names the function `throw_...` it reached.
///
/// Every rank must describe the same layout; `hash()` is what they compare.
///
/// Parameters can be added to units in any order, and the members that return spans or names return views that are valid until the layout
/// is changed. All errors are thrown before anything is changed.
///
/// @par Memory
/// About 150 bytes and the name a parameter, on the host.
class ParameterLayout {
public:
  /// Adds a unit. @throws LayoutError if the name is empty or another unit has it.
  constexpr Unit add_unit(std::string_view name, SourceLocation where = SourceLocation::current()) {
    if (name.empty()) {
      throw_empty_unit_name(where);
    }
    if (unit_names_.find(name) != detail::NameTable::none) {
      throw_unit_name_taken(name, where);
    }
    units_.reserve_more(1);
    Unit const unit = static_cast<Unit>(unit_names_.add(name));
    units_.push_back({});
    return unit;
  }

  /// Adds a parameter to a unit.
  /// @param unit the unit that owns it
  /// @param name its name in checkpoints and messages, unique in the whole layout ("h.3.attn.c_attn.weight")
  /// @param shape its extents in row-major order; no extent at all is a scalar, an extent of 0 is legal
  /// @throws LayoutError if the unit is unknown, the name is empty or taken, an extent is negative, or the parameter or the layout would have
  ///         more than `max_elements` elements
  constexpr ParameterId add(Unit unit, std::string_view name, Shape shape, ParameterOptions options = {},
                            SourceLocation where = SourceLocation::current()) {
    check(unit, where);
    if (name.empty()) {
      throw_empty_parameter_name(unit, where);
    }
    if (names_.find(name) != detail::NameTable::none) {
      throw_parameter_name_taken(unit, name, where);
    }
    if (shape.negative_axis() >= 0) {
      throw_negative_extent(unit, name, shape, where);
    }
    std::int64_t const elements = shape.elements_or_negative();
    if (elements < 0 || elements > max_elements - elements_) {
      throw_too_many_elements(unit, name, shape, where);
    }
    UnitEntry& entry = units_[detail::at(unit)];
    parameters_.reserve_more(1);
    entry.used.reserve_more(1);
    ParameterId const id = static_cast<ParameterId>(names_.add(name));  // the last that can fail
    parameters_.push_back(ParameterEntry{Parameter{unit, shape, options.trainable, elements}, {}});
    entry.used.insert(entry.own, id);
    ++entry.own;
    elements_ += elements;
    trainable_elements_ += options.trainable ? elements : 0;
    return id;
  }

  /// Says that a further unit uses a parameter: one storage, one gradient. Tell the layout of every unit that does.
  /// @throws LayoutError if the parameter or the unit is unknown, or the unit owns the parameter or is already tied to it
  constexpr void tie(ParameterId parameter, Unit user, SourceLocation where = SourceLocation::current()) {
    check(parameter, where);
    check(user, where);
    if (uses(user, parameter)) {
      throw_tied_already(parameter, user, where);
    }
    ParameterEntry& entry = parameters_[detail::at(parameter)];
    UnitEntry& unit = units_[detail::at(user)];
    entry.users.reserve_more(2);
    unit.used.reserve_more(1);
    if (entry.users.empty()) {
      entry.users.push_back(entry.parameter.unit);
    }
    entry.users.push_back(user);
    unit.used.push_back(parameter);
  }

  /// All units in the order of their addition: the order of a forward pass, by convention. `.reversed()` for backward.
  [[nodiscard]] constexpr IdRange<Unit> units() const noexcept { return IdRange<Unit>{unit_count()}; }
  [[nodiscard]] constexpr std::int32_t unit_count() const noexcept { return unit_names_.size(); }

  /// All parameters in the order of their addition.
  [[nodiscard]] constexpr IdRange<ParameterId> parameters() const noexcept { return IdRange<ParameterId>{parameter_count()}; }
  [[nodiscard]] constexpr std::int32_t parameter_count() const noexcept { return names_.size(); }

  /// What a unit uses: its own parameters in the order of their addition, then the tied ones in the order of `tie`. The order in which a view of
  /// the unit is indexed. @throws LayoutError if the unit is unknown
  [[nodiscard]] constexpr IdList<ParameterId> parameters(Unit unit, SourceLocation where = SourceLocation::current()) const {
    check(unit, where);
    UnitEntry const& entry = units_[detail::at(unit)];
    return {entry.used.data(), entry.used.size()};
  }

  /// The parameters a unit owns, in the order of their addition. @throws LayoutError if the unit is unknown
  [[nodiscard]] constexpr IdList<ParameterId> own_parameters(Unit unit, SourceLocation where = SourceLocation::current()) const {
    return parameters(unit, where).first(units_[detail::at(unit)].own);
  }

  /// The units that use a parameter: the owner, then the tied ones in the order of `tie`. @throws LayoutError if the parameter is unknown
  [[nodiscard]] constexpr IdList<Unit> users(ParameterId parameter, SourceLocation where = SourceLocation::current()) const {
    check(parameter, where);
    ParameterEntry const& entry = parameters_[detail::at(parameter)];
    if (entry.users.empty()) {
      return {&entry.parameter.unit, 1};
    }
    return {entry.users.data(), entry.users.size()};
  }

  /// Whether more than one unit uses a parameter. @throws LayoutError if the parameter is unknown
  [[nodiscard]] constexpr bool tied(ParameterId parameter, SourceLocation where = SourceLocation::current()) const {
    return users(parameter, where).size() > 1;
  }

  /// Shape, owner and the rest of one parameter. @throws LayoutError if it is unknown
  [[nodiscard]] constexpr Parameter const& parameter(ParameterId parameter, SourceLocation where = SourceLocation::current()) const {
    check(parameter, where);
    return parameters_[detail::at(parameter)].parameter;
  }

  /// @name Shorthands; each throws LayoutError if the id is unknown
  /// @{
  [[nodiscard]] constexpr Unit unit(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    return parameter(id, where).unit;
  }
  [[nodiscard]] constexpr Shape const& shape(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    return parameter(id, where).shape;
  }
  [[nodiscard]] constexpr std::int64_t elements(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    return parameter(id, where).elements;
  }
  [[nodiscard]] constexpr bool trainable(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    return parameter(id, where).trainable;
  }
  [[nodiscard]] constexpr std::string_view name(ParameterId id, SourceLocation where = SourceLocation::current()) const {
    check(id, where);
    return names_[to_index(id)];
  }
  [[nodiscard]] constexpr std::string_view name(Unit unit, SourceLocation where = SourceLocation::current()) const {
    check(unit, where);
    return unit_names_[to_index(unit)];
  }
  /// @}

  /// Whether a parameter has this name.
  [[nodiscard]] constexpr bool contains(std::string_view name) const noexcept { return names_.find(name) != detail::NameTable::none; }

  /// The parameter of a name. @throws LayoutError naming it if there is none
  [[nodiscard]] constexpr ParameterId find(std::string_view name, SourceLocation where = SourceLocation::current()) const {
    std::int32_t const index = names_.find(name);
    if (index == detail::NameTable::none) {
      throw_unknown_name(name, where);
    }
    return static_cast<ParameterId>(index);
  }

  /// The parameter of a name among those a unit uses: the whole name, or what follows the unit's own name and a dot, so that one text serves every
  /// block: in unit "h.3", "attn.c_attn.weight" finds "h.3.attn.c_attn.weight". @throws LayoutError naming both if there is none
  [[nodiscard]] constexpr ParameterId find(Unit unit, std::string_view name, SourceLocation where = SourceLocation::current()) const {
    check(unit, where);
    for (std::int32_t const index : {names_.find(unit_names_[to_index(unit)], name), names_.find(name)}) {
      if (index != detail::NameTable::none && uses(unit, static_cast<ParameterId>(index))) {
        return static_cast<ParameterId>(index);
      }
    }
    throw_unknown_name_in(unit, name, where);
  }

  /// The unit of a name. @throws LayoutError naming it if there is none
  [[nodiscard]] constexpr Unit find_unit(std::string_view name, SourceLocation where = SourceLocation::current()) const {
    std::int32_t const index = unit_names_.find(name);
    if (index == detail::NameTable::none) {
      throw_unknown_unit_name(name, where);
    }
    return static_cast<Unit>(index);
  }

  /// The position of a parameter in `parameters(unit)`, -1 if the unit does not use it. Constant time where a unit's own parameters were added
  /// one after the other. @throws LayoutError if the unit is unknown
  [[nodiscard]] constexpr std::int32_t position(Unit unit, ParameterId parameter, SourceLocation where = SourceLocation::current()) const {
    IdList<ParameterId> const used = parameters(unit, where);
    if (used.empty()) {
      return -1;
    }
    std::int64_t const guess = std::int64_t{to_index(parameter)} - to_index(used.front());
    if (guess >= 0 && guess < static_cast<std::int64_t>(used.size()) && used[static_cast<std::size_t>(guess)] == parameter) {
      return static_cast<std::int32_t>(guess);
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i] == parameter) {
        return static_cast<std::int32_t>(i);
      }
    }
    return -1;
  }

  /// Elements of all parameters, tied ones once.
  [[nodiscard]] constexpr std::int64_t elements() const noexcept { return elements_; }

  /// Elements of all trainable parameters, tied ones once.
  [[nodiscard]] constexpr std::int64_t trainable_elements() const noexcept { return trainable_elements_; }

  /// Hash of everything the layout was told: names, order, shapes, units, ties, what is trainable. Equal on all ranks or they disagree.
  [[nodiscard]] constexpr std::uint64_t hash() const noexcept {
    Hasher hasher;
    hasher.add(static_cast<std::uint64_t>(unit_count())).add(static_cast<std::uint64_t>(parameter_count()));
    for (ParameterId const id : parameters()) {
      Parameter const& parameter = parameters_[detail::at(id)].parameter;
      hasher.add(names_.hash(to_index(id))).add(static_cast<std::uint64_t>(to_index(parameter.unit))).add(parameter.trainable ? 1u : 0u);
      hasher.add(static_cast<std::uint64_t>(parameter.shape.axes()));
      for (std::int64_t const extent : parameter.shape) {
        hasher.add(static_cast<std::uint64_t>(extent));
      }
      for (Unit const user : parameters_[detail::at(id)].users) {
        hasher.add(static_cast<std::uint64_t>(to_index(user)));
      }
      hasher.add(static_cast<std::uint64_t>(parameters_[detail::at(id)].users.size()));
    }
    for (Unit const unit : units()) {
      hasher.add(unit_names_.hash(to_index(unit))).add(static_cast<std::uint64_t>(units_[detail::at(unit)].used.size()));
      for (ParameterId const id : units_[detail::at(unit)].used) {
        hasher.add(static_cast<std::uint64_t>(to_index(id)));
      }
    }
    return hasher.value();
  }

private:
  struct UnitEntry {
    detail::PlainArray<ParameterId> used;  // own parameters, then tied ones
    std::size_t own = 0;
  };
  struct ParameterEntry {
    Parameter parameter;
    detail::PlainArray<Unit> users;  // owner first; empty where nothing is tied
  };

  [[nodiscard]] constexpr bool uses(Unit unit, ParameterId parameter) const { return position(unit, parameter) >= 0; }
  constexpr void check(Unit unit, SourceLocation where) const {
    if (!units().contains(unit)) {
      throw_unknown_unit(unit, where);
    }
  }
  constexpr void check(ParameterId parameter, SourceLocation where) const {
    if (!parameters().contains(parameter)) {
      throw_unknown_parameter(parameter, where);
    }
  }

  [[nodiscard]] std::string quoted(Unit unit) const { return std::string("unit '") + std::string(unit_names_[to_index(unit)]) + "'"; }
  [[nodiscard]] std::string quoted(Unit unit, std::string_view name) const {
    return std::string("parameter '") + std::string(name) + "' of " + quoted(unit);
  }

  [[noreturn]] static void throw_empty_unit_name(SourceLocation where) { throw LayoutError("a unit needs a name", where); }
  [[noreturn]] static void throw_unit_name_taken(std::string_view name, SourceLocation where) {
    throw LayoutError(std::string("unit '") + std::string(name) + "': there is a unit of this name already", where);
  }
  [[noreturn]] void throw_empty_parameter_name(Unit unit, SourceLocation where) const {
    throw LayoutError(std::string("a parameter of ") + quoted(unit) + " needs a name", where);
  }
  [[noreturn]] void throw_parameter_name_taken(Unit unit, std::string_view name, SourceLocation where) const {
    Unit const other = parameters_[static_cast<std::size_t>(names_.find(name))].parameter.unit;
    throw LayoutError(quoted(unit, name) + ": " + quoted(other) + " has a parameter of this name; names are unique in the whole layout",
                      where);
  }
  [[noreturn]] void throw_negative_extent(Unit unit, std::string_view name, Shape const& shape, SourceLocation where) const {
    throw LayoutError(quoted(unit, name) + ": axis " + std::to_string(shape.negative_axis()) + " of shape " + shape.text() + " is negative",
                      where);
  }
  [[noreturn]] void throw_too_many_elements(Unit unit, std::string_view name, Shape const& shape, SourceLocation where) const {
    throw LayoutError(quoted(unit, name) + ": with shape " + shape.text() + " the layout has more than 2^56 elements", where);
  }
  [[noreturn]] void throw_tied_already(ParameterId parameter, Unit user, SourceLocation where) const {
    Unit const owner = parameters_[detail::at(parameter)].parameter.unit;
    throw LayoutError(quoted(owner, names_[to_index(parameter)]) + " cannot be tied to " + quoted(user) +
                          (owner == user ? ", which owns it" : ", which uses it already"),
                      where);
  }
  [[noreturn]] void throw_unknown_unit(Unit unit, SourceLocation where) const {
    throw LayoutError(
        std::string("no unit has the id ") + std::to_string(to_index(unit)) + ": the layout has " + std::to_string(unit_count()), where);
  }
  [[noreturn]] void throw_unknown_parameter(ParameterId parameter, SourceLocation where) const {
    throw LayoutError(std::string("no parameter has the id ") + std::to_string(to_index(parameter)) + ": the layout has " +
                          std::to_string(parameter_count()),
                      where);
  }
  [[noreturn]] static void throw_unknown_name(std::string_view name, SourceLocation where) {
    throw LayoutError(std::string("no parameter is named '") + std::string(name) + "'", where);
  }
  [[noreturn]] void throw_unknown_name_in(Unit unit, std::string_view name, SourceLocation where) const {
    throw LayoutError(quoted(unit) + " uses no parameter named '" + std::string(name) + "'", where);
  }
  [[noreturn]] static void throw_unknown_unit_name(std::string_view name, SourceLocation where) {
    throw LayoutError(std::string("no unit is named '") + std::string(name) + "'", where);
  }

  detail::NameTable unit_names_;
  detail::NameTable names_;
  detail::PlainArray<UnitEntry> units_;
  detail::PlainArray<ParameterEntry> parameters_;
  std::int64_t elements_ = 0;
  std::int64_t trainable_elements_ = 0;
};

}  // namespace zero
