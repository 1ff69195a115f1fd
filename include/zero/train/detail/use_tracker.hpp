// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Which of the units that use a segment have done so: a tied segment stays resident, and unreduced, until the last of them has. The rules
/// alone, so that the plan is made by the code that runs.

#include <cstddef>
#include <cstdint>

#include <zero/core/plain_array.hpp>
#include <zero/layout/partition.hpp>

namespace zero::detail {

/// One mark for each pair of a segment and a unit that uses it.
class UseTracker {
public:
  constexpr explicit UseTracker(Partition const& partition) : partition_(&partition) {
    std::int32_t total = 0;
    for (SegmentId segment : partition.segments()) {
      begin_.push_back(total);
      total += static_cast<std::int32_t>(partition.users(segment).size());
    }
    marks_.assign(static_cast<std::size_t>(total), 0);
  }

  /// Marks the pair. @returns whether every user of the segment is marked now.
  constexpr bool mark(SegmentId segment, Unit unit) {
    bool all = true;
    auto const users = partition_->users(segment);
    for (std::size_t i = 0; i < users.size(); ++i) {
      unsigned char& flag = marks_[first(segment) + i];
      if (users[i] == unit) flag = 1;
      all = all && flag != 0;
    }
    return all;
  }
  [[nodiscard]] constexpr bool any(SegmentId segment) const {
    for (std::size_t i = 0; i < partition_->users(segment).size(); ++i) {
      if (marks_[first(segment) + i] != 0) return true;
    }
    return false;
  }
  constexpr void clear(SegmentId segment) {
    for (std::size_t i = 0; i < partition_->users(segment).size(); ++i) marks_[first(segment) + i] = 0;
  }
  constexpr void clear() noexcept {
    for (unsigned char& flag : marks_) flag = 0;
  }

private:
  [[nodiscard]] constexpr std::size_t first(SegmentId segment) const noexcept { return static_cast<std::size_t>(begin_[at(segment)]); }

  Partition const* partition_;
  PlainArray<std::int32_t> begin_;
  PlainArray<unsigned char> marks_;
};

/// Which gathered segments are resident: while a scope holds them, and within a phase until the last declared user has let go.
class ResidencyRule {
public:
  constexpr explicit ResidencyRule(Partition const& partition)
      : uses_(partition), states_(static_cast<std::size_t>(partition.segment_count())) {}

  [[nodiscard]] constexpr bool resident(SegmentId segment) const { return states_[at(segment)].resident; }

  /// The segment was gathered: uses of all its users are to come.
  constexpr void enter(SegmentId segment) {
    states_[at(segment)].resident = true;
    states_[at(segment)].wanted = true;
    uses_.clear(segment);
  }
  /// A scope holds the segment.
  constexpr void open(SegmentId segment) { ++states_[at(segment)].open; }
  /// A scope of that unit lets go. @returns whether nobody needs the segment any more: `leave` it then.
  constexpr bool close(SegmentId segment, Unit unit) {
    State& s = states_[at(segment)];
    if (uses_.mark(segment, unit)) s.wanted = false;
    return --s.open == 0 && !s.wanted;
  }
  /// No later use is to come in this phase. @returns whether nobody needs the segment any more: `leave` it then.
  constexpr bool end_phase(SegmentId segment) {
    State& s = states_[at(segment)];
    s.wanted = false;
    return s.resident && s.open == 0;
  }
  constexpr void leave(SegmentId segment) {
    states_[at(segment)].resident = false;
    uses_.clear(segment);
  }

private:
  struct State {
    std::int32_t open = 0;  // scopes that hold the segment
    bool resident = false;
    bool wanted = false;  // a declared use is still to come in this phase
  };

  UseTracker uses_;
  PlainArray<State> states_;
};

}  // namespace zero::detail
