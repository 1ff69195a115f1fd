// SPDX-License-Identifier: Apache-2.0
/// @file
/// CUDA graphs where there is something to communicate, over the stand-in runtime: gathers and reductions are captured and replayed, and a
/// capture that does not come about leaves what is under way, or resident, as it was. The peer is pretended: see `Mirror`.

#include <zero/train/captured_graph.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/device_training.hpp"
#include "support/gate.hpp"
#include "support/standin/standin_cuda.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaStream;
using zero::CudaStreamRef;
using zero::SourceLocation;

/// Rank 0 of two, whose peer holds the same and calls the same, and whose sums are its own addends: copies on the stream, all captured.
class Mirror {
public:
  using Device = CudaDevice;

  explicit Mirror(int* gathers = nullptr) : gathers_(gathers) {}

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 2; }
  void abort(std::exception_ptr) noexcept {}
  [[nodiscard]] Mirror split(int, int = 0, SourceLocation = SourceLocation::current()) { return *this; }
  template <class Body>
  void group(CudaStreamRef, Body&& body) {
    body();
  }

  template <class T>
  void enqueue(CudaStreamRef stream, zero::AllGather<T> const& o, SourceLocation where = SourceLocation::current()) {
    if (gathers_ != nullptr && o.label.subject == zero::Subject::parameters) ++*gathers_;
    for (std::int64_t r = 0; r < 2; ++r) copy(stream, o.receive + r * o.count, o.send, o.count, where);
  }
  template <class T, class Op>
  void enqueue(CudaStreamRef stream, zero::ReduceScatter<T, Op> const& o, SourceLocation where = SourceLocation::current()) {
    copy(stream, o.receive, o.send, o.count, where);
  }
  template <class T, class Op>
  void enqueue(CudaStreamRef stream, zero::AllReduce<T, Op> const& o, SourceLocation where = SourceLocation::current()) {
    copy(stream, o.receive, o.send, o.count, where);
  }
  template <class T>
  void enqueue(CudaStreamRef stream, zero::AllToAll<T> const& o, SourceLocation where = SourceLocation::current()) {
    for (std::int64_t r = 0; r < 2; ++r) copy(stream, o.receive + r * o.count, o.send, o.count, where);
  }
  template <class T>
  void enqueue(CudaStreamRef, zero::Broadcast<T> const&, SourceLocation = SourceLocation::current()) {}
  void enqueue(CudaStreamRef, zero::Barrier const&, SourceLocation = SourceLocation::current()) {}

private:
  template <class T>
  static void copy(CudaStreamRef stream, T* to, T const* from, std::int64_t count, SourceLocation where) {
    CudaDevice::copy(stream, to, from, count * static_cast<std::int64_t>(sizeof(T)), where);
  }

  int* gathers_;
};

static_assert(zero::check_communicator<Mirror>());

/// Two units, of which the second uses a parameter of the first.
zero::ParameterLayout tied_layout() {
  zero::ParameterLayout layout;
  zero::Unit const first = layout.add_unit("first");
  zero::ParameterId const tied = layout.add(first, "first.tied", {300});
  layout.add(first, "first.own", {77});
  zero::Unit const second = layout.add_unit("second");
  layout.add(second, "second.own", {129});
  layout.tie(tied, second);
  return layout;
}

template <class S>
struct Loop {
  using P = zero::Precision<zero::bf16>;

  /// @param separate  whether reductions have a stream of their own
  explicit Loop(bool separate = false)
      : parameters(layout, mirror, zero::Streams<CudaDevice>{compute, communication, separate ? reductions : communication}, memory) {
    parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
  }

  template <class Pass>
  void train_unit(Pass& pass, zero::Unit unit, float target) {
    auto weights = pass.gather(unit);
    auto gradients = pass.gradients(unit);
    zero::UnitView<typename P::gradient> const into = gradients;
    zero::UnitView<typename P::parameter const> const of = weights;
    for (std::size_t k = 0; k < into.ids().size(); ++k) {
      CudaDevice::for_each(compute, layout.elements(into.ids()[k]),
                           zero::test::PullTo<typename P::parameter, typename P::gradient>{into[k], of[k], target});
    }
    gradients.hand_over();
  }
  void pass(bool last) {
    auto pass = parameters.training_pass({.last = last});
    for (zero::Unit unit : layout.units().reversed()) train_unit(pass, unit, last ? 1.0f : 2.0f);
    pass.finish();
  }
  zero::Decision<CudaDevice> step() { return optimizer.step(parameters, {.max_norm = 1.5, .micro_batches = 2}); }
  zero::Decision<CudaDevice> passes_and_step() {
    pass(false);
    pass(true);
    return step();
  }

  [[nodiscard]] std::vector<std::vector<unsigned char>> contents() {
    std::vector<std::vector<unsigned char>> result;
    for (zero::SegmentId segment : parameters.partition().segments()) {
      auto const stored = parameters.stored(segment).storage();
      auto& bytes = result.emplace_back(stored.size_bytes());
      CudaDevice::copy(compute, bytes.data(), stored.data(), static_cast<std::int64_t>(bytes.size()));
      compute.synchronize();
    }
    return result;
  }

  int gathers = 0;
  CudaStream compute{{.events = 4}};
  CudaStream communication{{.events = 4}};
  CudaStream reductions{{.events = 4}};
  zero::CudaMemory memory;
  zero::ParameterLayout layout = tied_layout();
  Mirror mirror{&gathers};
  zero::ShardedParameters<S, P, Mirror> parameters;
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.05}};
};

template <class S>
void check_replays(bool separate) {
  zero::standin::reset();
  std::vector<std::vector<unsigned char>> expected;
  {
    Loop<S> loop;
    for (int i = 0; i < 6; ++i) static_cast<void>(loop.passes_and_step());
    expected = loop.contents();
  }
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 100});
    Loop<S> loop(separate);
    static_cast<void>(loop.passes_and_step());
    auto const whole = loop.parameters.capture([&] { static_cast<void>(loop.passes_and_step()); });
    static_cast<void>(loop.parameters.replay(whole));
    static_cast<void>(loop.parameters.replay(whole));
    loop.pass(false);
    auto const rest = loop.parameters.capture([&] {
      loop.pass(true);
      static_cast<void>(loop.step());
    });
    static_cast<void>(loop.parameters.replay(rest));
    loop.pass(false);
    static_cast<void>(loop.parameters.replay(rest));
    // What a graph of a pass alone leaves under way is part of it.
    auto const first = loop.parameters.capture([&] { loop.pass(false); });
    static_cast<void>(loop.parameters.replay(first));
    auto const decision = loop.parameters.replay(rest);
    CHECK(decision.wait().applied_steps == 6);
    CHECK_MESSAGE(loop.contents() == expected, seed);
  }
}

}  // namespace

TEST_CASE("gathers and reductions are replayed, behind and before those of calls, on one stream and on two") {
  for (bool const separate : {false, true}) {
    CAPTURE(separate);
    check_replays<zero::Stage0>(separate);
    check_replays<zero::Stage1>(separate);
    check_replays<zero::Stage2>(separate);
    check_replays<zero::Stage3>(separate);
  }
}

TEST_CASE("a replay runs behind reductions that passes by calls have left on a stream of their own") {
  zero::standin::reset();
  std::vector<std::vector<unsigned char>> expected;
  {
    Loop<zero::Stage2> loop;
    for (int i = 0; i < 3; ++i) static_cast<void>(loop.passes_and_step());
    expected = loop.contents();
  }
  Loop<zero::Stage2> loop(true);
  static_cast<void>(loop.passes_and_step());
  loop.pass(false);
  auto const rest = loop.parameters.capture([&] {
    loop.pass(true);
    static_cast<void>(loop.step());
  });
  static_cast<void>(loop.parameters.replay(rest));
  loop.compute.synchronize();
  zero::test::Gate gate;
  {
    zero::test::OpenAtEnd const open(gate);
    REQUIRE(zero::standin::launch(loop.reductions.native(), [&gate] { gate.pass(); }) == cudaSuccess);
    loop.pass(false);  // Its reductions stand behind the gate.
    static_cast<void>(loop.parameters.replay(rest));
    CHECK_FALSE(loop.compute.record().ready());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // Time enough for a graph that does not wait.
  }
  CHECK(loop.contents() == expected);
}

TEST_CASE("a capture that needs a buffer for a gather is refused, and so is none after passes by calls") {
  zero::standin::reset();
  Loop<zero::Stage3> loop;
  auto const inference = [&] {
    auto pass = loop.parameters.inference_pass();
    for (zero::Unit unit : loop.layout.units()) auto const weights = pass.gather(unit);
  };
  CHECK_THROWS_WITH_AS(static_cast<void>(loop.parameters.capture(inference)),
                       doctest::Contains("run such a pass, or reserve(), before the capture"), zero::UsageError);
  inference();  // Shows anew what passes gather: the one that was captured was cut short.
  inference();  // Gathers that ahead.
  auto const graph = loop.parameters.capture(inference);
  static_cast<void>(loop.parameters.replay(graph));
  loop.compute.synchronize();
}

namespace {

template <class S>
void check_first_capture() {
  zero::standin::reset();
  Loop<S> by_calls;
  for (int i = 0; i < 3; ++i) static_cast<void>(by_calls.passes_and_step());
  Loop<S> loop;
  loop.parameters.reserve({.micro_batches = 2});
  auto const graph = loop.parameters.capture([&] { static_cast<void>(loop.passes_and_step()); });
  for (int i = 0; i < 3; ++i) static_cast<void>(loop.parameters.replay(graph));
  CHECK(loop.contents() == by_calls.contents());
}

}  // namespace

TEST_CASE("a capture before all passes finds its buffers where they were reserved") {
  SUBCASE("Stage2") { check_first_capture<zero::Stage2>(); }
  SUBCASE("Stage3") { check_first_capture<zero::Stage3>(); }
}

TEST_CASE("weights that a failed capture gathered count for nothing, also where its pass is still there") {
  zero::standin::reset();
  Loop<zero::Stage3> loop;
  static_cast<void>(loop.passes_and_step());
  auto const units = loop.layout.units();
  auto const gathers_of_the_second_unit = [&] {
    int const before = loop.gathers;
    auto pass = loop.parameters.inference_pass();
    static_cast<void>(pass.gather(units[1]));
    return loop.gathers - before;
  };
  int const expected = gathers_of_the_second_unit();
  using Pass = decltype(loop.parameters.inference_pass());
  std::unique_ptr<Pass> held;
  CHECK_THROWS_AS(static_cast<void>(loop.parameters.capture([&] {
                    held.reset(new Pass(loop.parameters.inference_pass()));
                    static_cast<void>(held->gather(units[0]));  // The tied parameter stays for the second unit.
                    throw std::runtime_error("in the capture");
                  })),
                  std::runtime_error);
  held.reset();
  CHECK(gathers_of_the_second_unit() == expected);
  CHECK(expected == 2);
  static_cast<void>(loop.passes_and_step());
  loop.compute.synchronize();
}

TEST_CASE("a capture that is refused leaves reductions under way with their buffers") {
  zero::standin::reset();
  std::vector<std::vector<unsigned char>> expected;
  {
    Loop<zero::Stage2> loop;
    static_cast<void>(loop.passes_and_step());
    static_cast<void>(loop.passes_and_step());
    expected = loop.contents();
  }
  Loop<zero::Stage2> loop;
  static_cast<void>(loop.passes_and_step());
  loop.compute.synchronize();
  zero::test::Gate gate;
  {
    zero::test::OpenAtEnd const open(gate);
    REQUIRE(zero::standin::launch(loop.communication.native(), [&gate] { gate.pass(); }) == cudaSuccess);
    loop.pass(false);  // Its reductions stand behind the gate.
    REQUIRE(cudaStreamBeginCapture(loop.compute.native(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK_THROWS_AS(static_cast<void>(loop.parameters.capture([&] { loop.pass(true); })), zero::UsageError);
    cudaGraph_t native = nullptr;
    REQUIRE(cudaStreamEndCapture(loop.compute.native(), &native) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(native) == cudaSuccess);
    loop.pass(true);
    // The compute stream has the time to spoil what the reductions have yet to read.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  static_cast<void>(loop.step());
  CHECK(loop.contents() == expected);
}
