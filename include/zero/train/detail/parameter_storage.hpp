// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Where the model states lie: one flat buffer each for parameters, masters and accumulated gradients, and the place of each segment in them.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <zero/core/plain_array.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/stage.hpp>

namespace zero::detail {

/// Elements that a rank stores of a segment in that placement.
template <Placement P>
[[nodiscard]] constexpr std::int64_t stored_elements(Segment const& segment) noexcept {
  return std::is_same_v<P, Sharded> ? segment.shard_elements : segment.padded_elements;
}

/// Elements that a rank stores of all segments, or of the trainable ones.
template <Placement P>
[[nodiscard]] constexpr std::int64_t stored_elements(Partition const& partition, bool trainable_only) noexcept {
  if constexpr (std::is_same_v<P, Sharded>) return trainable_only ? partition.trainable_shard_elements() : partition.shard_elements();
  else return trainable_only ? partition.trainable_padded_elements() : partition.padded_elements();
}

/// Whether masters are a copy of their own. Where the optimizer computes in the parameters' type, and a rank holds as much of the parameters
/// as of the states, a parameter's own slice is its master.
template <Stage S, PrecisionPolicy P>
inline constexpr bool separate_masters =
    !std::is_same_v<typename P::parameter, typename P::master> ||
    (std::is_same_v<typename S::parameters, Sharded> && std::is_same_v<typename S::optimizer_states, Replicated>);

/// Offsets of the segments in a flat buffer.
template <Placement P>
class SegmentOffsets {
public:
  constexpr SegmentOffsets(Partition const& partition, bool trainable_only) {
    std::int64_t offset = 0;
    for (SegmentId id : partition.segments()) {
      Segment const& segment = partition.segment(id);
      offsets_.push_back(offset);
      if (segment.trainable || !trainable_only) offset += stored_elements<P>(segment);
    }
  }
  [[nodiscard]] constexpr std::int64_t operator[](SegmentId id) const noexcept { return offsets_[at(id)]; }

private:
  PlainArray<std::int64_t> offsets_;
};

/// The states of a model at stage S, without the optimizer's own.
template <Stage S, PrecisionPolicy P>
class ParameterStorage {
public:
  using parameter = typename P::parameter;
  using master = typename P::master;
  using accumulator = typename P::accumulator;

  ParameterStorage(Partition const& partition, int rank, MemoryResource& memory)
      : partition_(&partition),
        rank_(rank),
        parameter_offsets_(partition, false),
        master_offsets_(partition, true),
        gradient_offsets_(partition, true),
        parameters_(memory, stored_elements<typename S::parameters>(partition, false), Purpose::parameters),
        masters_(memory, separate_masters<S, P> ? stored_elements<typename S::optimizer_states>(partition, true) : 0,
                 Purpose::optimizer_states),
        gradients_(memory, stored_elements<typename S::gradients>(partition, true), Purpose::gradients) {}

  [[nodiscard]] Geometry geometry(SegmentId id) const {
    Segment const& segment = partition_->segment(id);
    return {segment.span_elements, segment.shard_elements, partition_->ranks(), rank_};
  }
  [[nodiscard]] TensorRef<parameter, typename S::parameters> parameters(SegmentId id) {
    return {parameters_.data() + parameter_offsets_[id], geometry(id)};
  }
  /// What the optimizer updates; only of trainable segments.
  [[nodiscard]] TensorRef<master, typename S::optimizer_states> masters(SegmentId id) {
    if constexpr (separate_masters<S, P>) return {masters_.data() + master_offsets_[id], geometry(id)};
    else return in_place<typename S::optimizer_states>(parameters(id));
  }
  /// Where gradients add up; only of trainable segments.
  [[nodiscard]] TensorRef<accumulator, typename S::gradients> gradients(SegmentId id) {
    return {gradients_.data() + gradient_offsets_[id], geometry(id)};
  }
  /// Offset of a trainable segment in a flat buffer of optimizer states.
  [[nodiscard]] std::int64_t state_offset(SegmentId id) const noexcept { return master_offsets_[id]; }

private:
  Partition const* partition_;
  int rank_;
  SegmentOffsets<typename S::parameters> parameter_offsets_;
  SegmentOffsets<typename S::optimizer_states> master_offsets_;
  SegmentOffsets<typename S::gradients> gradient_offsets_;
  Buffer<parameter> parameters_;
  Buffer<master> masters_;
  Buffer<accumulator> gradients_;
};

}  // namespace zero::detail
