// SPDX-License-Identifier: Apache-2.0
#include <zero/core/plain_array.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "support/allocations.hpp"

namespace {

using zero::detail::FixedArray;
using zero::detail::PlainArray;

constexpr bool does_the_same_in_constant_expressions() {
  PlainArray<int> a;
  for (int i = 0; i < 100; ++i) a.push_back(i);
  a.insert(0, -1);
  a.insert(50, -2);
  a.insert(a.size(), -3);
  a.append(a.data() + 1, 3);
  PlainArray<int> b = a;
  b[0] = 7;
  PlainArray<PlainArray<int>> nested(2, a);
  nested.push_back(std::move(b));
  int sum = 0;
  for (int i : nested[2]) sum += i;
  return a.size() == 106 && a[0] == -1 && a[50] == -2 && a[51] == 49 && a[102] == -3 && a[103] == 0 && a[105] == 2 && nested[1][0] == -1 &&
         sum == 4950 + 7 - 2 - 3 + 0 + 1 + 2 && nested.size() == 3;
}
static_assert(does_the_same_in_constant_expressions());

// Also for what holds one: an exception must be able to leave a copy.
struct Holder {
  PlainArray<int> array;
};
static_assert(!std::is_nothrow_copy_assignable_v<Holder> && std::is_nothrow_move_assignable_v<Holder>);

}  // namespace

TEST_CASE("an array grows, keeps its elements, and is a value") {
  CHECK(does_the_same_in_constant_expressions());
  PlainArray<std::string> a(3, "x");
  a.push_back("a text that is too long for a string without memory of its own");
  a.insert(1, "y");
  CHECK(a.size() == 5);
  PlainArray<std::string> const copy = a;
  PlainArray<std::string> moved = std::move(a);
  CHECK(copy[1] == "y");
  CHECK(copy[4] == moved[4]);
  CHECK(moved.size() == 5);
  a = copy;
  moved = PlainArray<std::string>();
  CHECK(moved.empty());
  CHECK(a[0] + a[1] + a[2] + a[3] == "xyxx");
  a.assign(2, a[1]);
  CHECK(a.size() == 2);
  CHECK(a[0] + a[1] == "yy");
}

TEST_CASE("what is appended may lie in the array, also where that has to grow") {
  PlainArray<char> text;
  text.append("abc", 3);
  while (text.size() < 1000) text.append(text.data(), text.size());
  bool right = true;
  for (std::size_t i = 0; i < text.size(); ++i) right = right && text[i] == "abc"[i % 3];
  CHECK(right);
  PlainArray<std::string> strings(1, "first");
  for (int i = 0; i < 20; ++i) strings.append(strings.data(), 1);
  for (std::string const& s : strings) CHECK(s == "first");
  for (int i = 0; i < 20; ++i) strings.push_back(strings[0]);
  CHECK(strings[0] + strings[40] == "firstfirst");
}

TEST_CASE("what has room does not allocate") {
  PlainArray<int> a;
  a.reserve_more(5);
  CHECK(a.capacity() >= 5);
  int const* const before = a.data();
  std::int64_t const allocations = zero::test::allocations();
  for (int i = 0; i < 5; ++i) a.insert(0, i);
  CHECK(zero::test::allocations() == allocations);
  CHECK(a.data() == before);
  CHECK(a[0] == 4);
}

TEST_CASE("elements of a fixed array stay where they are") {
  FixedArray<std::atomic<int>> a(3);
  CHECK(a[2].load() == 0);
  a[1] = 5;
  std::atomic<int>* const where = a.data();
  FixedArray<std::atomic<int>> b = std::move(a);
  CHECK(a.data() == nullptr);
  CHECK(b.data() == where);
  a = std::move(b);
  CHECK(a[1].load() == 5);
  auto const shared = std::make_shared<int>(1);
  {
    FixedArray<std::shared_ptr<int>> owners(2);
    owners[1] = shared;
    CHECK(shared.use_count() == 2);
    owners = FixedArray<std::shared_ptr<int>>(1);
    CHECK(shared.use_count() == 1);
    owners[0] = shared;
  }
  CHECK(shared.use_count() == 1);
}
