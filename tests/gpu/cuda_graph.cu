// SPDX-License-Identifier: Apache-2.0
/// @file
/// Passes and steps in CUDA graphs on a GPU, one rank: a replay is what the calls are, over a skipped step and changes of the learning rate.

#include <doctest/doctest.h>

#include <zero/zero.hpp>

#include "gpu/gpu.hpp"
#include "support/graph_loop.hpp"

namespace {

template <class S, class P>
void check_stage() {
  zero::test::GraphRun const expected = zero::test::expected_of_replays<S, P>();
  for (bool const overlap : {true, false}) {
    CAPTURE(overlap);
    zero::test::check_replays<S, P>(overlap, expected);
  }
}

}  // namespace

TEST_CASE("replays_are_what_the_calls_are_over_a_skipped_step_and_changes_of_the_learning_rate") {
  SUBCASE("Stage0, bf16") { check_stage<zero::Stage0, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage1, fp32") { check_stage<zero::Stage1, zero::Precision<float>>(); }
  SUBCASE("Stage2, bf16") { check_stage<zero::Stage2, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage3, bf16") { check_stage<zero::Stage3, zero::Precision<zero::bf16>>(); }
}

TEST_CASE("several_replays_are_counted_at_once") {
  using Loop = zero::test::GraphLoop<zero::Stage3, zero::Precision<zero::bf16>>;
  Loop loop(true);
  Loop other(true);
  for (Loop* l : {&loop, &other}) {
    l->set_target(1);
    static_cast<void>(l->passes_and_step());
  }
  auto const graph = loop.capture();
  for (int i = 0; i < 6; ++i) REQUIRE(cudaGraphLaunch(graph.graph().native(), loop.compute.native()) == cudaSuccess);
  zero::Decision<zero::CudaDevice> const last = loop.parameters.replayed(graph, 6);
  zero::Decision<zero::CudaDevice> expected;
  for (int i = 0; i < 6; ++i) expected = other.passes_and_step();
  CHECK(last.number() == 7);
  CHECK(last.wait().norm == expected.wait().norm);
  CHECK(last.wait().applied_steps == 7);
  CHECK(loop.contents() == other.contents());
}

TEST_CASE("a_pass_that_needs_new_memory_is_not_captured") {
  zero::test::GraphLoop<zero::Stage2, zero::Precision<zero::bf16>> loop(true);
  zero::test::prepare(loop, 0);
  CHECK_THROWS_AS(static_cast<void>(loop.capture()), zero::UsageError);
  static_cast<void>(loop.passes_and_step());
  auto const graph = loop.capture();
  CHECK(loop.parameters.replay(graph).wait().applied);
}
