// SPDX-License-Identifier: Apache-2.0
#include <zero/train/unit_view.hpp>

#include <doctest/doctest.h>

#include <type_traits>

namespace {

using zero::ParameterId;
using zero::ParameterLayout;
using zero::Unit;
using zero::UnitView;

static_assert(std::is_trivially_copyable_v<UnitView<float>>);
static_assert(std::is_convertible_v<UnitView<float>, UnitView<float const>>);
static_assert(!std::is_convertible_v<UnitView<float const>, UnitView<float>>);
using Subscript = decltype([](auto view, auto id) -> decltype(view[id]) { return view[id]; });
static_assert(!std::is_invocable_v<Subscript, UnitView<float>, ParameterId>, "an id is no position: that is data(id)");
static_assert(!std::is_invocable_v<Subscript, UnitView<float>, Unit>, "a unit is no position in another");

enum class Block { weight, bias, tokens };

struct Example {
  ParameterLayout layout;
  Unit embed = layout.add_unit("embed");
  Unit block = layout.add_unit("block");
  ParameterId tokens = layout.add(embed, "tokens", {5, 3});
  ParameterId weight = layout.add(block, "block.weight", {3, 3});
  ParameterId bias = layout.add(block, "block.bias", {3});
  float data[3] = {};
  float* pointers[3] = {&data[0], &data[1], &data[2]};

  Example() { layout.tie(tokens, block); }
  UnitView<float> view() const { return {layout, block, pointers}; }
};

}  // namespace

TEST_CASE("parameters are found by order, enum, name and id; own ones first, then tied ones") {
  Example const e;
  UnitView<float> const view = e.view();
  CHECK(view.unit() == e.block);
  CHECK(view.size() == 3);
  CHECK(view[0] == e.pointers[0]);
  CHECK(view[Block::bias] == e.pointers[1]);
  CHECK(view[Block::tokens] == e.pointers[2]);
  CHECK(view["weight"] == e.pointers[0]);
  CHECK(view["block.bias"] == e.pointers[1]);
  CHECK(view["tokens"] == e.pointers[2]);
  CHECK(view.data(e.tokens) == e.pointers[2]);
  CHECK(view.elements(0) == 9);
  CHECK(view.elements(2) == 15);
  UnitView<float const> const read_only = view;
  CHECK(read_only["weight"] == e.pointers[0]);
  auto [weight, bias, tokens] = zero::pointers<3>(view);
  CHECK(weight == e.pointers[0]);
  CHECK(bias == e.pointers[1]);
  CHECK(tokens == e.pointers[2]);
}

TEST_CASE("what a unit does not use, and a wrong number of pointers, are refused") {
  Example const e;
  float* pointer = nullptr;
  UnitView<float> const embed{e.layout, e.embed, &pointer};
  CHECK_THROWS_AS(static_cast<void>(embed.data(e.weight)), zero::LayoutError);
  CHECK_THROWS_AS(static_cast<void>(embed["weight"]), zero::LayoutError);
  CHECK_THROWS_AS(static_cast<void>(zero::pointers<2>(e.view())), zero::UsageError);
}

TEST_CASE("an empty view has no parameters") {
  UnitView<float> const empty;
  CHECK(empty.size() == 0);
  CHECK(empty.ids().empty());
  CHECK_THROWS_AS(static_cast<void>(empty["weight"]), zero::UsageError);
}
