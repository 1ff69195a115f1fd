// SPDX-License-Identifier: Apache-2.0
#include <zero/train/stage.hpp>

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

#include "support/stages.hpp"

namespace {

using zero::Partial;
using zero::Replicated;
using zero::Sharded;
using zero::test::Triple;

template <class P>
constexpr bool six_stages = zero::Stage<Triple<P, Partial, Replicated>> && zero::Stage<Triple<P, Partial, Sharded>> &&
                            zero::Stage<Triple<P, Sharded, Replicated>> && zero::Stage<Triple<P, Sharded, Sharded>> &&
                            zero::Stage<Triple<P, Replicated, Replicated>> && zero::Stage<Triple<P, Replicated, Sharded>>;
static_assert(six_stages<Replicated> && six_stages<Sharded>, "all twelve triples are stages");
static_assert(!zero::Stage<Triple<Partial, Partial, Sharded>>);
static_assert(!zero::Stage<Triple<Sharded, Partial, Partial>>);
static_assert(!zero::Stage<Triple<int, Partial, Sharded>>);
static_assert(!zero::Stage<int>);

// Each stage differs from the one before in one column.
template <class A, class B>
constexpr int different =
    !std::is_same_v<typename A::parameters, typename B::parameters> + !std::is_same_v<typename A::gradients, typename B::gradients> +
    !std::is_same_v<typename A::optimizer_states, typename B::optimizer_states>;
static_assert(different<zero::Stage0, zero::Stage1> == 1 && different<zero::Stage1, zero::Stage2> == 1 &&
              different<zero::Stage2, zero::Stage3> == 1 && different<zero::Stage0, zero::Stage3> == 3);

}  // namespace

TEST_CASE("a stage is chosen at run time by its number") {
  for (int number : {0, 1, 2, 3}) {
    CHECK(zero::with_stage(number, []<class S>(S) { return std::string(S::name); }) == "Stage" + std::to_string(number));
  }
  CHECK_THROWS_AS(zero::with_stage(4, []<class S>(S) {}), zero::UsageError);
  CHECK_THROWS_AS(zero::with_stage(-1, []<class S>(S) {}), zero::UsageError);
}
