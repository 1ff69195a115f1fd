// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a rank holds of a segment, without gaps and padding.

#include <cstdint>
#include <vector>

#include <zero/layout/partition.hpp>
#include <zero/train/detail/value_writers.hpp>

namespace zero::test {

/// Appends the values of one tensor of the segment: `parameters.stored(segment)`, its masters, a state.
template <class Tensor>
void append_held(Partition const& partition, SegmentId segment, Tensor tensor, std::vector<double>& to) {
  zero::detail::for_each_run(partition, segment, tensor, [&](ParameterId, auto const* from, std::int64_t, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to.push_back(element_cast<double>(from[i]));
  });
}

}  // namespace zero::test
