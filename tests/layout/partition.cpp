// SPDX-License-Identifier: Apache-2.0
#include <zero/layout/partition.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace {

using zero::ElementRange;
using zero::LayoutError;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::Partition;
using zero::PartitionOptions;
using zero::Segment;
using zero::SegmentId;
using zero::Unit;

template <class Id>
std::vector<Id> ids(zero::IdList<Id> list) {
  return {list.begin(), list.end()};
}

/// Unit "a": trainable x, frozen f, tied t; unit "b": trainable y; unit "c": nothing but the tie.
constexpr ParameterLayout three_units() {
  ParameterLayout layout;
  Unit const a = layout.add_unit("a");
  Unit const b = layout.add_unit("b");
  Unit const c = layout.add_unit("c");
  ParameterId const t = layout.add(a, "t", {5, 2});
  layout.add(a, "f", {3}, {.trainable = false});
  layout.add(a, "x", {33});
  layout.add(a, "x2", {7});
  layout.add(b, "y", {300});
  layout.tie(t, b);
  layout.tie(t, c);
  return layout;
}

ParameterLayout one_unit(std::vector<std::int64_t> const& sizes) {
  ParameterLayout layout;
  Unit const unit = layout.add_unit("u");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    layout.add(unit, std::string("p").append(std::to_string(i)), {sizes[i]});
  }
  return layout;
}

constexpr std::int64_t in_pieces(Partition const& partition, SegmentId id, ElementRange range) {
  std::int64_t sum = 0;
  partition.pieces(id, range, [&](ParameterId, std::int64_t, std::int64_t, std::int64_t count) { sum += count; });
  return sum;
}

// In constant expressions: segments of "a" are x and x2 (0), f (1), t (2); of "b" y (3).
static_assert(Partition{three_units(), 2}.segment_count() == 4);
static_assert(Partition{three_units(), 2}.segment(SegmentId{0}).span_elements == 64 + 7);
static_assert(Partition{three_units(), 2}.segment(SegmentId{3}).shard_elements == 256);
static_assert(Partition{three_units(), 2}.offset_of(ParameterId{3}) == 64);
static_assert(Partition{three_units(), 3}.owner(SegmentId{3}, 299) == 2);
static_assert(in_pieces(Partition{three_units(), 2}, SegmentId{0}, {0, 256}) == 40);
static_assert(Partition{three_units(), 2}.owned_elements(0) + Partition{three_units(), 2}.owned_elements(1) == three_units().elements());

// The sizes of the ZeRO paper (section 5.4, 7.5e9 elements on 64 ranks) and far more: closed forms, so they cost nothing.
constexpr ParameterLayout flat(std::int64_t elements) {
  ParameterLayout layout;
  layout.add(layout.add_unit("model"), "weights", {elements});
  return layout;
}
static_assert(Partition{flat(7'500'000'000), 64}.shard_elements() == 117'187'584);
static_assert(Partition{flat(7'500'000'000), 1024}.padded_elements() == 7'500'070'912);
static_assert(Partition{flat(1'000'000'000'000), 1024}.owner(SegmentId{0}, 999'999'999'999) == 1023);

TEST_CASE("a_unit_owns_a_trainable_a_frozen_and_its_tied_segments_in_this_order") {
  Partition const partition{three_units(), 2};
  CHECK(ids(partition.parameters(SegmentId{0})) == std::vector{ParameterId{2}, ParameterId{3}});
  CHECK(ids(partition.parameters(SegmentId{1})) == std::vector{ParameterId{1}});
  CHECK(ids(partition.parameters(SegmentId{2})) == std::vector{ParameterId{0}});
  CHECK(ids(partition.parameters(SegmentId{3})) == std::vector{ParameterId{4}});
  CHECK(ids(partition.segments(Unit{0})) == std::vector{SegmentId{0}, SegmentId{1}, SegmentId{2}});
  CHECK(ids(partition.segments(Unit{1})) == std::vector{SegmentId{3}, SegmentId{2}});
  CHECK(ids(partition.segments(Unit{2})) == std::vector{SegmentId{2}});
  CHECK(ids(partition.users(SegmentId{2})) == std::vector{Unit{0}, Unit{1}, Unit{2}});
  CHECK(ids(partition.users(SegmentId{3})) == std::vector{Unit{1}});
  for (int s = 0; s < 4; ++s) {
    Segment const& segment = partition.segment(SegmentId{s});
    CHECK(segment.trainable == (s != 1));
    CHECK(segment.tied == (s == 2));
    CHECK(segment.owner == (s == 3 ? Unit{1} : Unit{0}));
  }
}

TEST_CASE("totals_count_each_segment_once_and_a_unit_counts_what_it_uses") {
  Partition const partition{three_units(), 2};
  CHECK(partition.padded_elements() == 256 + 256 + 256 + 512);
  CHECK(partition.trainable_padded_elements() == 256 + 256 + 512);
  CHECK(partition.shard_elements() == partition.padded_elements() / 2);
  CHECK(partition.trainable_shard_elements() == partition.trainable_padded_elements() / 2);
  CHECK(partition.padded_elements(Unit{0}) == 768);
  CHECK(partition.trainable_padded_elements(Unit{0}) == 512);
  CHECK(partition.padded_elements(Unit{1}) == 768);
  CHECK(partition.padded_elements(Unit{2}) == 256);
  std::int64_t owned = 0;
  std::int64_t trainable = 0;
  for (int rank = 0; rank < 2; ++rank) {
    owned += partition.owned_elements(rank);
    trainable += partition.owned_trainable_elements(rank);
  }
  CHECK(owned == partition.layout().elements());
  CHECK(trainable == partition.layout().trainable_elements());
}

/// Everything that must hold for every partition, checked element by element against what the queries say.
void check_geometry(Partition const& partition) {
  ParameterLayout const& layout = partition.layout();
  std::int64_t const A = partition.options().shard_alignment;
  int const N = partition.ranks();
  std::int64_t wrong = 0;
  auto const expect = [&](bool holds) { wrong += holds ? 0 : 1; };
  std::vector<int> seen(static_cast<std::size_t>(layout.parameter_count()), 0);
  std::vector<std::int64_t> owned(static_cast<std::size_t>(N), 0);
  std::int64_t padded_total = 0;
  for (SegmentId const id : partition.segments()) {
    Segment const& segment = partition.segment(id);
    // Closed forms.
    std::int64_t shard = 0;
    while (N * shard < segment.span_elements) {
      shard += A;
    }
    expect(segment.shard_elements == shard && segment.padded_elements == N * shard);
    padded_total += segment.padded_elements;
    // Parameters: aligned, in order, without overlap, and of the segment's kind.
    std::vector<std::int32_t> parameter_at(static_cast<std::size_t>(segment.padded_elements), -1);
    std::int64_t end = 0;
    std::int64_t elements = 0;
    for (ParameterId const parameter : partition.parameters(id)) {
      ++seen[static_cast<std::size_t>(to_index(parameter))];
      std::int64_t const offset = partition.offset_of(parameter);
      expect(partition.segment_of(parameter) == id && offset >= end && offset % partition.options().parameter_alignment == 0);
      expect(offset - end < partition.options().parameter_alignment);
      expect(layout.trainable(parameter) == segment.trainable && layout.tied(parameter) == segment.tied);
      expect(layout.unit(parameter) == segment.owner);
      end = offset + layout.elements(parameter);
      elements += layout.elements(parameter);
      for (std::int64_t i = offset; i < end; ++i) {
        std::int32_t& slot = parameter_at.at(static_cast<std::size_t>(i));
        expect(slot == -1);
        slot = to_index(parameter);
      }
    }
    expect(segment.span_elements == end && segment.elements == elements);
    // Shards tile the padded segment; each element has one owner and lies in one piece of its owner exactly if it is a parameter's.
    std::int64_t next = 0;
    for (int rank = 0; rank < N; ++rank) {
      ElementRange const range = partition.shard_range(id, rank);
      expect(range.begin == next && range.size() == shard && range.begin % A == 0);
      ElementRange const real = partition.span_range(id, rank);
      expect(real.begin == std::min(range.begin, end) && real.end == std::min(range.end, end));
      next = range.end;
      std::int64_t at = range.begin;
      partition.pieces(id, range, [&](ParameterId parameter, std::int64_t first, std::int64_t offset, std::int64_t count) {
        for (; at < offset; ++at) {
          expect(parameter_at[static_cast<std::size_t>(at)] == -1);
        }
        expect(count > 0 && offset == partition.offset_of(parameter) + first && first + count <= layout.elements(parameter));
        for (; at < offset + count; ++at) {
          expect(parameter_at.at(static_cast<std::size_t>(at)) == to_index(parameter) && partition.owner(id, at) == rank);
          expect(partition.owner(parameter, first + at - offset) == rank);
        }
        owned[static_cast<std::size_t>(rank)] += count;
      });
      for (; at < range.end; ++at) {
        expect(parameter_at[static_cast<std::size_t>(at)] == -1 && partition.owner(id, at) == rank);
      }
    }
    expect(next == segment.padded_elements);
  }
  for (int const times : seen) {
    expect(times == 1);
  }
  std::int64_t sum = 0;
  for (int rank = 0; rank < N; ++rank) {
    expect(partition.owned_elements(rank) == owned[static_cast<std::size_t>(rank)]);
    sum += partition.owned_elements(rank);
  }
  expect(sum == layout.elements());
  expect(partition.padded_elements() == padded_total && partition.shard_elements() * N == padded_total);
  CHECK(wrong == 0);
}

TEST_CASE("every_element_is_owned_exactly_once_for_odd_sizes_and_all_numbers_of_ranks") {
  for (int const ranks : {1, 2, 3, 4, 5, 6, 7, 8, 64}) {
    for (PartitionOptions const options : {PartitionOptions{}, PartitionOptions{.shard_alignment = 1, .parameter_alignment = 1},
                                           PartitionOptions{.shard_alignment = 12, .parameter_alignment = 5}}) {
      std::int64_t const row = ranks * options.shard_alignment;
      for (std::int64_t const size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{5}, std::int64_t{7},
                                      std::int64_t{31}, std::int64_t{32}, std::int64_t{33}, std::int64_t{127}, std::int64_t{128},
                                      std::int64_t{129}, row - 1, row, row + 1, std::int64_t{32001}}) {
        CAPTURE(ranks);
        CAPTURE(size);
        check_geometry(Partition{one_unit({size}), ranks, options});
        check_geometry(Partition{one_unit({size, 0, 3, size, 0}), ranks, options});
      }
    }
    check_geometry(Partition{three_units(), ranks});
  }
}

TEST_CASE("field case 1: a group of three elements on eight ranks leaves ranks without any, and that is fine") {
  Partition const partition{one_unit({3}), 8, {.shard_alignment = 1, .parameter_alignment = 1}};
  check_geometry(partition);
  CHECK(partition.owned_elements(2) == 1);
  CHECK(partition.owned_elements(3) == 0);
  CHECK(partition.shard_range(SegmentId{0}, 7) == ElementRange{7, 8});
  CHECK(partition.span_range(SegmentId{0}, 7).empty());
}

TEST_CASE("field case 2: scalars and parameters with fewer elements than ranks, for every number of ranks") {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (std::int64_t size = 1; size < ranks; ++size) {
      check_geometry(Partition{one_unit({size}), ranks});
      check_geometry(Partition{one_unit({size}), ranks, {.shard_alignment = 1, .parameter_alignment = 1}});
    }
    ParameterLayout layout;
    layout.add(layout.add_unit("u"), "scalar", {});
    check_geometry(Partition{layout, ranks});
  }
}

TEST_CASE("field case 4: an empty parameter at the end has a place inside the storage, also on one rank") {
  Partition const partition{one_unit({5, 0}), 1, {.shard_alignment = 1, .parameter_alignment = 32}};
  CHECK(partition.offset_of(ParameterId{1}) == 32);
  CHECK(partition.offset_of(ParameterId{1}) <= partition.segment(SegmentId{0}).padded_elements);
  check_geometry(partition);
}

TEST_CASE("field case 5: units without trainable parameters, without parameters, and models of nothing") {
  ParameterLayout layout;
  Unit const empty = layout.add_unit("empty");
  Unit const frozen = layout.add_unit("frozen");
  layout.add(frozen, "f", {9}, {.trainable = false});
  Unit const hollow = layout.add_unit("hollow");
  layout.add(hollow, "h", {0});
  Partition const partition{layout, 3};
  CHECK(partition.segments(empty).empty());
  CHECK(partition.padded_elements(empty) == 0);
  CHECK(ids(partition.segments(frozen)) == std::vector{SegmentId{0}});
  CHECK(partition.trainable_padded_elements() == 0);
  CHECK(partition.segment(SegmentId{1}).shard_elements == 0);
  CHECK(partition.shard_range(SegmentId{1}, 2) == ElementRange{0, 0});
  CHECK(partition.segments(hollow).size() == 1);
  check_geometry(partition);
  Partition const nothing{ParameterLayout{}, 4};
  CHECK(nothing.segment_count() == 0);
  CHECK(nothing.padded_elements() == 0);
  CHECK(nothing.owned_elements(3) == 0);
}

TEST_CASE("field case 6: one function gives the places; between any two numbers of ranks each element keeps its parameter and position") {
  ParameterLayout const layout = one_unit({32001, 1, 0, 127, 33});
  for (int ranks = 1; ranks <= 8; ++ranks) {
    Partition const partition{layout, ranks};
    std::vector<std::int64_t> next(5, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      partition.pieces(SegmentId{0}, partition.shard_range(SegmentId{0}, rank),
                       [&](ParameterId parameter, std::int64_t first, std::int64_t, std::int64_t count) {
                         std::int64_t& position = next[static_cast<std::size_t>(to_index(parameter))];
                         CHECK(first == position);  // rank after rank the parameter is complete, without hole or repetition
                         position += count;
                       });
    }
    CHECK(next == std::vector<std::int64_t>{32001, 1, 0, 127, 33});
    for (ParameterId const id : layout.parameters()) {
      CHECK(partition.offset_of(id) == Partition(layout, 1).offset_of(id));  // offsets do not depend on the ranks
    }
  }
}

TEST_CASE("field case 11: sizes are stored, never inferred from a shard") {
  ParameterLayout layout;
  layout.add(layout.add_unit("u"), "rows", {5, 3});
  Partition const partition{layout, 2};
  CHECK(partition.layout().shape(ParameterId{0}) == zero::Shape{5, 3});
  CHECK(partition.segment(SegmentId{0}).elements == 15);
  CHECK(partition.segment(SegmentId{0}).elements != 2 * partition.segment(SegmentId{0}).shard_elements);
}

TEST_CASE("field case 13: every segment is cut at aligned places whatever precedes it, a tied embedding too") {
  for (int const ranks : {3, 5, 6, 7, 8}) {
    ParameterLayout layout;
    Unit const first = layout.add_unit("embedding");
    ParameterId const embedding = layout.add(first, "embedding.weight", {32001, 3});
    layout.add(first, "norm", {5});
    Unit const second = layout.add_unit("block");
    layout.add(second, "block.weight", {7, 11});
    layout.tie(embedding, second);
    Partition const partition{layout, ranks};
    std::int64_t begin = 0;  // where a segment begins when all lie one after the other
    for (SegmentId const id : partition.segments()) {
      for (int rank = 0; rank < ranks; ++rank) {
        CHECK(partition.shard_range(id, rank).begin % 128 == 0);
      }
      CHECK(begin % (128 * ranks) == 0);
      begin += partition.segment(id).padded_elements;
    }
    check_geometry(partition);
  }
}

TEST_CASE("field case 14: a rank that owns nothing gets an empty answer, not an error") {
  Partition const partition{one_unit({5}), 8};
  for (int rank = 1; rank < 8; ++rank) {
    CHECK(partition.owned_elements(rank) == 0);
    CHECK(in_pieces(partition, SegmentId{0}, partition.shard_range(SegmentId{0}, rank)) == 0);
  }
}

TEST_CASE("field case 16: all ranks have shards of one length, for very uneven sizes") {
  Partition const partition{one_unit({1, 32001, 2, 3}), 7};
  for (int rank = 0; rank < 7; ++rank) {
    CHECK(partition.shard_range(SegmentId{0}, rank).size() == partition.segment(SegmentId{0}).shard_elements);
  }
}

TEST_CASE("field case 17: a vocabulary of 32001 on eight ranks, and other primes") {
  for (std::int64_t const rows : {std::int64_t{32001}, std::int64_t{50257}, std::int64_t{13}, std::int64_t{8191}}) {
    ParameterLayout layout;
    layout.add(layout.add_unit("u"), "wte", {rows, 3});
    check_geometry(Partition{layout, 8});
  }
}

TEST_CASE("field case 84: a parameter tied across units is one segment, cut once, used by all of them") {
  Partition const partition{three_units(), 4};
  SegmentId const tied = partition.segment_of(ParameterId{0});
  for (Unit const unit : partition.layout().units()) {
    int times = 0;
    for (SegmentId const id : partition.segments(unit)) {
      times += id == tied ? 1 : 0;
    }
    CHECK(times == 1);
  }
  CHECK(partition.segment(tied).owner == Unit{0});
}

TEST_CASE("field case 87: a partition made again from the same layout has the same ties and hash") {
  Partition const first{three_units(), 4};
  Partition const again{first.layout(), first.ranks(), first.options()};
  CHECK(again.hash() == first.hash());
  CHECK(ids(again.users(SegmentId{2})) == ids(first.users(SegmentId{2})));
}

TEST_CASE("field case 108: arithmetic beyond 2^31 and up to the limit") {
  std::int64_t const big = (std::int64_t{1} << 31) + 7;
  Partition const partition{one_unit({big, 5, big}), 3};
  Segment const& segment = partition.segment(SegmentId{0});
  CHECK(partition.offset_of(ParameterId{1}) == (std::int64_t{1} << 31) + 32);
  CHECK(partition.offset_of(ParameterId{2}) == (std::int64_t{1} << 31) + 64);
  CHECK(segment.span_elements == (std::int64_t{1} << 32) + 71);
  CHECK(segment.elements == 2 * big + 5);
  CHECK(segment.shard_elements == 1'431'655'808);  // 128 * ceil((2^32 + 71) / 384)
  CHECK(partition.owner(SegmentId{0}, segment.span_elements - 1) == 2);
  CHECK(partition.owner(ParameterId{2}, 0) == 1);
  CHECK(partition.shard_range(SegmentId{0}, 2) == ElementRange{2 * 1'431'655'808LL, 3 * 1'431'655'808LL});
  CHECK(partition.owned_elements(0) + partition.owned_elements(1) + partition.owned_elements(2) == 2 * big + 5);
  std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t, std::int64_t>> pieces;
  partition.pieces(SegmentId{0}, partition.shard_range(SegmentId{0}, 1), [&](ParameterId parameter, auto first, auto offset, auto count) {
    pieces.emplace_back(to_index(parameter), first, offset, count);
  });
  std::int64_t const s = 1'431'655'808;
  std::int64_t const third = (std::int64_t{1} << 31) + 64;
  CHECK(pieces == decltype(pieces){{0, s, s, big - s}, {1, 0, third - 32, 5}, {2, 0, third, 2 * s - third}});

  Partition const one_shard{one_unit({big}), 1};
  CHECK(one_shard.shard_range(SegmentId{0}, 0).size() == (std::int64_t{1} << 31) + 128);
  CHECK(Partition(one_unit({zero::max_elements}), 1024).padded_elements() == zero::max_elements);
  CHECK_THROWS_AS(Partition(one_unit({zero::max_elements}), 3), LayoutError);                           // padded it would be more
  CHECK_THROWS_AS(Partition(one_unit({zero::max_elements - 1, 1}), 1), LayoutError);                    // aligned it would be more
  CHECK_THROWS_AS(Partition(one_unit({1}), 0x7fffffff, {.shard_alignment = 0x7fffffff}), LayoutError);  // 2^62 of padding
}

TEST_CASE("ranges_are_clipped_to_any_two_places_in_a_segment") {
  Partition const partition{one_unit({3, 0, 5, 0, 0, 2}), 2, {.shard_alignment = 8, .parameter_alignment = 4}};
  Segment const& segment = partition.segment(SegmentId{0});
  CHECK(segment.span_elements == 14);  // 3, gap, 5 at 4 to 9, gap, 2 at 12
  std::vector<std::int32_t> parameter_at(16, -1);
  for (ParameterId const id : partition.parameters(SegmentId{0})) {
    for (std::int64_t i = 0; i < partition.layout().elements(id); ++i) {
      parameter_at[static_cast<std::size_t>(partition.offset_of(id) + i)] = to_index(id);
    }
  }
  for (std::int64_t begin = 0; begin <= 16; ++begin) {
    for (std::int64_t end = begin; end <= 16; ++end) {
      std::vector<std::int32_t> found(16, -1);
      partition.pieces(SegmentId{0}, begin, end, [&](ParameterId id, std::int64_t, std::int64_t offset, std::int64_t count) {
        for (std::int64_t i = offset; i < offset + count; ++i) {
          found[static_cast<std::size_t>(i)] = to_index(id);
        }
      });
      std::int64_t count = 0;
      bool equal = true;
      for (std::int64_t i = 0; i < 16; ++i) {
        std::int32_t const expected = i >= begin && i < end ? parameter_at[static_cast<std::size_t>(i)] : -1;
        equal = equal && found[static_cast<std::size_t>(i)] == expected;
        count += expected == -1 ? 0 : 1;
      }
      CHECK(equal);
      CHECK(partition.elements(SegmentId{0}, {begin, end}) == count);
    }
  }
}

TEST_CASE("what_f_throws_passes_through_pieces") {
  Partition const partition{one_unit({3}), 1};
  CHECK_THROWS_AS(partition.pieces(SegmentId{0}, 0, 3, [](ParameterId, std::int64_t, std::int64_t, std::int64_t) { throw 7; }), int);
}

TEST_CASE("field case 61: the hash changes with the layout, the ranks and each option") {
  std::set<std::uint64_t> const hashes{Partition(three_units(), 2).hash(),
                                       Partition(one_unit({3}), 2).hash(),
                                       Partition(three_units(), 3).hash(),
                                       Partition(three_units(), 2, {.shard_alignment = 64}).hash(),
                                       Partition(three_units(), 2, {.parameter_alignment = 64}).hash(),
                                       Partition(three_units(), 2, {.shard_alignment = 32, .parameter_alignment = 128}).hash()};
  CHECK(hashes.size() == 6);
}

template <class F>
std::string message_of(F call) {
  try {
    call();
  } catch (LayoutError const& error) {
    CHECK(std::string(error.where().file).find("partition.cpp") != std::string::npos);
    return error.what();
  }
  return "";
}

TEST_CASE("mistakes_are_named_with_their_place") {
  Partition const p{three_units(), 2};
  auto const has = [](std::string const& text, std::string const& words) {
    CAPTURE(text);
    CHECK(text.find(words) != std::string::npos);
  };
  has(message_of([] { static_cast<void>(Partition{three_units(), 0}); }), "number of ranks of a partition cannot be 0");
  has(message_of([] { static_cast<void>(Partition{three_units(), -2}); }), "-2");
  has(message_of([] { static_cast<void>(Partition{three_units(), 1, {.shard_alignment = 0}}); }), "shard alignment");
  has(message_of([] { static_cast<void>(Partition{three_units(), 1, {.parameter_alignment = -4}}); }), "parameter alignment");
  has(message_of([] { static_cast<void>(Partition{three_units(), 1, {.shard_alignment = std::int64_t{1} << 31}}); }), "2147483648");
  has(message_of([&] { static_cast<void>(p.segment(SegmentId{4})); }), "segment 4 (unknown: there are 4)");
  has(message_of([&] { static_cast<void>(p.segments(Unit{3})); }), "unit has the id 3");
  has(message_of([&] { static_cast<void>(p.segment_of(ParameterId{5})); }), "parameter has the id 5");
  has(message_of([&] { static_cast<void>(p.shard_range(SegmentId{0}, 2)); }), "rank has the number 2");
  has(message_of([&] { static_cast<void>(p.owned_elements(-1)); }), "rank has the number -1");
  has(message_of([&] { static_cast<void>(p.owner(SegmentId{1}, 256)); }), "segment 1 (unit 'a', frozen) has 256 padded elements: 256");
  has(message_of([&] { static_cast<void>(p.owner(SegmentId{1}, -1)); }), "-1");
  has(message_of([&] { static_cast<void>(p.owner(ParameterId{1}, 3)); }), "parameter 'f' has no element 3");
  has(message_of([&] { static_cast<void>(p.elements(SegmentId{2}, {0, 257})); }), "tied 't'");
  auto const none = [](ParameterId, std::int64_t, std::int64_t, std::int64_t) {};
  has(message_of([&] { p.pieces(SegmentId{0}, 5, 4, none); }), "5 to 4");
  has(message_of([&] { p.pieces(SegmentId{0}, ElementRange{-1, 4}, none); }), "-1 to 4");
}

TEST_CASE("a_copy_or_a_move_of_a_partition_stands_alone") {
  Partition original{three_units(), 2};
  Partition const copy = original;
  Partition const moved = std::move(original);
  check_geometry(copy);
  check_geometry(moved);
  CHECK(copy.hash() == moved.hash());
}

}  // namespace
