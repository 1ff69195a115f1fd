// SPDX-License-Identifier: Apache-2.0
#include <zero/core/hash.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace {

constexpr std::uint64_t of(std::string_view text) { return zero::Hasher{}.add(text).value(); }

static_assert(of("weight") == of("weight") && of("weight") != of("bias"), "a constant expression");

}  // namespace

TEST_CASE("what is added, and in which order and portions, makes the hash") {
  using zero::Hasher;
  CHECK(Hasher{}.add("ab").add("c").value() != Hasher{}.add("a").add("bc").value());
  CHECK(Hasher{}.add(std::uint64_t{1}).add(std::uint64_t{2}).value() != Hasher{}.add(std::uint64_t{2}).add(std::uint64_t{1}).value());
  CHECK(Hasher{}.add(std::uint64_t{0}).value() != Hasher{}.value());
  CHECK(Hasher{}.add("").value() != Hasher{}.value());
  CHECK(of(std::string_view("a\0b", 3)) != of(std::string_view("a\0c", 3)));
}

TEST_CASE("no two of many similar texts and numbers collide, and about half of the bits differ") {
  std::set<std::uint64_t> seen;
  std::int64_t bits = 0;
  for (int i = 0; i < 20'000; ++i) {
    seen.insert(of("transformer.h." + std::to_string(i) + ".weight"));
    std::uint64_t const here = zero::Hasher{}.add(static_cast<std::uint64_t>(i)).value();
    std::uint64_t const next = zero::Hasher{}.add(static_cast<std::uint64_t>(i + 1)).value();
    bits += std::popcount(here ^ next);
    seen.insert(here);
  }
  CHECK(seen.size() == 40'000);
  CHECK(bits > 20'000 * 30);
  CHECK(bits < 20'000 * 34);
}
