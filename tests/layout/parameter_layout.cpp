// SPDX-License-Identifier: Apache-2.0
#include <zero/layout/parameter_layout.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace {

using zero::LayoutError;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::Unit;

std::vector<ParameterId> ids(std::span<ParameterId const> span) { return {span.begin(), span.end()}; }
std::vector<Unit> ids(std::span<Unit const> span) { return {span.begin(), span.end()}; }

/// Two blocks between an embedding and a head that is tied to it; the second block's bias is frozen.
constexpr ParameterLayout small_model() {
  ParameterLayout layout;
  Unit const embedding = layout.add_unit("wte");
  ParameterId const weight = layout.add(embedding, "wte.weight", {11, 4});
  Unit const first = layout.add_unit("h.0");
  Unit const second = layout.add_unit("h.1");
  layout.add(first, "h.0.weight", {4, 4});
  layout.add(second, "h.1.weight", {4, 4});
  layout.add(first, "h.0.bias", {4});
  layout.add(second, "h.1.bias", {4}, {.trainable = false});
  Unit const head = layout.add_unit("head");
  layout.tie(weight, head);
  layout.add(head, "head.scale", {});
  return layout;
}

static_assert(small_model().unit_count() == 4 && small_model().parameter_count() == 6);
static_assert(small_model().elements() == 44 + 16 + 16 + 4 + 4 + 1 && small_model().trainable_elements() == 81);
static_assert(small_model().find("h.1.bias") == ParameterId{4} && small_model().find_unit("h.1") == Unit{2});
static_assert(small_model().name(ParameterId{3}) == "h.0.bias" && small_model().name(Unit{3}) == "head");
static_assert(small_model().shape(ParameterId{0}) == zero::Shape{11, 4} && small_model().elements(ParameterId{0}) == 44);
static_assert(!small_model().trainable(ParameterId{4}) && small_model().trainable(ParameterId{3}));
static_assert(small_model().hash() == small_model().hash());

/// Each block repeats the one before: what it is told comes out of the layout that it is told to.
constexpr ParameterLayout repeated_blocks() {
  ParameterLayout layout;
  Unit last = layout.add_unit("xxxxxxxxxx");
  ParameterId weight = layout.add(last, "xxxxxxxxxx.weight", {3, 5});
  for (int i = 0; i < 9; ++i) {
    last = layout.add_unit(layout.name(last).substr(1));
    weight = layout.add(last, layout.name(weight).substr(1), layout.shape(weight));
  }
  return layout;
}
// Checked by the compiler: in a constant expression nobody can read what has been freed.
static_assert(repeated_blocks().find_unit("x") == Unit{9} && repeated_blocks().find("x.weight") == ParameterId{9});
static_assert(repeated_blocks().elements() == 150 && repeated_blocks().shape(ParameterId{9}) == zero::Shape{3, 5});

template <class F>
void check_error(ParameterLayout& layout, F call, std::vector<std::string> const& words) {
  std::uint64_t const before = layout.hash();
  std::int64_t const elements = layout.elements();
  std::string text;
  try {
    call(layout);
  } catch (LayoutError const& error) {
    text = error.what();
    CHECK(std::string(error.where().file).find("parameter_layout.cpp") != std::string::npos);
  }
  for (std::string const& word : words) {
    CAPTURE(text);
    CAPTURE(word);
    CHECK(text.find(word) != std::string::npos);
  }
  CHECK(layout.hash() == before);
  CHECK(layout.elements() == elements);
}

TEST_CASE("a_unit_lists_its_own_parameters_in_order_and_tied_ones_last") {
  ParameterLayout const layout = small_model();
  Unit const head = layout.find_unit("head");
  CHECK(ids(layout.parameters(layout.find_unit("h.0"))) == std::vector{ParameterId{1}, ParameterId{3}});
  CHECK(ids(layout.parameters(head)) == std::vector{ParameterId{5}, ParameterId{0}});  // own, though it was added after the tie
  CHECK(ids(layout.own_parameters(head)) == std::vector{ParameterId{5}});
  CHECK(ids(layout.users(ParameterId{0})) == std::vector{Unit{0}, head});
  CHECK(ids(layout.users(ParameterId{1})) == std::vector{Unit{1}});
  CHECK(layout.tied(ParameterId{0}));
  CHECK_FALSE(layout.tied(ParameterId{1}));
  CHECK(layout.unit(ParameterId{0}) == Unit{0});
}

TEST_CASE("field case 84: a parameter is tied to several units, in the order they were told") {
  ParameterLayout layout;
  Unit const a = layout.add_unit("a");
  Unit const b = layout.add_unit("b");
  Unit const c = layout.add_unit("c");
  ParameterId const x = layout.add(c, "x", {3});
  ParameterId const y = layout.add(c, "y", {3});
  layout.tie(y, a);
  layout.tie(x, b);
  layout.tie(x, a);
  CHECK(ids(layout.users(x)) == std::vector{c, b, a});
  CHECK(ids(layout.parameters(a)) == std::vector{y, x});
  CHECK(ids(layout.own_parameters(a)).empty());
  CHECK(layout.elements() == 6);  // tied storage is counted once
}

TEST_CASE("field case 87: a tie is part of the layout and survives copies and moves") {
  ParameterLayout const original = small_model();
  ParameterLayout copy = original;
  ParameterLayout const moved = std::move(copy);
  CHECK(moved.tied(moved.find("wte.weight")));
  CHECK(ids(moved.users(ParameterId{0})) == std::vector{Unit{0}, Unit{3}});
  CHECK(moved.hash() == original.hash());
}

TEST_CASE("positions_are_found_with_and_without_gaps_in_the_ids") {
  ParameterLayout const layout = small_model();
  for (Unit const unit : layout.units()) {
    std::int32_t position = 0;
    for (ParameterId const id : layout.parameters(unit)) {
      CHECK(layout.position(unit, id) == position++);
    }
  }
  CHECK(layout.position(Unit{1}, ParameterId{2}) == -1);
  CHECK(layout.position(Unit{1}, ParameterId{-7}) == -1);
}

TEST_CASE("a_name_is_found_whole_or_relative_to_its_unit") {
  ParameterLayout const layout = small_model();
  CHECK(layout.find(Unit{1}, "bias") == ParameterId{3});
  CHECK(layout.find(Unit{2}, "bias") == ParameterId{4});
  CHECK(layout.find(Unit{2}, "h.1.bias") == ParameterId{4});
  CHECK(layout.find(Unit{3}, "wte.weight") == ParameterId{0});  // tied
  CHECK(layout.contains("h.1.bias"));
  CHECK_FALSE(layout.contains("bias"));
}

TEST_CASE("mistakes_are_named_and_change_nothing") {
  ParameterLayout layout = small_model();
  Unit const first = layout.find_unit("h.0");
  auto const x = ParameterId{0};
  check_error(layout, [](auto& l) { l.add_unit("h.0"); }, {"'h.0'"});
  check_error(layout, [](auto& l) { l.add_unit(""); }, {"name"});
  check_error(layout, [&](auto& l) { l.add(first, "", {1}); }, {"'h.0'", "name"});
  check_error(layout, [&](auto& l) { l.add(first, "h.1.bias", {1}); }, {"'h.1.bias'", "unit 'h.0'", "unit 'h.1'"});
  check_error(layout, [](auto& l) { l.add(Unit{4}, "new", {1}); }, {"unit", "4"});
  check_error(layout, [](auto& l) { l.add(Unit{-1}, "new", {1}); }, {"unit", "-1"});
  check_error(layout, [&](auto& l) { l.add(first, "new", {5, -3}); }, {"'new'", "'h.0'", "[5, -3]", "axis 1"});
  check_error(layout, [&](auto& l) { l.add(first, "new", {1 << 30, 1 << 30}); }, {"'new'", "2^56"});
  check_error(layout, [&](auto& l) { l.add(first, "new", {zero::max_elements - l.elements() + 1}); }, {"'new'", "2^56"});
  check_error(layout, [&](auto& l) { l.tie(x, Unit{0}); }, {"'wte.weight'", "'wte'", "owns"});
  check_error(layout, [&](auto& l) { l.tie(x, Unit{3}); }, {"'wte.weight'", "'head'", "already"});
  check_error(layout, [&](auto& l) { l.tie(x, Unit{9}); }, {"unit", "9"});
  check_error(layout, [&](auto& l) { l.tie(ParameterId{6}, first); }, {"parameter", "6"});
  check_error(layout, [](auto& l) { static_cast<void>(l.find("nothing")); }, {"'nothing'"});
  check_error(layout, [](auto& l) { static_cast<void>(l.find(Unit{2}, "nothing")); }, {"'nothing'", "'h.1'"});
  check_error(layout, [](auto& l) { static_cast<void>(l.find(Unit{2}, "h.0.bias")); }, {"'h.0.bias'", "'h.1'"});
  check_error(layout, [](auto& l) { static_cast<void>(l.find_unit("nothing")); }, {"'nothing'"});
  check_error(layout, [](auto& l) { static_cast<void>(l.parameters(Unit{4})); }, {"4"});
  check_error(layout, [](auto& l) { static_cast<void>(l.shape(ParameterId{6})); }, {"6"});
  check_error(layout, [](auto& l) { static_cast<void>(l.name(ParameterId{-1})); }, {"-1"});
  CHECK(layout.add(first, "new", {zero::max_elements - layout.elements()}) == ParameterId{6});
  CHECK(layout.elements() == zero::max_elements);
}

TEST_CASE("the_error_says_where_the_user_called") {
  ParameterLayout layout = small_model();
  int const line = __LINE__ + 2;
  try {
    layout.add(Unit{0}, "wte.weight", {1});
    FAIL("nothing was thrown");
  } catch (LayoutError const& error) {
    CHECK(error.where().line == line);
  }
}

TEST_CASE("field cases 2, 4, 5: scalars, empty parameters and empty units are legal") {
  ParameterLayout layout;
  Unit const nothing = layout.add_unit("nothing");
  Unit const frozen = layout.add_unit("frozen only");
  layout.add(frozen, "scalar", {}, {.trainable = false});
  layout.add(frozen, "empty", {0, 5});
  CHECK(layout.parameters(nothing).empty());
  CHECK(layout.elements() == 1);
  CHECK(layout.trainable_elements() == 0);
  CHECK(ParameterLayout{}.units().empty());
}

/// The model of the hash test with one thing changed by number; 0 changes nothing.
ParameterLayout variant(int change) {
  ParameterLayout layout;
  Unit const a = layout.add_unit(change == 1 ? "A" : "a");
  Unit const b = layout.add_unit("b");
  Unit const c = layout.add_unit("c");
  ParameterId const x = layout.add(change == 2 ? b : a, change == 3 ? "y" : "x", {2, 3});
  ParameterId const z = layout.add(b, "z",
                                   change == 4   ? zero::Shape{2, 2}
                                   : change == 5 ? zero::Shape{4, 1}
                                                 : zero::Shape{4},
                                   {.trainable = change != 6});
  if (change == 7) {
    layout.add(b, "empty", {0});
  }
  if (change == 8) {
    layout.add_unit("d");
  }
  if (change != 9) {
    layout.tie(x, c);
  }
  if (change == 10) {
    layout.tie(z, a);
  }
  return layout;
}

/// Two ties in either order, seen from one unit or from one parameter.
ParameterLayout tied_in_order(bool two_parameters, bool swapped) {
  ParameterLayout layout;
  Unit const a = layout.add_unit("a");
  Unit const b = layout.add_unit("b");
  Unit const c = layout.add_unit("c");
  ParameterId const x = layout.add(a, "x", {1});
  ParameterId const y = layout.add(a, "y", {1});
  layout.tie(swapped && two_parameters ? y : x, swapped && !two_parameters ? c : b);
  layout.tie(swapped || !two_parameters ? x : y, swapped || two_parameters ? b : c);
  return layout;
}

TEST_CASE("field case 61: the hash changes with every single thing the layout was told") {
  std::set<std::uint64_t> hashes;
  for (int change = 0; change <= 10; ++change) {
    hashes.insert(variant(change).hash());
  }
  CHECK(hashes.size() == 11);
  CHECK(variant(0).hash() == variant(0).hash());
  CHECK(tied_in_order(true, false).hash() != tied_in_order(true, true).hash());
  CHECK(tied_in_order(false, false).hash() != tied_in_order(false, true).hash());

  ParameterLayout first;
  static_cast<void>(first.add_unit("u"));
  ParameterLayout second = first;
  first.add(Unit{0}, "p", {1});
  first.add(Unit{0}, "q", {1});
  second.add(Unit{0}, "q", {1});
  second.add(Unit{0}, "p", {1});
  CHECK(first.hash() != second.hash());  // the order of declaration
}

}  // namespace
