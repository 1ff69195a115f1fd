// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Writes values into the parts of a parameter that a rank holds: from a generator, or from the caller's memory.

#include <cstdint>
#include <type_traits>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/initial_values.hpp>

namespace zero::detail {

/// to[i] = the initial value of element first + i, rounded to the masters' type and then to T, so that parameters are their masters rounded.
template <Element T, Element Master>
struct WriteInitial {
  T* to;
  InitialValue what;
  std::uint64_t key;
  std::int64_t first;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    to[i] = element_cast<T>(static_cast<Master>(initial_value(what, key, first + i)));
  }
};

/// to[i] = from[i], rounded to T.
template <Element T, Element Master>
struct WriteValues {
  T* to;
  Master const* from;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = element_cast<T>(from[i]); }
};

/// Calls `f(id, to, first, count)` for each run of one parameter's elements in a tensor of that segment: `count` elements at `to`, the first of
/// which is element `first` of the parameter.
template <class T, Placement Policy, class F>
void for_each_run(Partition const& partition, SegmentId segment, TensorRef<T, Policy> tensor, F&& f) {
  ElementRange range{0, partition.segment(segment).padded_elements};
  if constexpr (std::is_same_v<Policy, Sharded>) range = partition.shard_range(segment, tensor.geometry().rank);
  partition.pieces(segment, range, [&](ParameterId id, std::int64_t first, std::int64_t offset, std::int64_t count) {
    f(id, tensor.data() + (offset - range.begin), first, count);
  });
}

}  // namespace zero::detail
