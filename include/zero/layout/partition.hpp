// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A layout cut over ranks: segments, offsets, shards, owners and padding. Pure integers, no device, constant expressions.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <zero/core/config.hpp>
#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/layout/ids.hpp>
#include <zero/layout/parameter_layout.hpp>
#include <zero/layout/segment.hpp>
#include <zero/layout/shape.hpp>

namespace zero {

/// A layout cut over N ranks: the one function of layout, N and options that allocation, communication, saving and loading use.
///
/// A **segment** is the atom of storage and communication: parameters that lie one after the other and are cut into N equal parts together. The
/// untied trainable parameters of a unit are one segment, its untied frozen ones another, and each tied parameter is a segment alone. So a gradient,
/// a state and a parameter are always cut at the same places, and a tied parameter can stay resident without the rest of its unit. Segments
/// are ordered by the unit that owns them; within a unit: trainable, frozen, tied.
///
/// Every element that a parameter has is owned by exactly one rank. Gaps (before an aligned parameter) and padding (behind the last) are owned
/// too, and belong to no parameter.
///
/// @par Memory
/// About 30 bytes a parameter and 60 a segment besides a copy of the layout, on the host. No query allocates, none loops over elements.
class Partition {
public:
  /// @param layout what is cut; the partition keeps it
  /// @param ranks N, at least 1
  /// @throws LayoutError if ranks or an alignment is not in [1, 2^31 - 1], or the padded segments have more than `max_elements` elements
  constexpr explicit Partition(ParameterLayout layout, int ranks, PartitionOptions options = {},
                               SourceLocation where = SourceLocation::current())
      : layout_(std::move(layout)), ranks_(ranks), options_(options) {
    check_count("number of ranks", ranks, where);
    check_count("shard alignment", options.shard_alignment, where);
    check_count("parameter alignment", options.parameter_alignment, where);
    places_.assign(static_cast<std::size_t>(layout_.parameter_count()), {});
    members_.reserve(places_.size());
    for (Unit const unit : layout_.units()) {
      add_segment(unit, true, where);
      add_segment(unit, false, where);
      for (ParameterId const id : layout_.own_parameters(unit)) {
        if (layout_.tied(id)) {
          add_tied_segment(id, where);
        }
      }
    }
    list_used_segments();
  }

  [[nodiscard]] constexpr ParameterLayout const& layout() const noexcept { return layout_; }
  [[nodiscard]] constexpr int ranks() const noexcept { return ranks_; }
  [[nodiscard]] constexpr PartitionOptions const& options() const noexcept { return options_; }

  /// All segments in order.
  [[nodiscard]] constexpr IdRange<SegmentId> segments() const noexcept { return IdRange<SegmentId>{segment_count()}; }
  [[nodiscard]] constexpr std::int32_t segment_count() const noexcept { return static_cast<std::int32_t>(entries_.size()); }

  /// The segments a unit uses: its own in order, then those of parameters tied to it in the order of `tie`.
  /// @throws LayoutError if the unit is unknown
  [[nodiscard]] constexpr IdList<SegmentId> segments(Unit unit, SourceLocation where = SourceLocation::current()) const {
    static_cast<void>(layout_.name(unit, where));
    std::size_t const first = used_begin_[detail::at(unit)];
    return {used_.data() + first, used_begin_[detail::at(unit) + 1] - first};
  }

  /// The numbers of one segment. @throws LayoutError if it is unknown
  [[nodiscard]] constexpr Segment const& segment(SegmentId id, SourceLocation where = SourceLocation::current()) const {
    return entry(id, where).segment;
  }

  /// The parameters in a segment, in the order of their offsets. @throws LayoutError if it is unknown
  [[nodiscard]] constexpr IdList<ParameterId> parameters(SegmentId id, SourceLocation where = SourceLocation::current()) const {
    return members(entry(id, where));
  }

  /// The units that use a segment, the owner first. @throws LayoutError if it is unknown
  [[nodiscard]] constexpr IdList<Unit> users(SegmentId id, SourceLocation where = SourceLocation::current()) const {
    return layout_.users(parameters(id, where).front());
  }

  /// The segment in which a parameter lies. @throws LayoutError if the parameter is unknown
  [[nodiscard]] constexpr SegmentId segment_of(ParameterId parameter, SourceLocation where = SourceLocation::current()) const {
    return place(parameter, where).segment;
  }

  /// Where a parameter begins in its segment [elements]. @throws LayoutError if the parameter is unknown
  [[nodiscard]] constexpr std::int64_t offset_of(ParameterId parameter, SourceLocation where = SourceLocation::current()) const {
    return place(parameter, where).offset;
  }

  /// What a rank holds of a segment that is sharded, padding included. Constant time. @throws LayoutError if segment or rank is unknown
  [[nodiscard]] constexpr ElementRange shard_range(SegmentId id, int rank, SourceLocation where = SourceLocation::current()) const {
    std::int64_t const shard = segment(id, where).shard_elements;
    check_rank(rank, where);
    return {rank * shard, rank * shard + shard};
  }

  /// `shard_range` without the padding behind the last parameter; gaps between parameters are in it. Constant time.
  /// @throws LayoutError if segment or rank is unknown
  [[nodiscard]] constexpr ElementRange span_range(SegmentId id, int rank, SourceLocation where = SourceLocation::current()) const {
    ElementRange const shard = shard_range(id, rank, where);
    std::int64_t const n = segment(id).span_elements;
    return {shard.begin < n ? shard.begin : n, shard.end < n ? shard.end : n};
  }

  /// The rank that owns an element of a segment. Constant time.
  /// @param element 0 <= element < padded_elements
  /// @throws LayoutError if the segment is unknown or has no such element
  [[nodiscard]] constexpr int owner(SegmentId id, std::int64_t element, SourceLocation where = SourceLocation::current()) const {
    Segment const& of = segment(id, where);
    if (element < 0 || element >= of.padded_elements) {
      throw_outside(id, element, element, where);
    }
    return static_cast<int>(element / of.shard_elements);
  }

  /// The rank that owns an element of a parameter. Constant time. @param element 0 <= element < elements of the parameter
  /// @throws LayoutError if the parameter is unknown or has no such element
  [[nodiscard]] constexpr int owner(ParameterId parameter, std::int64_t element, SourceLocation where = SourceLocation::current()) const {
    Place const& of = place(parameter, where);
    if (element < 0 || element >= layout_.elements(parameter)) {
      throw_no_element(parameter, element, where);
    }
    return owner(of.segment, of.offset + element, where);
  }

  /// Calls `f(parameter, first, offset, count)` for each run of elements of one parameter inside [begin, end) of a segment, in order: `first` is the
  /// run's first element in the parameter, `offset` the same in the segment, `count` at least 1. Gaps and padding are in no run. Time: the logarithm
  /// of the segment's parameters, then a call for each run. @throws LayoutError if not 0 <= begin <= end <= padded_elements, or what f throws
  template <std::invocable<ParameterId, std::int64_t, std::int64_t, std::int64_t> F>
  constexpr void pieces(SegmentId id, std::int64_t begin, std::int64_t end, F&& f, SourceLocation where = SourceLocation::current()) const {
    Entry const& of = entry(id, where);
    check_range(id, begin, end, where);
    for (std::size_t i = last_at_or_before(of, begin); i < of.end && places_[detail::at(members_[i])].offset < end; ++i) {
      ParameterId const parameter = members_[i];
      std::int64_t const offset = places_[detail::at(parameter)].offset;
      std::int64_t const stop = offset + layout_.elements(parameter);
      std::int64_t const from = begin > offset ? begin : offset;
      std::int64_t const to = end < stop ? end : stop;
      if (from < to) {
        f(parameter, from - offset, from, to - from);
      }
    }
  }

  /// The same over a range, for instance over `shard_range(id, rank)`.
  template <std::invocable<ParameterId, std::int64_t, std::int64_t, std::int64_t> F>
  constexpr void pieces(SegmentId id, ElementRange range, F&& f, SourceLocation where = SourceLocation::current()) const {
    pieces(id, range.begin, range.end, f, where);
  }

  /// How many elements of parameters are in a range of a segment: the sum of the counts that `pieces` gives, in logarithmic time.
  /// @throws LayoutError if not 0 <= begin <= end <= padded_elements
  [[nodiscard]] constexpr std::int64_t elements(SegmentId id, ElementRange range, SourceLocation where = SourceLocation::current()) const {
    Entry const& of = entry(id, where);
    check_range(id, range.begin, range.end, where);
    return elements_before(of, range.end) - elements_before(of, range.begin);
  }

  /// Elements of parameters that a rank owns, over all segments; summed over the ranks it is `layout().elements()`.
  /// @throws LayoutError if the rank is unknown
  [[nodiscard]] constexpr std::int64_t owned_elements(int rank, SourceLocation where = SourceLocation::current()) const {
    return owned(rank, false, where);
  }

  /// The same over trainable segments: what a rank steps.
  [[nodiscard]] constexpr std::int64_t owned_trainable_elements(int rank, SourceLocation where = SourceLocation::current()) const {
    return owned(rank, true, where);
  }

  /// @name Totals, each segment once [elements]
  /// Sharded storage of all segments is `shard_elements()` on every rank, whole storage is `padded_elements()` = N * shard_elements().
  /// @{
  [[nodiscard]] constexpr std::int64_t shard_elements() const noexcept { return shard_elements_; }
  [[nodiscard]] constexpr std::int64_t padded_elements() const noexcept { return ranks_ * shard_elements_; }
  [[nodiscard]] constexpr std::int64_t trainable_shard_elements() const noexcept { return trainable_shard_elements_; }
  [[nodiscard]] constexpr std::int64_t trainable_padded_elements() const noexcept { return ranks_ * trainable_shard_elements_; }
  /// @}

  /// Padded elements of all segments that a unit uses, tied ones included: what a gather of the unit alone holds.
  /// @throws LayoutError if the unit is unknown
  [[nodiscard]] constexpr std::int64_t padded_elements(Unit unit, SourceLocation where = SourceLocation::current()) const {
    return padded(unit, false, where);
  }

  /// The same over trainable segments: what full-size gradients of the unit alone hold. @throws LayoutError if the unit is unknown
  [[nodiscard]] constexpr std::int64_t trainable_padded_elements(Unit unit, SourceLocation where = SourceLocation::current()) const {
    return padded(unit, true, where);
  }

  /// Hash of layout, ranks and options: equal on all ranks or they disagree.
  [[nodiscard]] constexpr std::uint64_t hash() const noexcept {
    return Hasher{}
        .add(layout_.hash())
        .add(static_cast<std::uint64_t>(ranks_))
        .add(static_cast<std::uint64_t>(options_.shard_alignment))
        .add(static_cast<std::uint64_t>(options_.parameter_alignment))
        .value();
  }

  /// A segment in words, for messages: "segment 3 (unit 'h.1', frozen)". Of an unknown id it says so.
  [[nodiscard]] std::string describe(SegmentId id) const {
    std::string const number = std::string("segment ") + std::to_string(to_index(id));
    if (!segments().contains(id)) {
      return number + " (unknown: there are " + std::to_string(segment_count()) + ")";
    }
    Segment const& of = segment(id);
    std::string const tied = of.tied ? std::string(", tied '") + std::string(layout_.name(parameters(id).front())) + "'" : "";
    return number + " (unit '" + std::string(layout_.name(of.owner)) + "', " + (of.trainable ? "trainable" : "frozen") + tied + ")";
  }

private:
  struct Entry {
    Segment segment;
    std::size_t begin;  // its parameters in members_
    std::size_t end;
  };
  struct Place {
    SegmentId segment{};
    std::int64_t offset = 0;  // in the segment
    std::int64_t before = 0;  // elements of the parameters that precede it in the segment
  };

  constexpr void add_segment(Unit unit, bool trainable, SourceLocation where) {
    std::size_t const begin = members_.size();
    for (ParameterId const id : layout_.own_parameters(unit)) {
      if (layout_.trainable(id) == trainable && !layout_.tied(id)) {
        members_.push_back(id);
      }
    }
    if (begin != members_.size()) {
      close_segment(unit, trainable, false, begin, where);
    }
  }

  constexpr void add_tied_segment(ParameterId id, SourceLocation where) {
    members_.push_back(id);
    close_segment(layout_.unit(id), layout_.trainable(id), true, members_.size() - 1, where);
  }

  /// Sets the offsets of the parameters from members_[begin] on and cuts their span. Nothing overflows: ranks and alignments are below 2^31 and all
  /// element counts are kept at 2^56 or less, so that every sum and product here is below 2^63.
  constexpr void close_segment(Unit owner, bool trainable, bool tied, std::size_t begin, SourceLocation where) {
    SegmentId const id = static_cast<SegmentId>(segment_count());
    std::int64_t span = 0;
    std::int64_t elements = 0;
    for (std::size_t i = begin; i < members_.size(); ++i) {
      std::int64_t const size = layout_.elements(members_[i]);
      std::int64_t const offset = rounded_up(span, options_.parameter_alignment);
      places_[detail::at(members_[i])] = {id, offset, elements};
      span = offset + size;
      elements += size;
      check_total(span, max_elements, where);
    }
    std::int64_t const shard = rounded_up(span, ranks_ * options_.shard_alignment) / ranks_;
    check_total(shard_elements_ + shard, max_elements / ranks_, where);
    entries_.push_back({{owner, trainable, tied, elements, span, shard, ranks_ * shard}, begin, members_.size()});
    shard_elements_ += shard;
    trainable_shard_elements_ += trainable ? shard : 0;
  }

  constexpr void list_used_segments() {
    used_begin_.reserve(static_cast<std::size_t>(layout_.unit_count()) + 1);
    used_begin_.push_back(0);
    std::size_t next = 0;
    for (Unit const unit : layout_.units()) {
      for (; next < entries_.size() && entries_[next].segment.owner == unit; ++next) {
        used_.push_back(static_cast<SegmentId>(next));
      }
      for (ParameterId const id : layout_.parameters(unit).subspan(layout_.own_parameters(unit).size())) {
        used_.push_back(places_[detail::at(id)].segment);
      }
      used_begin_.push_back(used_.size());
    }
  }

  static constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) noexcept {
    return (n + multiple - 1) / multiple * multiple;
  }

  [[nodiscard]] constexpr Entry const& entry(SegmentId id, SourceLocation where) const {
    if (!segments().contains(id)) {
      throw_unknown_segment(id, where);
    }
    return entries_[detail::at(id)];
  }
  [[nodiscard]] constexpr Place const& place(ParameterId parameter, SourceLocation where) const {
    static_cast<void>(layout_.parameter(parameter, where));
    return places_[detail::at(parameter)];
  }
  [[nodiscard]] constexpr IdList<ParameterId> members(Entry const& of) const noexcept {
    return {members_.data() + of.begin, of.end - of.begin};
  }

  /// The position in members_ of the last parameter of a segment whose offset is at most `element`. The first one's offset is 0. Of parameters
  /// with one offset only the last can have elements, so that none that reaches beyond `element` is passed over.
  [[nodiscard]] constexpr std::size_t last_at_or_before(Entry const& of, std::int64_t element) const noexcept {
    std::size_t low = of.begin;
    std::size_t high = of.end;
    while (high - low > 1) {
      std::size_t const middle = low + (high - low) / 2;
      (places_[detail::at(members_[middle])].offset <= element ? low : high) = middle;
    }
    return low;
  }

  [[nodiscard]] constexpr std::int64_t elements_before(Entry const& of, std::int64_t element) const {
    ParameterId const parameter = members_[last_at_or_before(of, element)];
    Place const& where = places_[detail::at(parameter)];
    std::int64_t const inside = element - where.offset;
    std::int64_t const size = layout_.elements(parameter);
    return where.before + (inside < size ? inside : size);
  }

  [[nodiscard]] constexpr std::int64_t owned(int rank, bool trainable_only, SourceLocation where) const {
    check_rank(rank, where);
    std::int64_t sum = 0;
    for (SegmentId const id : segments()) {
      sum += trainable_only && !segment(id).trainable ? 0 : elements(id, shard_range(id, rank));
    }
    return sum;
  }
  [[nodiscard]] constexpr std::int64_t padded(Unit unit, bool trainable_only, SourceLocation where) const {
    std::int64_t sum = 0;
    for (SegmentId const id : segments(unit, where)) {
      sum += trainable_only && !segment(id).trainable ? 0 : segment(id).padded_elements;
    }
    return sum;
  }

  static constexpr void check_count(char const* what, std::int64_t count, SourceLocation where) {
    if (count < 1 || count > 0x7fffffff) {
      throw_bad_count(what, count, where);
    }
  }
  constexpr void check_rank(int rank, SourceLocation where) const {
    if (rank < 0 || rank >= ranks_) {
      throw_no_such_rank(rank, where);
    }
  }
  constexpr void check_range(SegmentId id, std::int64_t begin, std::int64_t end, SourceLocation where) const {
    if (begin < 0 || begin > end || end > entries_[detail::at(id)].segment.padded_elements) {
      throw_outside(id, begin, end, where);
    }
  }

  static constexpr void check_total(std::int64_t elements, std::int64_t most, SourceLocation where) {
    if (elements > most) {
      throw_too_many_padded_elements(where);
    }
  }

  [[noreturn]] static void throw_bad_count(char const* what, std::int64_t count, SourceLocation where) {
    throw LayoutError(
        std::string("the ") + what + " of a partition cannot be " + std::to_string(count) + ": from 1 to 2^31 - 1 is possible", where);
  }
  [[noreturn]] static void throw_too_many_padded_elements(SourceLocation where) {
    throw LayoutError("with its alignments the partition has more than 2^56 elements", where);
  }
  [[noreturn]] void throw_unknown_segment(SegmentId id, SourceLocation where) const { throw LayoutError(describe(id), where); }
  [[noreturn]] void throw_no_such_rank(int rank, SourceLocation where) const {
    throw LayoutError(std::string("no rank has the number ") + std::to_string(rank) + ": the partition has " + std::to_string(ranks_),
                      where);
  }
  [[noreturn]] void throw_outside(SegmentId id, std::int64_t begin, std::int64_t end, SourceLocation where) const {
    throw LayoutError(describe(id) + " has " + std::to_string(segment(id).padded_elements) + " padded elements: " + std::to_string(begin) +
                          " to " + std::to_string(end) + " is out of range",
                      where);
  }
  [[noreturn]] void throw_no_element(ParameterId id, std::int64_t element, SourceLocation where) const {
    throw LayoutError(std::string("parameter '") + std::string(layout_.name(id)) + "' has no element " + std::to_string(element) +
                          ": it has " + std::to_string(layout_.elements(id)) + " elements",
                      where);
  }

  ParameterLayout layout_;
  int ranks_;
  PartitionOptions options_;
  detail::PlainArray<Entry> entries_;
  detail::PlainArray<ParameterId> members_;  // by segment
  detail::PlainArray<Place> places_;         // by parameter
  detail::PlainArray<SegmentId> used_;       // by unit
  detail::PlainArray<std::size_t> used_begin_;
  std::int64_t shard_elements_ = 0;
  std::int64_t trainable_shard_elements_ = 0;
};

}  // namespace zero
