// SPDX-License-Identifier: Apache-2.0
/// @file
/// Passes and steps in CUDA graphs over the stand-in runtime: a replay is what the calls are, for bits and for what the host counts, and what
/// cannot be captured or replayed is refused before anything has changed.

#include <zero/train/captured_graph.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <zero/comm/operations.hpp>
#include <zero/comm/self.hpp>
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/failing_calls.hpp"
#include "support/graph_loop.hpp"
#include "support/standin/standin_cuda.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaStream;
using zero::Decision;
using zero::test::GraphLoop;
using zero::test::GraphRun;
using zero::test::prepare;

template <class S, class P>
void check_stage() {
  zero::standin::reset();
  GraphRun const expected = zero::test::expected_of_replays<S, P>();
  for (std::uint64_t seed = 0; seed <= 4; ++seed) {
    CAPTURE(seed);
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 100});
    zero::test::check_replays<S, P>(seed % 2 == 0, expected);
    CHECK(zero::standin::live() == zero::standin::Live{});
  }
}

using Stage2Loop = GraphLoop<zero::Stage2, zero::Precision<zero::bf16>>;

/// Trains on, and checks that it comes to what an untouched loop comes to.
void check_untouched(Stage2Loop& loop, int steps_before) {
  Stage2Loop other(true);
  for (int step = 0; step < steps_before + 2; ++step) {
    prepare(other, step);
    GraphRun of_other;
    of_other.add(other.passes_and_step());
    if (step < steps_before) continue;
    prepare(loop, step);
    GraphRun of_loop;
    of_loop.add(loop.passes_and_step());
    CHECK(of_loop == of_other);
  }
  CHECK(loop.contents() == other.contents());
}

}  // namespace

TEST_CASE("replays_are_what_the_calls_are_over_a_skipped_step_and_changes_of_the_learning_rate") {
  SUBCASE("Stage0, bf16") { check_stage<zero::Stage0, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage0, fp32") { check_stage<zero::Stage0, zero::Precision<float>>(); }
  SUBCASE("Stage1, fp32") { check_stage<zero::Stage1, zero::Precision<float>>(); }
  SUBCASE("Stage2, bf16") { check_stage<zero::Stage2, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage3, fp32") { check_stage<zero::Stage3, zero::Precision<float>>(); }
  SUBCASE("Stage3, bf16") { check_stage<zero::Stage3, zero::Precision<zero::bf16>>(); }
}

TEST_CASE("several_replays_are_counted_at_once") {
  zero::standin::reset();
  Stage2Loop loop(true);
  Stage2Loop other(true);
  for (Stage2Loop* l : {&loop, &other}) {
    l->set_target(1);
    static_cast<void>(l->passes_and_step());
  }
  auto const graph = loop.capture();
  for (int i = 0; i < 6; ++i) {
    // With the options of the capture, which are those of the device until others are uploaded.
    REQUIRE(cudaGraphLaunch(graph.graph().native(), loop.compute.native()) == cudaSuccess);
  }
  CHECK(loop.parameters.replayed(graph, 0).number() == 0);
  Decision<CudaDevice> const last = loop.parameters.replayed(graph, 6);
  Decision<CudaDevice> expected;
  for (int i = 0; i < 6; ++i) expected = other.passes_and_step();
  CHECK(last.number() == 7);
  CHECK(expected.number() == 7);
  CHECK(last.wait().norm == expected.wait().norm);
  CHECK(last.wait().applied_steps == 7);
  CHECK(loop.contents() == other.contents());
  // The reports of the last few stay readable, of calls and of replays.
  Decision<CudaDevice> const eager = loop.passes_and_step();
  Decision<CudaDevice> const replayed = loop.parameters.replay(graph);
  CHECK(last.wait().applied_steps == 7);
  CHECK(loop.at(last.state()).applied_steps == 7);  // where kernels find it
  CHECK(loop.at(eager.state()).applied_steps == 8);
  CHECK(eager.wait().applied_steps == 8);
  CHECK(replayed.wait().applied_steps == 9);
  Decision<CudaDevice> const tenth = loop.parameters.replay(graph);
  static_cast<void>(loop.parameters.replay(graph));
  CHECK(loop.at(tenth.state()).applied_steps == 10);  // also where the captured step had another number
  CHECK_THROWS_AS(static_cast<void>(last.wait()), zero::UsageError);
}

TEST_CASE("a_capture_changes_nothing") {
  zero::standin::reset();
  Stage2Loop loop(true);
  prepare(loop, 0);
  Decision<CudaDevice> const before = loop.passes_and_step();
  Decision<CudaDevice> captured;
  auto const graph = loop.parameters.capture([&] { captured = loop.passes_and_step(); });
  CHECK(captured.number() < 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(captured.wait()), doctest::Contains("this step was captured"), zero::UsageError);
  CHECK(before.wait().applied_steps == 1);
  check_untouched(loop, 1);
}

TEST_CASE("what_is_refused_in_a_capture_ends_it_and_changes_nothing") {
  zero::standin::reset();
  Stage2Loop loop(true);
  prepare(loop, 0);
  static_cast<void>(loop.passes_and_step());
  auto const refused = [&]<class Error>(Error const*, auto&& work) {
    CHECK_THROWS_AS(static_cast<void>(loop.parameters.capture(work)), Error);
    cudaGetLastError();
  };
  zero::UsageError const* const usage = nullptr;
  zero::DeviceError const* const device = nullptr;
  refused(usage, [&] { loop.compute.synchronize(); });
  refused(usage, [&] { static_cast<void>(loop.passes_and_step().wait()); });
  refused(usage, [&] { loop.optimizer.upload_options(loop.parameters); });
  refused(usage, [&] { loop.parameters.discard_gradients(); });
  refused(usage, [&] { loop.parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::constant(0); }); });
  refused(usage, [&] { static_cast<void>(loop.capture()); });
  refused(usage, [&] { static_cast<void>(loop.parameters.reduce()); });         // a step that does not end
  refused(usage, [&] { static_cast<void>(loop.parameters.training_pass()); });  // a pass that does not
  refused(usage, [&] {
    auto pass = loop.parameters.training_pass();
    loop.compute.synchronize();  // leaves a pass
  });
  std::optional<decltype(loop.parameters.training_pass())> left_open;
  std::optional<decltype(left_open->gradients(zero::Unit{}))> gradients_left_open;
  refused(usage, [&] {
    left_open.emplace(loop.parameters.engine(), zero::TrainingPassOptions{}, zero::SourceLocation::current());
    gradients_left_open.emplace(left_open->gradients(loop.layout.units()[0]));
    loop.compute.synchronize();
  });
  CHECK_THROWS_WITH_AS(left_open->finish(), doctest::Contains("this pass has ended"), zero::UsageError);
  gradients_left_open.reset();
  left_open.reset();
  CHECK_NOTHROW(static_cast<void>(loop.parameters.inference_pass()));
  refused(device, [&] {
    loop.pass(false);
    void* block = nullptr;
    CHECK(cudaMalloc(&block, 8) == cudaErrorStreamCaptureUnsupported);
    loop.pass(true);
  });
  std::runtime_error const* const own = nullptr;
  refused(own, [&] {
    auto pass = loop.parameters.training_pass();
    loop.train_unit(pass, loop.layout.units()[0]);
    auto gradients = pass.gradients(loop.layout.units()[1]);
    throw std::runtime_error("the work's own");
  });
  CHECK(zero::standin::live().graphs == 0);
  float* const number = loop.target.data();
  CHECK_NOTHROW(loop.alone.enqueue(loop.compute, zero::AllReduce<float>{.send = number, .receive = number, .count = 1, .factor = 1}));
  check_untouched(loop, 1);
}

TEST_CASE("a_capture_in_a_capture_is_refused_and_does_not_end_the_outer_one") {
  zero::standin::reset();
  Stage2Loop loop(true);
  Stage2Loop other(true);
  for (Stage2Loop* l : {&loop, &other}) {
    prepare(*l, 0);
    static_cast<void>(l->passes_and_step());
  }
  auto const graph = loop.parameters.capture([&] {
    CHECK_THROWS_WITH_AS(static_cast<void>(loop.capture()), doctest::Contains("a capture is under way"), zero::UsageError);
    static_cast<void>(loop.passes_and_step());
  });
  CHECK(loop.parameters.replay(graph).wait().norm == other.passes_and_step().wait().norm);
  CHECK(loop.contents() == other.contents());
}

TEST_CASE("a_pass_that_needs_new_memory_is_not_captured") {
  zero::standin::reset();
  Stage2Loop loop(true);
  prepare(loop, 0);
  CHECK_THROWS_WITH_AS(static_cast<void>(loop.capture()), doctest::Contains("run such a pass, or reserve(), before the capture"),
                       zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(loop.capture()), zero::UsageError);
  check_untouched(loop, 0);
  static_cast<void>(loop.capture());
}

TEST_CASE("captures_are_begun_by_the_parameters_between_passes") {
  zero::standin::reset();
  Stage2Loop loop(true);
  prepare(loop, 0);
  static_cast<void>(loop.passes_and_step());
  auto const nothing = [] {};
  REQUIRE(cudaStreamBeginCapture(loop.compute.native(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK_THROWS_WITH_AS(static_cast<void>(loop.parameters.training_pass()), doctest::Contains("not by these parameters' capture()"),
                       zero::UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(loop.parameters.reduce()), doctest::Contains("not by these parameters' capture()"),
                       zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(loop.parameters.capture(nothing)), zero::UsageError);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(loop.compute.native(), &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  {
    auto pass = loop.parameters.inference_pass();
    CHECK_THROWS_AS(static_cast<void>(loop.parameters.capture(nothing)), zero::UsageError);
    CHECK_NOTHROW(static_cast<void>(pass.gather(loop.layout.units()[0])));  // it is still open
  }
  {
    auto const whole = loop.parameters.gather_all();
    static_cast<void>(whole);
    CHECK_NOTHROW(static_cast<void>(loop.parameters.capture(nothing)));  // one rank: nothing is held
  }
  check_untouched(loop, 1);
}

TEST_CASE("replays_that_do_not_fit_are_refused_and_change_nothing") {
  zero::standin::reset();
  Stage2Loop loop(true);
  prepare(loop, 0);
  static_cast<void>(loop.passes_and_step());
  using Graph = decltype(loop.capture());
  auto& parameters = loop.parameters;
  Graph const none;
  CHECK_THROWS_WITH_AS(static_cast<void>(parameters.replay(none)), doctest::Contains("nothing was captured"), zero::UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(parameters.replayed(none)), doctest::Contains("nothing was captured"), zero::UsageError);
  Graph graph = loop.capture();
  Graph const moved = std::move(graph);
  // NOLINTNEXTLINE(bugprone-use-after-move): that is the point
  CHECK_THROWS_AS(static_cast<void>(parameters.replay(graph)), zero::UsageError);
  CHECK_THROWS_WITH_AS(static_cast<void>(parameters.replayed(moved, -1)), doctest::Contains("-1 times"), zero::UsageError);
  {
    Stage2Loop other(true);
    CHECK_THROWS_WITH_AS(static_cast<void>(other.parameters.replay(moved)), doctest::Contains("of other parameters"), zero::UsageError);
  }
  // A pass that is not the first adds to gradients that the first one overwrote.
  Graph const first = parameters.capture([&] { loop.pass(false); });
  CHECK_THROWS_WITH_AS(static_cast<void>(parameters.replayed(first, 2)), doctest::Contains("cannot follow itself"), zero::UsageError);
  loop.pass(false);
  CHECK_THROWS_WITH_AS(static_cast<void>(parameters.replay(first)), doctest::Contains("other gradients"), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(parameters.replayed(moved, 1)), zero::UsageError);
  parameters.discard_gradients();
  {
    auto const pass = parameters.inference_pass();
    CHECK_THROWS_AS(static_cast<void>(parameters.replay(moved)), zero::UsageError);
  }
  loop.optimizer.options().learning_rate = -1;
  CHECK_THROWS_WITH_AS(static_cast<void>(parameters.replay(moved)), doctest::Contains("learning_rate"), zero::UsageError);
  check_untouched(loop, 1);
}

TEST_CASE("a replay in a capture by calls of cuda's own is refused: what it holds would be counted and would not have run") {
  zero::standin::reset();
  GraphLoop<zero::Stage2, zero::Precision<float>> loop(true);
  loop.set_target(0.5f);
  static_cast<void>(loop.passes_and_step());
  auto const graph = loop.capture();
  loop.compute.synchronize();
  REQUIRE(cudaStreamBeginCapture(loop.compute.native(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK_THROWS_AS(static_cast<void>(loop.parameters.replay(graph)), zero::UsageError);
  CHECK_THROWS_AS(static_cast<void>(loop.parameters.replayed(graph)), zero::UsageError);
  CHECK_THROWS_AS(loop.optimizer.upload_options(loop.parameters), zero::UsageError);
  cudaGraph_t native = nullptr;
  REQUIRE(cudaStreamEndCapture(loop.compute.native(), &native) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(native) == cudaSuccess);
  CHECK(loop.parameters.replay(graph).wait().applied);
}

TEST_CASE("a wait for a stream outside of the capture is refused, and that stream is as before") {
  zero::standin::reset();
  GraphLoop<zero::Stage2, zero::Precision<float>> loop(true);
  static_cast<void>(loop.passes_and_step());
  CudaStream const outside{{.events = 2}};
  zero::CudaEvent const event = outside.record();
  CHECK_THROWS_AS(static_cast<void>(loop.parameters.capture([&] { outside.synchronize(); })), zero::UsageError);
  outside.throw_if_failed();
  static_cast<void>(loop.parameters.capture([&] {
    static_cast<void>(event.ready());
    for (int i = 0; i < 5; ++i) static_cast<void>(outside.record());  // Round the ring, which asks what is complete.
  }));
  outside.synchronize();
}

TEST_CASE("every call of cuda may fail in a capture and in replays: a typed error, nothing lost, nothing hangs") {
  zero::test::check_failing_calls([] { return zero::test::one_graph<zero::Stage2, zero::Precision<zero::bf16>>(true); }, 8,
                                  [](std::int64_t, std::int64_t) { return 1; });
}
