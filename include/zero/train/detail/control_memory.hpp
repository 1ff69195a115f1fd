// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The memory for control at the start, and what the ranks compare with it.

#include <cstddef>
#include <cstdint>

#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/partition.hpp>
#include <zero/train/detail/compare_ranks.hpp>
#include <zero/train/detail/control_layout.hpp>
#include <zero/train/detail/training_streams.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/stage.hpp>

namespace zero::detail {

template <Stage S, PrecisionPolicy P>
[[nodiscard]] constexpr std::uint64_t stage_hash() noexcept {
  return Hasher{}
      .add(S::parameters::name)
      .add(S::gradients::name)
      .add(S::optimizer_states::name)
      .add(element_traits<typename P::parameter>::name)
      .add(element_traits<typename P::gradient>::name)
      .add(element_traits<typename P::wire>::name)
      .add(element_traits<typename P::accumulator>::name)
      .add(element_traits<typename P::master>::name)
      .value();
}

/// The memory for control, before any other is taken and once it is known that the device can use such memory and that the ranks agree.
/// Collective: throws MismatchError on every rank where the ranks differ.
template <Stage S, PrecisionPolicy P, class Group>
[[nodiscard]] Buffer<std::byte> compared_control_memory(Partition const& partition, Group& group,
                                                        TrainingStreams<typename Group::Device> const& streams, MemoryResource& memory,
                                                        std::uint64_t options_hash, SourceLocation where) {
  using accumulator = typename P::accumulator;
  Buffer<std::byte> control(memory, control_bytes<accumulator>(group.size()), Purpose::control);
  Group::Device::check_memory(control.data(), where);
  compare_ranks(group, streams, control.data() + decision_bytes<accumulator>,
                {{static_cast<std::int64_t>(partition.hash()), static_cast<std::int64_t>(stage_hash<S, P>()),
                  static_cast<std::int64_t>(options_hash), 0},
                 {"layouts", "stages or element types", "options", ""}},
                where);
  return control;
}

}  // namespace zero::detail
