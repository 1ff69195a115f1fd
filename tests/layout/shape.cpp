// SPDX-License-Identifier: Apache-2.0
#include <zero/layout/shape.hpp>

#include <doctest/doctest.h>

#include <string_view>
#include <vector>

namespace {

using zero::LayoutError;
using zero::Shape;

constexpr std::int64_t two_to(int exponent) { return std::int64_t{1} << exponent; }

static_assert(Shape{}.axes() == 0 && Shape{}.elements() == 1);
static_assert(Shape{5}.axes() == 1 && Shape{5}.elements() == 5 && Shape{5}[0] == 5);
static_assert(Shape{2, 3, 4}.elements() == 24 && Shape{2, 3, 4}[2] == 4);
static_assert(Shape{1, 2, 3, 4, 5, 6, 7, 8}.elements() == 40320);
static_assert(Shape{2, 3} == Shape{2, 3} && Shape{2, 3} != Shape{3, 2} && Shape{2, 3} != Shape{2, 3, 1} && Shape{} != Shape{1});
static_assert(Shape{65536, 65536}.elements() == two_to(32), "field case 108: counts are 64-bit");
static_assert(Shape{two_to(28), two_to(28)}.elements() == zero::max_elements);
static_assert(Shape{7, 0}.elements() == 0 && Shape{two_to(60), two_to(60), 0}.elements() == 0);

std::string_view message_of(Shape const& shape) {
  static std::string text;
  text.clear();
  try {
    static_cast<void>(shape.elements());
  } catch (LayoutError const& error) {
    text = error.what();
  }
  return text;
}

TEST_CASE("a_negative_extent_is_named_with_its_axis") {
  CHECK(message_of(Shape{3, -2, 4}).find("[3, -2, 4]") != std::string_view::npos);
  CHECK(message_of(Shape{3, -2, 4}).find("axis 1") != std::string_view::npos);
  CHECK(message_of(Shape{0, -2}).find("axis 1") != std::string_view::npos);
}

TEST_CASE("field case 108: products that do not fit are refused, not wrapped") {
  CHECK(message_of(Shape{two_to(28), two_to(28), 2}).find("2^56") != std::string_view::npos);
  CHECK(message_of(Shape{two_to(56) + 1}).find("2^56") != std::string_view::npos);
  CHECK(message_of(Shape{two_to(32), two_to(32)}).find("2^56") != std::string_view::npos);  // the product is 0 modulo 2^64
  CHECK(message_of(Shape{two_to(62), 4, 3}).find("2^56") != std::string_view::npos);
  CHECK(message_of(Shape{two_to(56)}).empty());
}

TEST_CASE("more_than_eight_axes_are_refused_at_the_callers_line") {
  std::vector<std::int64_t> const extents(9, 1);
  int const line = __LINE__ + 2;
  try {
    static_cast<void>(Shape{std::span<std::int64_t const>{extents}});
    FAIL("nothing was thrown");
  } catch (LayoutError const& error) {
    CHECK(error.where().line == line);
    CHECK(std::string_view{error.what()}.find("9 axes") != std::string_view::npos);
  }
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), LayoutError);
}

TEST_CASE("extents_known_at_run_time_give_the_same_shape") {
  std::vector<std::int64_t> const extents{50257, 768};
  CHECK(Shape{std::span<std::int64_t const>{extents}} == Shape{50257, 768});
  CHECK(Shape{50257, 768}.text() == "[50257, 768]");
  CHECK(Shape{}.text() == "[]");
}

}  // namespace
