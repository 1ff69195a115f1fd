// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The owner: one tensor over a group in one placement, and conversion between owners.

#include <cstdint>
#include <span>
#include <type_traits>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/device/device.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/memory.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/tensor/tensor_ref.hpp>

namespace zero {

/// A tensor of `elements` elements of type T over a group of ranks, in placement `Policy`. Move-only owner of this rank's storage.
///
/// @code
/// zero::ShardedTensor<float, zero::Sharded> x{comm, 1'000'003, memory};
/// std::span<float> mine = x.local();                                    // without padding; x.first() is the global index of mine[0]
/// auto whole = zero::convert<zero::Replicated>(comm, stream, x);        // owner: bytes moved
/// @endcode
/// @tparam Policy  The placement, nothing else.
/// @tparam Dev     The device whose memory holds it; a communicator of that device converts it.
/// @par Memory
/// `ceil(n / (N A)) A` elements where Sharded, N times as many otherwise; A is the alignment [elements]. As with a `Buffer`, work on streams that
/// uses it must have been waited for when it is destroyed.
template <Element T, Placement Policy, Device Dev = HostDevice>
class ShardedTensor {
public:
  using element_type = T;
  using placement = Policy;
  using Device = Dev;

  /// @param group     Gives rank and size; not kept.
  /// @param elements  n, the size of the whole value [elements].
  /// @param memory    Where the storage comes from and goes back to.
  /// @param purpose   Under which purpose the memory is counted.
  /// @throws UsageError for a negative size, MemoryError where the memory resource has none.
  /// The storage is not initialised.
  template <RankGroup Group>
  ShardedTensor(Group const& group, std::int64_t elements, MemoryResource& memory, Purpose purpose = Purpose::parameters,
                SourceLocation where = SourceLocation::current())
      : ShardedTensor(zero::geometry(group, elements, 128, where), memory, purpose) {
    static_assert(std::is_same_v<typename Group::Device, Dev>,
                  "zero: this communicator works on another device's memory than the tensor's");
  }

  /// A tensor with a given geometry, for instance that of another tensor.
  ShardedTensor(Geometry const& geometry, MemoryResource& memory, Purpose purpose = Purpose::parameters)
      : geometry_(geometry),
        memory_(&memory),
        purpose_(purpose),
        buffer_(memory, std::is_same_v<Policy, Sharded> ? geometry.shard_elements : geometry.padded_elements(), purpose) {}

  [[nodiscard]] TensorRef<T, Policy> ref() noexcept { return {buffer_.data(), geometry_}; }
  [[nodiscard]] TensorRef<T const, Policy> ref() const noexcept { return {buffer_.data(), geometry_}; }

  /// What this rank holds of the value, without padding.
  [[nodiscard]] std::span<T> local() noexcept { return ref().local(); }
  [[nodiscard]] std::span<T const> local() const noexcept { return ref().local(); }
  /// What collectives move, padding included.
  [[nodiscard]] std::span<T> storage() noexcept { return ref().storage(); }
  [[nodiscard]] std::span<T const> storage() const noexcept { return ref().storage(); }
  /// Global index of `local()[0]`.
  [[nodiscard]] std::int64_t first() const noexcept { return ref().first(); }
  /// Elements of the whole value.
  [[nodiscard]] std::int64_t size() const noexcept { return geometry_.elements; }
  [[nodiscard]] Geometry const& geometry() const noexcept { return geometry_; }
  [[nodiscard]] MemoryResource& memory() const noexcept { return *memory_; }
  [[nodiscard]] Purpose purpose() const noexcept { return purpose_; }

private:
  Geometry geometry_;
  MemoryResource* memory_;
  Purpose purpose_;
  Buffer<T> buffer_;
};

/// Converts a tensor to another placement.
/// @returns an owner (with memory from the tensor's resource) where bytes move between ranks; a view of `tensor`'s own memory where none do.
/// @par Communication
/// Collective where `Conversion<From, To>` communicates; see there for the bytes.
/// @par Stream order
/// The result is ready in `stream`'s order; neither it nor `tensor` may be destroyed before the stream has passed the conversion.
template <Placement To, class Group, Element T, Placement From, class Dev>
[[nodiscard]] auto convert(Group& group, StreamOf<Group> stream, ShardedTensor<T, From, Dev>& tensor, Label label = {},
                           SourceLocation where = SourceLocation::current()) {
  static_assert(check_conversion<From, To>());
  static_assert(std::is_same_v<typename Group::Device, Dev>, "zero: this communicator works on another device's memory than the tensor's");
  if constexpr (ConvertibleTo<From, To>) {
    if constexpr (Conversion<From, To>::communicates) {
      ShardedTensor<T, To, Dev> result(tensor.geometry(), tensor.memory(), tensor.purpose());
      convert_into(group, stream, tensor.ref(), result.ref(), label, 1.0f, where);
      return result;
    } else {
      return in_place<To>(tensor.ref());
    }
  }
}

/// Converts a temporary where bytes move: the result owns its memory. Where none do the result would be a view of the temporary: an error.
template <Placement To, class Group, Element T, Placement From, class Dev>
[[nodiscard]] auto convert(Group& group, StreamOf<Group> stream, ShardedTensor<T, From, Dev>&& tensor, Label label = {},
                           SourceLocation where = SourceLocation::current()) {
  static_assert(check_conversion<From, To>());
  if constexpr (ConvertibleTo<From, To>) {
    static_assert(
        Conversion<From, To>::communicates,
        "zero: this conversion moves no bytes, so its result would be a view of a temporary tensor: keep the tensor in a variable");
    ShardedTensor<T, To, Dev> result(tensor.geometry(), tensor.memory(), tensor.purpose());
    convert_into(group, stream, tensor.ref(), result.ref(), label, 1.0f, where);
    Dev::synchronize(stream);  // the source dies with this statement
    return result;
  }
}

}  // namespace zero
