// SPDX-License-Identifier: Apache-2.0
/// @file
/// What the watchdog of an NCCL communicator watches and what it leaves alone, over the stand-in libraries: operations far behind the host,
/// captures of other people's, launches of graphs, devices that fail.

#include <zero/comm/nccl.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/nccl_start.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/device/cuda_memory.hpp>

#include "support/gate.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::AllReduce;
using zero::Barrier;
using zero::CudaStream;
using zero::NcclCommunicator;
using zero::ThreadCommunicator;
using zero::test::Elements;
using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t deadline_ms = 1500;
#else
constexpr std::int64_t deadline_ms = 300;
#endif

/// Runs `body(comm)` on two ranks.
/// @param deadline  of the communicator [milliseconds]; a long one where it is not what the test is about
template <class Body>
void two_ranks(Body const& body, std::int64_t deadline = deadline_ms) {
  zero::test::need_devices(2);
  zero::run_ranks(2, [&](ThreadCommunicator& threads) {
    zero::test::this_is_rank(threads.rank());
    CHECK_NOTHROW(zero::detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), {}));
    NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = deadline});
    body(comm);
    zero::test::this_is_rank(-1);
  });
}

std::string message_of(std::function<void()> const& call) {
  try {
    call();
  } catch (std::exception const& error) {
    return error.what();
  }
  return {};
}

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("operations are overdue by their own age, however far the host is ahead of the device") {
  two_ranks([](NcclCommunicator& comm) {
    CudaStream const stream({.events = 4});
    Elements<NcclCommunicator, float> values(8);
    // Each takes a moment, all together longer than the deadline; the stream remembers four points only.
    for (int i = 0; i < 400; ++i) {
      REQUIRE(zero::standin::launch(stream.native(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(deadline_ms) / 200); }) ==
              cudaSuccess);
      comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
    }
    CHECK_NOTHROW(stream.synchronize());
    CHECK_NOTHROW(comm.finalize());
  });
}

TEST_CASE("what is captured behind the library's back has not begun, and is not overdue") {
  two_ranks([](NcclCommunicator& comm) {
    CudaStream const stream;
    Elements<NcclCommunicator, float> values(8);
    REQUIRE(cudaStreamBeginCapture(stream.native(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
    cudaGraph_t graph = nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * deadline_ms));
    REQUIRE(cudaStreamEndCapture(stream.native(), &graph) == cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    REQUIRE(cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess);
    CHECK(cudaGraphLaunch(executable, stream.native()) == cudaSuccess);
    CHECK_NOTHROW(comm.enqueue(stream, Barrier{}));
    CHECK_NOTHROW(stream.synchronize());
    CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  });
}

TEST_CASE("looking at operations in flight does not break a capture that another thread has begun for all threads") {
  two_ranks([](NcclCommunicator& comm) {
    static zero::test::Gate gate;
    CudaStream const stream;
    CudaStream const own;
    zero::test::OpenAtEnd const open(gate);
    if (comm.rank() == 0) REQUIRE(zero::standin::launch(stream.native(), [] { gate.pass(); }) == cudaSuccess);
    comm.enqueue(stream, Barrier{});  // In flight as long as the gate is shut.
    static std::atomic<int> enqueued = 0;
    static std::atomic<bool> captured = false;
    for (++enqueued; enqueued < 2;) std::this_thread::yield();
    if (comm.rank() == 0) {
      REQUIRE(cudaStreamBeginCapture(own.native(), cudaStreamCaptureModeGlobal) == cudaSuccess);
      std::this_thread::sleep_for(std::chrono::milliseconds(deadline_ms / 3));
      cudaGraph_t graph = nullptr;
      CHECK(cudaStreamEndCapture(own.native(), &graph) == cudaSuccess);
      CHECK(cudaGraphDestroy(graph) == cudaSuccess);
      gate.open();
      captured = true;
    }
    while (!captured) std::this_thread::yield();  // Waiting for a device would break the capture.
    stream.synchronize();
  });
}

TEST_CASE("a launch that is watched is given up at the deadline, and refused after a failure; adaptors pass it on") {
  two_ranks([](NcclCommunicator& comm) {
    static zero::test::Gate gates[2];
    zero::test::Gate& gate = gates[comm.rank()];
    zero::test::OpenAtEnd const open(gate);
    zero::CudaPinnedMemory memory;
    zero::Traffic traffic;
    zero::Counting counting{zero::Ordered{zero::Borrowed{comm}, memory}, traffic};
    CudaStream const stream;
    counting.watch(stream, [&] { REQUIRE(zero::standin::launch(stream.native(), [&gate] { gate.pass(); }) == cudaSuccess); });
    while (stream.failure() == nullptr) std::this_thread::sleep_for(1ms);
    CHECK(contains(message_of([&] { stream.throw_if_failed(); }), "graph ("));
    bool launched = false;
    CHECK_THROWS_AS(counting.watch(stream, [&] { launched = true; }), zero::DeadlineError);
    CHECK_FALSE(launched);
    gate.open();
  });
}

TEST_CASE("a device that fails is said as that, not as a peer that is late") {
  two_ranks([](NcclCommunicator& comm) {
    static zero::test::Gate gates[2];
    zero::test::Gate& gate = gates[comm.rank()];
    zero::test::OpenAtEnd const open(gate);
    CudaStream const stream;
    REQUIRE(zero::standin::launch(stream.native(), [&gate] { gate.pass(); }) == cudaSuccess);
    comm.enqueue(stream, Barrier{});
    static std::atomic<int> ready = 0;
    for (++ready; ready < 2;) std::this_thread::yield();
    zero::standin::fail({.call = 1, .function = "cudaEventQuery", .error = cudaErrorIllegalAddress, .from_then_on = true});
    auto const start = std::chrono::steady_clock::now();
    while (stream.failure() == nullptr) std::this_thread::sleep_for(1ms);
    CHECK(contains(message_of([&] { stream.throw_if_failed(); }), "cudaEventQuery"));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(deadline_ms));
    gate.open();
  });
}

TEST_CASE("many operations in flight, on another device than the thread's current one") {
  two_ranks(
      [](NcclCommunicator& comm) {
        static zero::test::Gate gates[2];
        zero::test::Gate& gate = gates[comm.rank()];
        CudaStream const stream;
        zero::test::OpenAtEnd const open(gate);
        Elements<NcclCommunicator, float> values(8);
        REQUIRE(zero::standin::launch(stream.native(), [&gate] { gate.pass(); }) == cudaSuccess);
        REQUIRE(cudaSetDevice(0) == cudaSuccess);
        for (int i = 0; i < 600; ++i) comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
        gate.open();
        CHECK_NOTHROW(stream.synchronize());
        CHECK_NOTHROW(comm.finalize());
      },
      60'000);
}

TEST_CASE("inside a group of one communicator nothing is waited for, or enqueued to another one") {
  two_ranks(
      [](NcclCommunicator& comm) {
        CudaStream const stream;
        NcclCommunicator other = comm.split(0);
        std::string text;
        std::string waits;
        comm.group(stream, [&] {
          comm.enqueue(stream, Barrier{});
          text = message_of([&] { other.enqueue(stream, Barrier{}); });
          waits += message_of([&] { static_cast<void>(comm.split(0)); });
          waits += message_of([&] { comm.finalize(); });
          waits += message_of([&] { static_cast<void>(comm.release()); });
        });
        CHECK(contains(text, "inside group() of one NCCL communicator"));
        for (char const* call : {"split", "finalize", "release"}) CHECK(contains(waits, call + std::string(": inside group() nothing")));
        other.enqueue(stream, Barrier{});
        stream.synchronize();
      },
      60'000);
}

TEST_CASE("reductions that are captured leave the order of the others as it was") {
  two_ranks(
      [](NcclCommunicator& comm) {
        CudaStream const stream;
        CudaStream const other;
        zero::CudaPinnedMemory memory;
        zero::Ordered ordered{zero::Borrowed{comm}, memory};
        Elements<NcclCommunicator, float> values(8);
        AllReduce<float> const sum{.send = values.data(), .receive = values.data(), .count = 8};
        ordered.enqueue(stream, sum);
        stream.synchronize();
        for (CudaStream const* const at : {&stream, &other}) {
          auto const graph = zero::CudaDevice::capture(*at, *at, [&] { ordered.enqueue(*at, sum); });
          zero::CudaDevice::launch(*at, graph);
          at->synchronize();
        }
        CHECK_NOTHROW(ordered.enqueue(other, sum));
        CHECK_NOTHROW(ordered.enqueue(stream, sum));
        other.synchronize();
        stream.synchronize();
      },
      60'000);
}

TEST_CASE("a peer's failure in this process is thrown by the next call, before a watchdog has looked, and in a capture too") {
  for (bool const captures : {false, true}) {
    CAPTURE(captures);
    zero::test::need_devices(2);
    std::vector<int> const devices = {0, 1};
    std::vector<NcclCommunicator> communicators = zero::nccl_all_devices(devices, {.deadline_ms = 60'000});
    CudaStream const peers({.device = 0});
    CudaStream const stream({.device = 1});
    Elements<NcclCommunicator, float> values(8);
    Elements<NcclCommunicator, float> others(8);
    AllReduce<float> const sum{.send = values.data(), .receive = values.data(), .count = 8};
    communicators[0].enqueue(peers, AllReduce<float>{.send = others.data(), .receive = others.data(), .count = 8});
    communicators[1].enqueue(stream, sum);
    peers.synchronize();
    stream.synchronize();
    if (captures) REQUIRE(cudaStreamBeginCapture(stream.native(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    communicators[0].abort(std::make_exception_ptr(zero::Error("the first cause")));
    for (int round = 0; round < 2; ++round) CHECK_THROWS_AS(communicators[1].enqueue(stream, sum), zero::PeerError);
    if (captures) {
      cudaGraph_t graph = nullptr;  // None, where the failure has asked for an event.
      static_cast<void>(cudaStreamEndCapture(stream.native(), &graph));
      if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    }
    CHECK(zero::standin::nccl_calls("ncclAllReduce") == 2);
  }
}

TEST_CASE("streams may end while their operations are in flight, of which some complete and the others fail") {
  for (bool const fails : {false, true}) {
    CAPTURE(fails);
    two_ranks(
        [&](NcclCommunicator& comm) {
          static zero::test::Gate gates[2][2];
          zero::test::Gate& gate = gates[fails ? 1 : 0][comm.rank()];
          zero::test::OpenAtEnd const open(gate);
          CudaStream const waiting;
          for (int i = 0; i < 12; ++i) {
            CudaStream const one;
            if (i == 6) REQUIRE(zero::standin::launch(one.native(), [&gate] { gate.pass(); }) == cudaSuccess);
            for (int j = 0; j < i % 3 + 1; ++j) comm.enqueue(one, Barrier{});
            if (i == 11) waiting.wait(one.record());
          }
          if (fails) {
            comm.abort(std::make_exception_ptr(zero::Error("the first cause")));
            CHECK_THROWS_WITH(comm.enqueue(waiting, Barrier{}), doctest::Contains("the first cause"));
          } else {
            gate.open();
            CHECK_NOTHROW(waiting.synchronize());
            CHECK_NOTHROW(comm.finalize());
          }
        },
        60'000);
  }
}

TEST_CASE("a call that says that it is done, as NCCL 2.22 does, and is not, is waited for") {
  for (int const version : {22203, NCCL_VERSION_CODE}) {
    CAPTURE(version);
    zero::test::need_devices(2);
    zero::standin::reset_nccl({.version = version});
    zero::test::run_nccl(2, [](NcclCommunicator& comm) {
      CudaStream const stream;
      Elements<NcclCommunicator, float> values(8, 1.0f);
      for (int i = 0; i < 20; ++i) {
        REQUIRE_NOTHROW(comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8}));
      }
      stream.synchronize();
      CHECK(values[7] == 1048576.0f);
    });
  }
}
