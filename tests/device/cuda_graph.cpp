// SPDX-License-Identifier: Apache-2.0
/// @file
/// Captures of CUDA streams over the stand-in runtime: what goes into a graph, what events mean meanwhile, and what is refused.

#include <zero/device/cuda_graph.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/device/cuda_device.hpp>
#include <zero/device/host_device.hpp>

#include "support/gate.hpp"
#include "support/standin/standin_cuda.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaEvent;
using zero::CudaGraph;
using zero::CudaStream;
using zero::CudaStreamRef;
using zero::standin::Live;

static_assert(zero::CapturesGraphs<CudaDevice> && !zero::CapturesGraphs<zero::HostDevice>);
static_assert(!std::is_copy_constructible_v<CudaGraph> && std::is_nothrow_move_constructible_v<CudaGraph>);

struct Append {
  std::vector<int>* to;
  int value;
  void operator()() const { to->push_back(value); }
};

void append(CudaStreamRef stream, std::vector<int>& to, int value) { CudaDevice::run(stream, Append{&to, value}); }

/// A gate in a stream.
struct Hold {
  zero::test::Gate* gate;
  void operator()() const { gate->pass(); }
};

/// Opens the gate and waits for the streams at the end of the scope: what is queued uses the test's objects.
class QuietAtEnd {
public:
  QuietAtEnd(std::vector<CudaStreamRef> streams, zero::test::Gate& gate) : streams_(std::move(streams)), gate_(gate) {}
  QuietAtEnd(QuietAtEnd const&) = delete;
  QuietAtEnd& operator=(QuietAtEnd const&) = delete;
  ~QuietAtEnd() {
    gate_.open();
    for (CudaStreamRef stream : streams_) cudaStreamSynchronize(stream.native());
  }

private:
  std::vector<CudaStreamRef> streams_;
  zero::test::Gate& gate_;
};

}  // namespace

TEST_CASE("a_graph_holds_what_was_enqueued_in_the_capture_and_runs_at_each_launch") {
  for (std::uint64_t seed = 0; seed <= 10; ++seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 100});
    {
      CudaStream const a{{.events = 2}};
      CudaStream const b{{.events = 2}};
      std::vector<int> order;
      append(b, order, 0);  // on the other stream, and yet before the graph
      CudaGraph const graph = CudaDevice::capture(a, b, [&] {
        CHECK(a.capturing());
        CHECK(b.capturing());
        for (int i = 0; i < 4; ++i) {  // more points than the ring of events has places
          append(a, order, 2 * i + 1);
          b.wait(a.record());
          append(b, order, 2 * i + 2);
          a.wait(b.record());
        }
        append(b, order, 9);  // joined at the end
      });
      CHECK_FALSE(a.capturing());
      CHECK_FALSE(b.capturing());
      a.synchronize();
      CHECK(order == std::vector<int>{0});
      CudaDevice::launch(a, graph);
      CudaDevice::launch(a, graph);
      append(a, order, 10);
      a.synchronize();
      CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    }
    CHECK(zero::standin::live() == Live{});
  }
}

TEST_CASE("any_number_of_streams_takes_part_also_one_that_is_named_twice_or_has_several_owners") {
  for (std::uint64_t seed = 0; seed <= 10; ++seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 100});
    {
      CudaStream const a{{.events = 2}};
      CudaStream const b{{.events = 2}};
      CudaStream const c{{.events = 2}};
      CudaStream const again = CudaStream::adopt(c.native(), {.events = 2});
      std::vector<int> of_b, of_c;
      append(b, of_b, 0);
      append(c, of_c, 0);
      CudaEvent const before = again.record();
      CudaStreamRef const sides[] = {b, c, b, a, again};
      CudaGraph const graph = CudaDevice::capture(a, sides, [&] {
        append(b, of_b, 1);
        append(c, of_c, 1);
        CHECK(again.capturing());
        a.wait(before);  // before the graph anyway
        b.wait(again.record());
      });
      for (CudaStreamRef side : sides) CHECK_FALSE(side.capturing());
      CudaDevice::launch(a, graph);
      a.synchronize();
      CHECK(of_b == std::vector<int>{0, 1});
      CHECK(of_c == std::vector<int>{0, 1});
      // A stream that is named twice costs nothing.
      auto const waits_of = [&](std::span<CudaStreamRef const> named) {
        std::int64_t const so_far = zero::standin::calls("cudaStreamWaitEvent");
        static_cast<void>(CudaDevice::capture(a, named, [] {}));
        return zero::standin::calls("cudaStreamWaitEvent") - so_far;
      };
      CudaStreamRef const twice[] = {b, b};
      CHECK(waits_of(twice) == waits_of(std::span(twice).first(1)));
      CudaGraph const alone = CudaDevice::capture(a, std::span<CudaStreamRef const>(), [&] { append(a, of_b, 2); });
      CudaDevice::launch(a, alone);
      a.synchronize();
      CHECK(of_b.back() == 2);
    }
    CHECK(zero::standin::live() == Live{});
  }
}

TEST_CASE("a_graph_is_owned") {
  zero::standin::reset();
  CudaStream const a;
  CudaGraph graph;
  CHECK(graph.native() == nullptr);
  CHECK_THROWS_WITH_AS(CudaDevice::launch(a, graph), doctest::Contains("empty"), zero::UsageError);
  graph = CudaDevice::capture(a, a, [] {});
  CHECK(graph.native() != nullptr);
  CudaGraph moved = std::move(graph);
  CHECK(zero::standin::live().graphs == 1);
  CudaGraph const adopted = CudaGraph::adopt(moved.release());
  moved = CudaDevice::capture(a, a, [] {});
  CHECK(zero::standin::live().graphs == 2);
  moved = CudaGraph();
  CHECK(zero::standin::live().graphs == 1);
}

TEST_CASE("events_from_before_a_capture_keep_their_meaning") {
  zero::standin::reset();
  zero::test::Gate gate;
  CudaStream const a{{.events = 2}};
  QuietAtEnd const end{{a}, gate};
  CudaEvent const first = a.record();
  REQUIRE(cudaStreamSynchronize(a.native()) == cudaSuccess);
  CudaDevice::run(a, Hold{&gate});
  CudaEvent const pending = a.record();
  CudaEvent captured;
  CudaGraph const graph = CudaDevice::capture(a, a, [&] {
    for (int i = 0; i < 5; ++i) captured = a.record();
    first.synchronize();
    CHECK(first.ready());
    CHECK_FALSE(pending.ready());
    CHECK_FALSE(captured.ready());
  });
  CHECK_FALSE(pending.ready());
  gate.open();
  pending.synchronize();
  CHECK(pending.ready());
  a.record().synchronize();
  // What is captured stands for nothing outside.
  CHECK_FALSE(captured.ready());
  CHECK_THROWS_AS(captured.synchronize(), zero::UsageError);
  CudaStream const b;
  CHECK_THROWS_AS(b.wait(captured), zero::UsageError);
  CudaGraph const other = CudaDevice::capture(a, a, [&] { CHECK_THROWS_AS(b.wait(captured), zero::UsageError); });
  a.synchronize();
  b.synchronize();
}

TEST_CASE("nothing_is_waited_for_in_a_capture") {
  zero::standin::reset();
  zero::test::Gate gate;
  CudaStream const a;
  CudaStream const b;
  CudaStream const outside;
  QuietAtEnd const end{{a, b, outside}, gate};
  CudaEvent const complete = outside.record();
  outside.synchronize();
  CudaDevice::run(outside, Hold{&gate});
  CudaEvent const pending = outside.record();
  CudaDevice::run(b, Hold{&gate});
  CudaEvent const of_side = b.record();
  std::vector<int> order;
  CudaGraph const graph = CudaDevice::capture(a, b, [&] {
    CHECK_THROWS_AS(a.synchronize(), zero::UsageError);
    CHECK_THROWS_AS(b.synchronize(), zero::UsageError);
    CHECK_THROWS_AS(a.record().synchronize(), zero::UsageError);
    CHECK_THROWS_AS(of_side.synchronize(), zero::UsageError);
    CHECK_THROWS_AS(a.wait(pending), zero::UsageError);
    CHECK_THROWS_AS(static_cast<void>(CudaDevice::capture(a, b, [] {})), zero::UsageError);
    CHECK_THROWS_AS(static_cast<void>(CudaDevice::capture(outside, b, [] {})), zero::UsageError);
    a.wait(complete);
    a.wait(of_side);  // before the graph anyway
    append(a, order, 1);
  });
  CHECK(a.failure() == nullptr);
  CHECK(b.failure() == nullptr);
  CudaDevice::launch(a, graph);
  gate.open();
  a.synchronize();
  CHECK(order == std::vector<int>{1});
}

TEST_CASE("a_third_stream_takes_part_by_an_event_and_must_come_back") {
  zero::standin::reset();
  CudaStream const a;
  std::optional<CudaStream> third{std::in_place};
  std::vector<int> order;
  CudaGraph const graph = CudaDevice::capture(a, a, [&] {
    append(a, order, 1);
    third->wait(a.record());
    CHECK(third->capturing());
    append(*third, order, 2);
    a.wait(third->record());
    append(a, order, 3);
  });
  CHECK_FALSE(third->capturing());
  CudaDevice::launch(a, graph);
  a.synchronize();
  CHECK(order == std::vector<int>{1, 2, 3});
  CHECK_THROWS_WITH_AS(static_cast<void>(CudaDevice::capture(a, a,
                                                             [&] {
                                                               third->wait(a.record());
                                                               append(*third, order, 4);
                                                             })),
                       doctest::Contains("cudaErrorStreamCaptureUnjoined"), zero::DeviceError);
  append(*third, order, 5);
  third->synchronize();
  CudaGraph const last = CudaDevice::capture(a, a, [&] {
    third->wait(a.record());
    a.wait(third->record());
    third.reset();  // before the end of the capture
  });
  CHECK(order == std::vector<int>{1, 2, 3, 5});
}

TEST_CASE("two_owners_of_one_cuda_stream_are_captured_together") {
  zero::standin::reset();
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  std::vector<int> order;
  {
    CudaStream const a = CudaStream::adopt(native, {.events = 1});
    CudaStream const again = CudaStream::adopt(native, {.events = 1});
    CudaEvent const before = again.record();
    CudaGraph const graph = CudaDevice::capture(a, again, [&] {
      static_cast<void>(again.record());
      append(again, order, 1);
      again.wait(a.record());
    });
    before.synchronize();
    CudaDevice::launch(a, graph);
    again.synchronize();
  }
  CHECK(order == std::vector<int>{1});
  cudaStreamDestroy(native);
}

TEST_CASE("what_cuda_refuses_in_a_capture_fails_the_capture_and_not_the_streams") {
  zero::standin::reset();
  CudaStream const a;
  CudaStream const b;
  std::vector<int> order;
  void* block = nullptr;
  auto const refused = [&](auto&& misuse) {
    CHECK_THROWS_AS(static_cast<void>(CudaDevice::capture(a, b,
                                                          [&] {
                                                            append(a, order, 1);
                                                            misuse();
                                                            append(b, order, 2);
                                                          })),
                    zero::DeviceError);
    cudaGetLastError();
    CHECK_FALSE(a.capturing());
    CHECK_FALSE(b.capturing());
    append(a, order, 3);
    b.wait(a.record());
    b.synchronize();
    CHECK(order == std::vector<int>{3});
    order.clear();
    CHECK(zero::standin::live().graphs == 0);
  };
  refused([&] { CHECK(cudaMalloc(&block, 8) == cudaErrorStreamCaptureUnsupported); });
  refused([&] { CHECK(cudaMallocAsync(&block, 8, b.native()) == cudaErrorStreamCaptureUnsupported); });
  refused([&] { CHECK(cudaStreamSynchronize(a.native()) == cudaErrorStreamCaptureUnsupported); });
  refused([&] { CHECK(cudaStreamQuery(a.native()) == cudaErrorStreamCaptureUnsupported); });
  CudaStream const outside;
  CudaEvent const event = outside.record();
  refused([&] { CHECK(cudaStreamSynchronize(outside.native()) == cudaErrorStreamCaptureUnsupported); });
  // Asking and waiting through the library is allowed, or refused before CUDA is asked.
  static_cast<void>(CudaDevice::capture(a, b, [&] {
    static_cast<void>(event.ready());
    append(a, order, 1);
    CHECK_THROWS_AS(outside.synchronize(), zero::UsageError);
  }));
  refused([&] { throw zero::DeviceError("the work", "an error of its own", 0, {}); });
  CHECK(a.failure() == nullptr);
  CHECK(b.failure() == nullptr);
}

TEST_CASE("a_failed_stream_is_not_captured") {
  zero::standin::reset();
  CudaStream const a;
  CudaStream const b;
  b.fail(std::make_exception_ptr(zero::Error("cause")));
  CHECK_THROWS_WITH(static_cast<void>(CudaDevice::capture(a, b, [] {})), "zero: cause");
  CHECK_FALSE(CudaDevice::is_capturing(a));
  CHECK(a.failure() == nullptr);
}

TEST_CASE("captures_by_calls_of_cudas_own_are_seen") {
  zero::standin::reset();
  CudaStream const a;
  REQUIRE(cudaStreamBeginCapture(a.native(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(CudaDevice::is_capturing(a));
  CHECK_FALSE(a.capturing());
  CHECK_THROWS_AS(static_cast<void>(CudaDevice::capture(a, a, [] {})), zero::UsageError);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(a.native(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK_FALSE(CudaDevice::is_capturing(a));
}
