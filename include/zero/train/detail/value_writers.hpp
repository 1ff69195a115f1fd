// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Writes values into the parts of a parameter that a rank holds: from a generator, or from the caller's memory.

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

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

/// to[i] = from[i], rounded to T on the host, from where a device can only copy. `from` may go when the stream is synchronised.
template <class Device, Element T, Element Master>
void copy_rounded(typename Device::Stream stream, T* to, Master const* from, std::int64_t count) {
  if constexpr (std::is_same_v<T, Master>) {
    Device::copy(stream, to, from, count * static_cast<std::int64_t>(sizeof(T)));
  } else {
    constexpr std::int64_t most = 65536;
    std::vector<T> rounded(static_cast<std::size_t>(count < most ? count : most));
    for (std::int64_t begin = 0; begin < count; begin += most) {
      std::int64_t const n = count - begin < most ? count - begin : most;
      for (std::int64_t i = 0; i < n; ++i) rounded[static_cast<std::size_t>(i)] = element_cast<T>(from[begin + i]);
      Device::copy(stream, to + begin, rounded.data(), n * static_cast<std::int64_t>(sizeof(T)));
      Device::synchronize(stream);
    }
  }
}

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
