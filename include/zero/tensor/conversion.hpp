// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The conversion table, once, as code: for two placements the collective that converts, its name and its volume. What runs, what is planned
/// and what is counted all come from here.

#include <cstdint>
#include <string>
#include <type_traits>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/alone.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/tensor/tensor_ref.hpp>

namespace zero {

/// How a value in placement `From` becomes one in placement `To`, over N ranks, n the padded number of elements:
///
/// | from -> to | collective | received per rank |
/// |---|---|---|
/// | Partial -> Replicated | all-reduce | 2 n (N-1)/N |
/// | Partial -> Sharded | reduce-scatter | n (N-1)/N |
/// | Sharded -> Replicated | all-gather | n (N-1)/N |
/// | Replicated -> Sharded | none: the own part | 0 |
/// | X -> X | none | 0 |
///
/// The primary template is undefined: nothing converts to `Partial`. To add to a Replicated or Sharded value, convert the addend first.
template <Placement From, Placement To>
struct Conversion;

namespace detail {

/// A conversion without a collective.
struct LocalConversion {
  static constexpr bool communicates = false;
  static constexpr char const* name = "none";

  template <Element>
  static constexpr std::int64_t received_bytes(Geometry const&) noexcept {
    return 0;
  }
};

}  // namespace detail

template <Placement P>
struct Conversion<P, P> : detail::LocalConversion {};

template <>
struct Conversion<Replicated, Sharded> : detail::LocalConversion {};

template <>
struct Conversion<Partial, Replicated> {
  static constexpr bool communicates = true;
  static constexpr char const* name = "all-reduce";

  template <Element T>
  static constexpr AllReduce<T> operation(T const* from, T* to, Geometry const& g, Label label, float factor) noexcept {
    return AllReduce<T>{.send = from, .receive = to, .count = g.padded_elements(), .label = label, .factor = factor};
  }
  template <Element T>
  static constexpr std::int64_t received_bytes(Geometry const& g) noexcept {
    return operation<T>(nullptr, nullptr, g, {}, 1).received_bytes(g.ranks, g.rank);
  }
};

template <>
struct Conversion<Partial, Sharded> {
  static constexpr bool communicates = true;
  static constexpr char const* name = "reduce-scatter";

  template <Element T>
  static constexpr ReduceScatter<T> operation(T const* from, T* to, Geometry const& g, Label label, float factor) noexcept {
    return ReduceScatter<T>{.send = from, .receive = to, .count = g.shard_elements, .label = label, .factor = factor};
  }
  template <Element T>
  static constexpr std::int64_t received_bytes(Geometry const& g) noexcept {
    return operation<T>(nullptr, nullptr, g, {}, 1).received_bytes(g.ranks, g.rank);
  }
};

template <>
struct Conversion<Sharded, Replicated> {
  static constexpr bool communicates = true;
  static constexpr char const* name = "all-gather";

  template <Element T>
  static constexpr AllGather<T> operation(T const* from, T* to, Geometry const& g, Label label, float) noexcept {
    return AllGather<T>{.send = from, .receive = to, .count = g.shard_elements, .label = label};
  }
  template <Element T>
  static constexpr std::int64_t received_bytes(Geometry const& g) noexcept {
    return operation<T>(nullptr, nullptr, g, {}, 1).received_bytes(g.ranks, g.rank);
  }
};

/// There is a conversion from `From` to `To`.
template <class From, class To>
concept ConvertibleTo = Placement<From> && Placement<To> && requires { Conversion<From, To>::communicates; };

/// Explains in a sentence why a conversion does not exist.
template <class From, class To>
consteval bool check_conversion() {
  static_assert(Placement<From> && Placement<To>, "zero: a conversion is between two of zero::Replicated, zero::Sharded and zero::Partial");
  static_assert(!(std::is_same_v<To, Partial> && !std::is_same_v<From, Partial>),
                "zero: nothing converts to Partial: to add to a Replicated or Sharded value, convert the addend first");
  return ConvertibleTo<From, To>;
}

/// Converts `from` into `to`, which the caller owns; never allocates. In place where `to` is `in_place<To>(from)`.
///
/// @param group   The group that both tensors lie over. All ranks call this in the same order where the conversion communicates.
/// @param stream  The stream on which the conversion is enqueued.
/// @param label   Which model state this is, for counters, checks and messages.
/// @param factor  Multiplies a sum of real elements before it is rounded to T, also over one rank; below 1 it keeps sums of half finite.
/// @throws UsageError if the tensors differ in geometry or do not lie over `group`; nothing was enqueued.
/// @par Communication
/// Collective where the table says so: `Conversion<From, To>::received_bytes<T>(geometry)` bytes a rank. One rank: no call, no bytes.
/// @par Stream order
/// `from` must be ready in `stream`'s order; `to` is ready in it afterwards.
template <class Group, class T, class U, Placement From, Placement To>
void convert_into(Group& group, StreamOf<Group> stream, TensorRef<T, From> from, TensorRef<U, To> to, Label label = {}, float factor = 1.0f,
                  SourceLocation where = SourceLocation::current()) {
  static_assert(check_conversion<From, To>());
  static_assert(std::is_same_v<std::remove_const_t<T>, U>, "zero: a conversion keeps the element type, and its target is not const");
  if constexpr (ConvertibleTo<From, To>) {
    using Device = typename Group::Device;
    using Rule = Conversion<From, To>;
    Geometry const& g = from.geometry();
    if (!(g == to.geometry())) throw UsageError("convert_into: the two tensors are cut differently", where, group.rank());
    if (g.ranks != group.size() || g.rank != group.rank()) {
      throw UsageError(
          "convert_into: the tensors lie over " + std::to_string(g.ranks) + " ranks, the group has " + std::to_string(group.size()), where,
          group.rank());
    }
    if constexpr (Rule::communicates) {
      auto const operation = Rule::template operation<U>(from.data(), to.data(), g, label, factor);
      if (g.ranks == 1) detail::enqueue_alone<Device>(stream, operation);
      else if (g.shard_elements > 0) detail::enqueue_at(group, stream, operation, where);
    } else {
      T* const source = from.data() + (std::is_same_v<To, Sharded> && !std::is_same_v<From, Sharded> ? g.shard_begin() : 0);
      if (source != to.data()) Device::copy(stream, to.data(), source, static_cast<std::int64_t>(to.storage().size() * sizeof(U)));
    }
  }
}

}  // namespace zero
