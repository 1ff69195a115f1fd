// SPDX-License-Identifier: Apache-2.0
#include <zero/layout/ids.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <iterator>
#include <ranges>
#include <span>
#include <type_traits>
#include <vector>

namespace {

using zero::IdList;
using zero::IdRange;
using zero::ParameterId;
using zero::SegmentId;
using zero::Unit;

static_assert(sizeof(Unit) == 4 && sizeof(ParameterId) == 4 && sizeof(SegmentId) == 4);
static_assert(!std::is_convertible_v<int, Unit> && !std::is_convertible_v<Unit, int> && !std::is_convertible_v<Unit, ParameterId>);
static_assert(std::forward_iterator<IdRange<Unit>::iterator>);
static_assert(!zero::LayoutId<int>);

template <zero::LayoutId Id>
constexpr std::int32_t digits(IdRange<Id> range) {
  std::int32_t result = 0;
  for (Id const id : range) {
    result = 10 * result + to_index(id) + 1;
  }
  return result;
}

static_assert(digits(IdRange<Unit>{4}) == 1234);

constexpr Unit some[] = {Unit{3}, Unit{1}, Unit{2}};
constexpr IdList<Unit> all(some, 3);
static_assert(all.size() == 3 && all.front() == Unit{3} && all[1] == Unit{1} && all.end() - all.begin() == 3 && all.data() == some);
static_assert(all.first(1).size() == 1 && all.first(1)[0] == Unit{3} && all.subspan(1).size() == 2 && all.subspan(1)[0] == Unit{1});
static_assert(all.subspan(3).empty() && IdList<Unit>().empty() && IdList<Unit>().begin() == IdList<Unit>().end());
// Whatever takes a span takes a list.
static_assert(std::ranges::contiguous_range<IdList<Unit>> && std::ranges::sized_range<IdList<Unit>>);
static_assert(std::ranges::borrowed_range<IdList<Unit>>);
constexpr std::size_t size_of_span(std::span<Unit const> span) { return span.size(); }
static_assert(size_of_span(all) == 3);

static_assert(digits(IdRange<Unit>{4}.reversed()) == 4321);
static_assert(digits(IdRange<Unit>{4}.reversed().reversed()) == 1234);
static_assert(digits(IdRange<SegmentId>{0}) == 0 && digits(IdRange<SegmentId>{0}.reversed()) == 0);
static_assert(IdRange<Unit>{3}[0] == Unit{0} && IdRange<Unit>{3}.reversed()[0] == Unit{2});
static_assert(IdRange<Unit>{3}.size() == 3 && !IdRange<Unit>{3}.empty() && IdRange<Unit>{}.empty());
static_assert(IdRange<Unit>{3}.contains(Unit{2}) && !IdRange<Unit>{3}.contains(Unit{3}) && !IdRange<Unit>{3}.contains(Unit{-1}));

TEST_CASE("ranges_of_ids_fill_containers_in_both_orders") {
  IdRange<ParameterId> const range{3};
  IdRange<ParameterId> const back = range.reversed();
  CHECK(std::vector<ParameterId>(range.begin(), range.end()) == std::vector{ParameterId{0}, ParameterId{1}, ParameterId{2}});
  CHECK(std::vector<ParameterId>(back.begin(), back.end()) == std::vector{ParameterId{2}, ParameterId{1}, ParameterId{0}});
  auto i = range.begin();
  CHECK(*i++ == ParameterId{0});
  CHECK(*i == ParameterId{1});
}

}  // namespace
