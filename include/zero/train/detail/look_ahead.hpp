// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Which segments are gathered before they are used: what a pass gathers next is what the last pass of its kind did, the first one: the canonical
/// loop. The rules alone, so that
/// the plan is made by the code that runs.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <zero/core/plain_array.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/train/detail/use_tracker.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/stage.hpp>

namespace zero::detail {

/// How many elements may be gathered ahead of their use: none where nothing is gathered, or it would not overlap with anything.
/// @param bytes  see `ParametersOptions::prefetch_bytes`.
template <Stage S, PrecisionPolicy P>
[[nodiscard]] constexpr std::int64_t prefetch_elements(std::int64_t bytes, bool overlaps) noexcept {
  if (!Conversion<typename S::parameters, Replicated>::communicates || !overlaps) return 0;
  return bytes < 0 ? -1 : bytes / static_cast<std::int64_t>(sizeof(typename P::parameter));
}

enum class PassKind : unsigned char { none, training, inference };

class LookAhead {
public:
  /// @param elements  how many may be gathered and not yet in use; negative: those of the largest unit.
  constexpr LookAhead(Partition const& partition, std::int64_t elements)
      : partition_(&partition), budget_(elements), ahead_(static_cast<std::size_t>(partition.segment_count()), 0) {
    if (elements < 0) budget_ = largest_unit(partition);
    if (budget_ == 0) return;
    // What the first passes are taken for: the canonical loop.
    auto const units = partition.layout().units();
    for (Unit unit : units) orders_[0].push_back(unit);
    for (Unit unit : units.reversed()) orders_[0].push_back(unit);
    for (Unit unit : units) orders_[1].push_back(unit);
  }

  constexpr void begin_pass(PassKind kind) noexcept {
    kind_ = kind;
    next_ = 0;
  }
  /// @param whole  it was not given up: what it has not gathered does not come in the next one either.
  constexpr void end_pass(bool whole) noexcept {
    if (whole && kind_ != PassKind::none && budget_ != 0) order().truncate(next_);
    kind_ = PassKind::none;
  }

  /// The pass has gathered a unit. Calls `start(unit)` for those that come next and fit, which marks what it gathers by `started`; returns early if
  /// that gives false.
  template <class Start>
  constexpr void go_on(Unit unit, ResidencyRule const& rule, Start&& start) {
    if (budget_ == 0 || kind_ == PassKind::none) return;
    PlainArray<Unit>& order = this->order();
    if (next_ == order.size() || order[next_] != unit) {  // Something new, and what follows is not known.
      order.truncate(next_);
      order.push_back(unit);
    }
    ++next_;
    for (std::size_t i = next_; i < order.size() && in_advance_ < budget_; ++i) {
      std::int64_t const missing = missing_elements(order[i], rule);
      if (missing == 0) continue;
      if (in_advance_ + missing > budget_ || !start(order[i])) return;
    }
  }

  constexpr void started(SegmentId segment) {
    ahead_[at(segment)] = partition_->segment(segment).padded_elements;
    in_advance_ += ahead_[at(segment)];
  }
  [[nodiscard]] constexpr bool is_ahead(SegmentId segment) const noexcept { return ahead_[at(segment)] != 0; }
  /// It is used, or was let go of.
  constexpr void arrived(SegmentId segment) noexcept { in_advance_ -= std::exchange(ahead_[at(segment)], 0); }

private:
  [[nodiscard]] static constexpr std::int64_t largest_unit(Partition const& partition) {
    std::int64_t largest = 0;
    for (Unit unit : partition.layout().units()) {
      std::int64_t size = 0;
      for (SegmentId segment : partition.segments(unit)) size += partition.segment(segment).padded_elements;
      if (size > largest) largest = size;
    }
    return largest;
  }

  [[nodiscard]] constexpr PlainArray<Unit>& order() noexcept { return orders_[kind_ == PassKind::inference ? 1 : 0]; }

  [[nodiscard]] constexpr std::int64_t missing_elements(Unit unit, ResidencyRule const& rule) const {
    std::int64_t missing = 0;
    for (SegmentId segment : partition_->segments(unit)) {
      if (!rule.resident(segment)) missing += partition_->segment(segment).padded_elements;
    }
    return missing;
  }

  Partition const* partition_;
  std::int64_t budget_;
  std::int64_t in_advance_ = 0;
  PlainArray<std::int64_t> ahead_;  // elements of each segment that is on its way, or there, and not in use yet
  PassKind kind_ = PassKind::none;
  PlainArray<Unit> orders_[2];  // of the last training pass and the last inference pass
  std::size_t next_ = 0;        // place in the order
};

}  // namespace zero::detail
