// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Which segments are gathered before they are used: what a pass gathers next is what the last pass of its kind did, the first one: the canonical
/// loop. The rules alone, so that
/// the plan is made by the code that runs.

#include <cstddef>
#include <cstdint>

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

/// Decides by the calls of `gather` alone, of which all ranks make the same: not by what a rank holds at the moment, because scopes end when they
/// please. A place in the order is a call: its unit, and which of the unit's segments were gathered for it the last time.
class LookAhead {
public:
  /// The places whose gathers are to start at a call.
  struct Step {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  /// @param elements  how many may be gathered and not yet in use; negative: those of the largest unit.
  constexpr LookAhead(Partition const& partition, std::int64_t elements)
      : partition_(&partition), budget_(elements), ahead_(static_cast<std::size_t>(partition.segment_count()), 0) {
    for (SegmentId segment : partition.segments()) sizes_.push_back(partition.segment(segment).padded_elements);
    if (elements < 0) budget_ = largest_unit();
    if (budget_ == 0) return;
    // What the first passes are taken for: the canonical loop.
    auto const units = partition.layout().units();
    ResidencyRule training(partition);
    for (Unit unit : units) expect(orders_[0], training, unit);
    for (Unit unit : units.reversed()) expect(orders_[0], training, unit);
    ResidencyRule inference(partition);
    for (Unit unit : units) expect(orders_[1], inference, unit);
  }

  constexpr void begin_pass(PassKind kind) noexcept {
    kind_ = kind;
    next_ = started_ = 0;
  }
  /// What the pass has not gathered does not come in the next one either.
  constexpr void end_pass() noexcept {
    if (follows()) order().truncate(next_);
    kind_ = PassKind::none;
  }

  /// Whether a call, the pass's next one or one outside of its order, uses what was gathered ahead of the unit's i-th segment. What is ahead for a
  /// later place stays ahead.
  [[nodiscard]] constexpr bool takes(bool in_pass, Unit unit, std::size_t i, ResidencyRule const& rule) {
    SegmentId const segment = partition_->segments(unit)[i];
    if (!is_ahead(segment)) return false;
    return !rule.resident(segment) || (in_pass && (!expected(unit) || gathers(next_, i)));
  }

  /// What is to start when the pass gathers that unit. Nothing has changed yet.
  [[nodiscard]] constexpr Step step(Unit unit, ResidencyRule const& rule) {
    if (!follows() || !expected(unit)) return {};
    Step step;
    step.begin = step.end = started_ > next_ ? started_ : next_ + 1;
    std::int64_t in_advance = in_advance_;
    for (std::size_t i = 0; i < partition_->segments(unit).size(); ++i) {
      if (takes(true, unit, i, rule)) in_advance -= sizes_[at(partition_->segments(unit)[i])];
    }
    for (; step.end < order().size(); ++step.end) {
      for (std::size_t i = 0; i < segments(step.end).size(); ++i) {
        if (!gathers(step.end, i)) continue;
        SegmentId const segment = segments(step.end)[i];
        if (is_coming(segment, unit, step, rule)) return step;
        in_advance += sizes_[at(segment)];
      }
      if (in_advance > budget_) break;
    }
    return step;
  }
  /// Whether a place's gather is of that segment of its unit.
  [[nodiscard]] constexpr bool gathers(std::size_t place, std::size_t i) noexcept {
    return i < most_segments && (order()[place].gathered >> i & 1) != 0;
  }
  /// The segments of a place's unit.
  [[nodiscard]] constexpr IdList<SegmentId> segments(std::size_t place) { return partition_->segments(order()[place].unit); }

  /// The unit was gathered, and the step is under way. @param gathered  one bit for each of its segments: was not resident
  constexpr void go_on(Unit unit, std::uint64_t gathered, Step step) {
    if (!follows()) return;
    if (expected(unit)) {
      order()[next_].gathered = gathered;
      if (step.end > started_) started_ = step.end;
    } else {  // Something new, and what follows is not known.
      order().truncate(next_);
      order().push_back({unit, gathered});
      started_ = next_ + 1;
    }
    ++next_;
  }

  /// The bit for a unit's i-th segment; those of very many are not gathered ahead.
  [[nodiscard]] static constexpr std::uint64_t bit(std::size_t i) noexcept { return i < most_segments ? std::uint64_t{1} << i : 0; }

  constexpr void started(SegmentId segment) noexcept {
    ahead_[at(segment)] = 1;
    in_advance_ += sizes_[at(segment)];
  }
  [[nodiscard]] constexpr bool is_ahead(SegmentId segment) const noexcept { return ahead_[at(segment)] != 0; }
  /// It is used, or was let go of.
  constexpr void arrived(SegmentId segment) noexcept {
    ahead_[at(segment)] = 0;
    in_advance_ -= sizes_[at(segment)];
  }

private:
  struct Place {
    Unit unit{};
    std::uint64_t gathered = 0;
  };
  static constexpr std::size_t most_segments = 64;

  [[nodiscard]] constexpr std::int64_t largest_unit() const {
    std::int64_t largest = 0;
    for (Unit unit : partition_->layout().units()) {
      std::int64_t size = 0;
      for (SegmentId segment : partition_->segments(unit)) size += sizes_[at(segment)];
      if (size > largest) largest = size;
    }
    return largest;
  }

  /// A call of the canonical loop, whose scope ends before the next one.
  constexpr void expect(PlainArray<Place>& order, ResidencyRule& rule, Unit unit) const {
    auto const segments = partition_->segments(unit);
    Place place{unit, 0};
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (!rule.resident(segments[i])) {
        place.gathered |= bit(i);
        rule.enter(segments[i]);
      }
      rule.open(segments[i]);
    }
    for (SegmentId segment : segments) {
      if (rule.close(segment, unit)) rule.leave(segment);
    }
    order.push_back(place);
  }

  [[nodiscard]] constexpr bool follows() const noexcept { return budget_ != 0 && kind_ != PassKind::none; }
  [[nodiscard]] constexpr PlainArray<Place>& order() noexcept { return orders_[kind_ == PassKind::inference ? 1 : 0]; }
  [[nodiscard]] constexpr bool expected(Unit unit) noexcept { return next_ < order().size() && order()[next_].unit == unit; }

  /// Whether the segment is ahead already, and not taken by that unit now, or is to start earlier in the same step.
  [[nodiscard]] constexpr bool is_coming(SegmentId segment, Unit unit, Step step, ResidencyRule const& rule) {
    bool coming = is_ahead(segment);
    for (std::size_t i = 0; i < partition_->segments(unit).size(); ++i) {
      if (partition_->segments(unit)[i] == segment) coming = coming && !takes(true, unit, i, rule);
    }
    for (std::size_t place = step.begin; place < step.end; ++place) {
      for (std::size_t i = 0; i < segments(place).size(); ++i) coming = coming || (gathers(place, i) && segments(place)[i] == segment);
    }
    return coming;
  }

  Partition const* partition_;
  std::int64_t budget_;
  std::int64_t in_advance_ = 0;
  PlainArray<unsigned char> ahead_;  // segments that are on their way, or there, and not in use yet
  PlainArray<std::int64_t> sizes_;   // of all segments [elements]
  PassKind kind_ = PassKind::none;
  PlainArray<Place> orders_[2];  // of the last training pass and the last inference pass
  std::size_t next_ = 0;         // the place of the next call
  std::size_t started_ = 0;      // places before this one have started
};

}  // namespace zero::detail
