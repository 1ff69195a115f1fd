// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Views of tensors that lie over the ranks of a group: a pointer, a placement, and the geometry of the cut.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/layout/shape.hpp>
#include <zero/tensor/placement.hpp>

namespace zero {

/// How n elements are cut over the ranks. The global number of elements is always stored, never inferred from a shard.
struct Geometry {
  std::int64_t elements = 0;        ///< n, the elements of the value, without padding.
  std::int64_t shard_elements = 0;  ///< Elements of one rank's part, padding included; equal on every rank.
  int ranks = 1;
  int rank = 0;

  /// Elements of the padded value: what collectives move.
  [[nodiscard]] constexpr std::int64_t padded_elements() const noexcept { return shard_elements * ranks; }
  /// Global index at which this rank's part begins (it may lie in the padding).
  [[nodiscard]] constexpr std::int64_t shard_begin() const noexcept { return shard_elements * rank; }
  /// Global index of the first real element of this rank's part: n where the part is only padding.
  [[nodiscard]] constexpr std::int64_t first() const noexcept { return shard_begin() < elements ? shard_begin() : elements; }
  /// Real elements in this rank's part; 0 where it is only padding.
  [[nodiscard]] constexpr std::int64_t local_elements() const noexcept {
    std::int64_t const end = shard_begin() + shard_elements;
    return (end < elements ? end : elements) - first();
  }

  friend constexpr bool operator==(Geometry const&, Geometry const&) = default;
};

/// The cut of `elements` over the ranks of `group`: equal parts, each a multiple of `alignment` elements.
/// @param elements   n [elements], from 0 to `max_elements`.
/// @param alignment  [elements] from 1 to 2^31 - 1. 128 keeps every part a multiple of 16 bytes for any element type and vector loops without tails.
/// @throws UsageError for other numbers.
template <class Group>
[[nodiscard]] constexpr Geometry geometry(Group const& group, std::int64_t elements, std::int64_t alignment = 128,
                                          SourceLocation where = SourceLocation::current()) {
  if (group.size() < 1) throw UsageError("geometry: the communicator is in no group: it was moved from", where);
  if (elements < 0) throw UsageError("geometry: a tensor cannot have " + std::to_string(elements) + " elements", where, group.rank());
  if (alignment < 1)
    throw UsageError("geometry: the alignment is " + std::to_string(alignment) + ", it must be at least 1", where, group.rank());
  if (elements > max_elements || alignment > 0x7fffffff) {
    throw UsageError(
        "geometry: " + std::to_string(elements) + " elements at an alignment of " + std::to_string(alignment) + " are too many", where,
        group.rank());
  }
  std::int64_t const unit = alignment * group.size();
  std::int64_t const units = elements / unit + (elements % unit != 0 ? 1 : 0);
  return Geometry{elements, units * alignment, group.size(), group.rank()};
}

/// View of a tensor over a group. Trivially copyable; it owns nothing.
///
/// `local()` is what this rank holds of the value, without padding; `storage()` is what collectives move, padding included.
/// @tparam T       Element type, `T const` for a read-only view.
/// @tparam Policy  The placement, nothing else.
template <class T, Placement Policy>
  requires Element<std::remove_const_t<T>>
class TensorRef {
public:
  using element_type = T;
  using placement = Policy;

  /// @param data      The storage: `shard_elements` elements where Sharded, `padded_elements()` otherwise.
  constexpr TensorRef(T* data, Geometry const& geometry) noexcept : data_(data), geometry_(geometry) {}

  /// A read-only view of a writable one.
  template <class U>
    requires(std::is_same_v<U const, T> && !std::is_same_v<U, T>)
  constexpr TensorRef(TensorRef<U, Policy> other) noexcept : data_(other.data()), geometry_(other.geometry()) {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr Geometry const& geometry() const noexcept { return geometry_; }
  /// Elements of the whole value [elements], the same on every rank and for every placement.
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return geometry_.elements; }

  /// Global index of `local()[0]`.
  [[nodiscard]] constexpr std::int64_t first() const noexcept {
    if constexpr (std::is_same_v<Policy, Sharded>) return geometry_.first();
    else return 0;
  }
  /// What this rank holds of the value, without padding.
  [[nodiscard]] constexpr std::span<T> local() const noexcept {
    if constexpr (std::is_same_v<Policy, Sharded>) return {data_, static_cast<std::size_t>(geometry_.local_elements())};
    else return {data_, static_cast<std::size_t>(geometry_.elements)};
  }
  /// What collectives move: `local()` and the padding behind it.
  [[nodiscard]] constexpr std::span<T> storage() const noexcept {
    if constexpr (std::is_same_v<Policy, Sharded>) return {data_, static_cast<std::size_t>(geometry_.shard_elements)};
    else return {data_, static_cast<std::size_t>(geometry_.padded_elements())};
  }

private:
  T* data_;
  Geometry geometry_;
};

/// The place inside a tensor's own memory where a conversion in place leaves its result: for `Sharded` this rank's part, else the whole.
/// It converts nothing: a Partial value seen in place as Sharded is one only after `convert_into`.
template <Placement To, class T, Placement From>
  requires(!std::is_same_v<From, Sharded> || std::is_same_v<To, Sharded>)
[[nodiscard]] constexpr TensorRef<T, To> in_place(TensorRef<T, From> tensor) noexcept {
  if constexpr (std::is_same_v<To, Sharded> && !std::is_same_v<From, Sharded>) {
    return {tensor.data() + tensor.geometry().shard_begin(), tensor.geometry()};
  } else {
    return {tensor.data(), tensor.geometry()};
  }
}

}  // namespace zero
