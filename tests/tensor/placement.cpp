// SPDX-License-Identifier: Apache-2.0
#include <zero/tensor/placement.hpp>

#include <doctest/doctest.h>

#include <string>

namespace {

struct Other {};

static_assert(zero::Placement<zero::Replicated>);
static_assert(zero::Placement<zero::Sharded>);
static_assert(zero::Placement<zero::Partial>);
static_assert(!zero::Placement<Other>);
static_assert(!zero::Placement<zero::Sharded const>);
static_assert(!zero::Placement<int>);

}  // namespace

TEST_CASE("placements have the names that messages use") {
  CHECK(std::string(zero::Replicated::name) == "Replicated");
  CHECK(std::string(zero::Sharded::name) == "Sharded");
  CHECK(std::string(zero::Partial::name) == "Partial");
}
