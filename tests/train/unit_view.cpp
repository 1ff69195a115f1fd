// SPDX-License-Identifier: Apache-2.0
#include <zero/train/unit_view.hpp>

#include <doctest/doctest.h>

#include <string>
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

namespace {

/// What a call on `line` of this file is refused with: a text, or why it is not the error that was wanted.
template <class E, class F>
std::string refusal(int line, F call) {
  try {
    static_cast<void>(call());
    return "nothing was thrown";
  } catch (E const& error) {
    bool const here = error.where().line == line && std::string(error.where().file).find("tests/train/unit_view.cpp") != std::string::npos;
    return here ? error.what() : std::string("another place: ") + error.what();
  } catch (std::exception const& error) {
    return std::string("another type: ") + error.what();
  }
}

bool says(std::string const& text, char const* part) { return text.find(part) != std::string::npos && text.find("another ") != 0; }

}  // namespace

TEST_CASE("what a unit does not use, and a wrong number of pointers, are refused where the caller asked") {
  using zero::LayoutError;
  Example const e;
  float* pointer = nullptr;
  UnitView<float> const embed{e.layout, e.embed, &pointer};
  char const* const other = "unit 'embed' does not use parameter 'block.weight'";
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed.data(e.weight); }), other));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed.data(ParameterId{7}); }), "no parameter has the id 7"));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed["weight"]; }), "unit 'embed' uses no parameter named 'weight'"));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed[std::string("weight")]; }), "uses no parameter named 'weight'"));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed[1]; }), "unit 'embed' has 1 parameters, none with the number 1"));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed[-1]; }), "none with the number -1"));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed[Block::tokens]; }), "none with the number 2"));
  CHECK(says(refusal<LayoutError>(__LINE__, [&] { return embed.elements(1); }), "none with the number 1"));
  CHECK(says(refusal<zero::UsageError>(__LINE__, [&] { return zero::pointers<2>(e.view()); }), "the unit has 3 parameters"));
}

TEST_CASE("an empty view has no parameters and says so, however it is asked") {
  using zero::UsageError;
  UnitView<float> const empty;
  CHECK(empty.size() == 0);
  CHECK(empty.ids().empty());
  char const* const text = "an empty or released view has no parameters";
  CHECK(says(refusal<UsageError>(__LINE__, [&] { return empty["weight"]; }), text));
  CHECK(says(refusal<UsageError>(__LINE__, [&] { return empty[0]; }), text));
  CHECK(says(refusal<UsageError>(__LINE__, [&] { return empty[Block::weight]; }), text));
  CHECK(says(refusal<UsageError>(__LINE__, [&] { return empty.data(ParameterId{0}); }), text));
  CHECK(says(refusal<UsageError>(__LINE__, [&] { return empty.elements(0); }), text));
  CHECK(zero::pointers<0>(empty).empty());
}
