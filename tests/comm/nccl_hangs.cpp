// SPDX-License-Identifier: Apache-2.0
/// @file
/// Ranks over NCCL that leave, throw or never come: every rank ends with a typed error. Over the stand-in libnccl and over NCCL itself, one GPU a
/// rank. What needs a library that fails on demand is nccl_faults.cpp's.

#include <zero/comm/nccl.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <zero/comm/nccl_start.hpp>

#include "support/nccl_endings.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::Barrier;
using zero::CudaStream;
using zero::NcclCommunicator;
using zero::ThreadCommunicator;
using zero::test::contains;
using zero::test::Elements;
using zero::test::Ending;
using zero::test::endings_of;
using zero::test::Injected;
using zero::test::nothing_is_left;

// Long enough for a busy machine, and on GPUs for the start of NCCL, short enough to be waited for.
#if !defined(ZERO_TEST_STANDIN)
constexpr std::int64_t short_deadline_ms = 20'000;
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t short_deadline_ms = 1500;
#else
constexpr std::int64_t short_deadline_ms = 500;
#endif
constexpr std::int64_t long_deadline_ms = 120'000;

void check_usable(int ranks) {
  zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const stream;
    Elements<NcclCommunicator, float> values(8, 1.0f);
    comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
    stream.synchronize();
    CHECK(values[7] == static_cast<float>(ranks));
    comm.finalize();
  });
}

}  // namespace

TEST_CASE("field case 69: a rank that returns early, throws, or never calls: an error on all by the deadline, in waits outside too") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  if (ranks == 1) return;
  enum class Fault { returns, throws, never_calls, calls_something_else };
  for (Fault const fault : {Fault::returns, Fault::throws, Fault::never_calls, Fault::calls_something_else}) {
#if !defined(ZERO_TEST_STANDIN)
    if (fault == Fault::calls_something_else) continue;  // NCCL may do anything then.
#endif
    CAPTURE(static_cast<int>(fault));
    zero::test::need_devices(ranks, 7);
    std::atomic<int> ended = 0;
    std::atomic<int> raw_waits = 0;
    auto const start = std::chrono::steady_clock::now();
    auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
      CudaStream const stream;
      CudaStream const behind;
      Elements<NcclCommunicator, float> values(static_cast<std::size_t>(8 * ranks));
      NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = short_deadline_ms});
      AllReduce<float> const sum{.send = values.data(), .receive = values.data(), .count = 8, .label = {zero::Subject::gradients, 3}};
      comm.enqueue(stream, sum);
      stream.synchronize();
      if (comm.rank() == ranks - 1) {
        if (fault == Fault::returns) return;
        if (fault == Fault::throws) throw Injected();
        if (fault == Fault::never_calls) {
          for (int n = ended.load(); n < ranks - 1; n = ended.load()) ended.wait(n);
          return;
        }
        comm.enqueue(stream, AllGather<float>{.send = values.data() + 8 * comm.rank(), .receive = values.data(), .count = 8});
      } else {
        comm.enqueue(stream, sum);
      }
      behind.wait(stream.record());
      // What a program does that knows nothing of the library.
      CHECK(cudaStreamSynchronize(stream.native()) == cudaSuccess);
      raw_waits.fetch_add(1);
      CHECK(stream.failure() != nullptr);
      CHECK(behind.failure() != nullptr);
      CHECK_THROWS_AS(behind.synchronize(), zero::DeadlineError);
      CHECK_THROWS_AS(comm.enqueue(behind, sum), zero::DeadlineError);
      CHECK_THROWS_AS(static_cast<void>(comm.split(0)), zero::DeadlineError);
      CHECK_THROWS_AS(comm.finalize(), zero::DeadlineError);
      ended.fetch_add(1);
      ended.notify_all();
      stream.synchronize();
    });
    auto const passed = std::chrono::steady_clock::now() - start;
    CHECK(passed < std::chrono::seconds(60));
    CHECK(raw_waits.load() == (fault == Fault::calls_something_else ? ranks : ranks - 1));
    for (int rank = 0; rank < ranks - 1; ++rank) {
      Ending const& ending = endings[static_cast<std::size_t>(rank)];
      CHECK(ending.type == Ending::Type::deadline);
      CHECK(contains(ending.text, "zero: rank " + std::to_string(rank) + ": all-reduce (gradients 3) was not complete after " +
                                      std::to_string(short_deadline_ms) + " ms"));
    }
    if (fault == Fault::throws) CHECK(endings.back().text == "injected");
    if (fault == Fault::returns || fault == Fault::never_calls) CHECK(endings.back().type == Ending::Type::none);
    CHECK(nothing_is_left());
  }
  check_usable(ranks);
}

TEST_CASE("field cases 68, 70: a rank that never arrives: starting and splitting end by the deadline") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  if (ranks == 1) return;
  for (bool const splits : {false, true}) {
    CAPTURE(splits);
    zero::test::need_devices(ranks);
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    std::atomic<int> ended = 0;
    auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
      bool const missing = threads.rank() == ranks - 1;
      if (missing && !splits) return;
      NcclCommunicator comm(id, {.rank = threads.rank(), .ranks = ranks, .device = threads.rank()}, {.deadline_ms = short_deadline_ms});
      if (missing) {
        for (int n = ended.load(); n < ranks - 1; n = ended.load()) ended.wait(n);
        return;
      }
      try {
        static_cast<void>(comm.split(0));
      } catch (...) {
        ended.fetch_add(1);
        ended.notify_all();
        throw;
      }
    });
    for (int rank = 0; rank < ranks - 1; ++rank) {
      Ending const& ending = endings[static_cast<std::size_t>(rank)];
      CHECK(ending.type == Ending::Type::deadline);
      CHECK(contains(ending.text, splits ? "split (control) was not complete" : "ncclCommInitRankConfig was not done after "));
    }
    CHECK(nothing_is_left());
  }
  check_usable(ranks);
}

TEST_CASE("field case 67: an abort from any thread ends a hang at once, and the first cause is kept") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  if (ranks == 1) return;
  auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
    CudaStream const stream;
    Elements<NcclCommunicator, float> values(8);
    NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = long_deadline_ms});
    NcclCommunicator child = comm.split(0);
    if (comm.rank() < ranks - 1) child.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
    std::thread other([&comm] {
      comm.abort(std::make_exception_ptr(Injected()));
      comm.abort(std::make_exception_ptr(std::runtime_error("second")));
    });
    CHECK(cudaStreamSynchronize(stream.native()) == cudaSuccess);
    other.join();
    CHECK_THROWS_AS(child.enqueue(stream, Barrier{}), Injected);
    comm.enqueue(stream, Barrier{});
  });
  for (Ending const& ending : endings) CHECK(ending.text == "injected");
  CHECK(nothing_is_left());
  check_usable(ranks);
}

TEST_CASE("ranks of one process fail together, at once") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  if (ranks == 1) return;
  std::vector<int> devices;
  for (int device = 0; device < ranks; ++device) devices.push_back(device);
  auto communicators = zero::nccl_all_devices(devices, {.deadline_ms = long_deadline_ms});
  auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
    NcclCommunicator comm = std::move(communicators[static_cast<std::size_t>(threads.rank())]);
    CudaStream const stream;
    Elements<NcclCommunicator, float> values(8);
    if (comm.rank() == 0) throw Injected();
    comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
    CHECK(cudaStreamSynchronize(stream.native()) == cudaSuccess);
    stream.synchronize();
  });
  CHECK(endings[0].text == "injected");
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(endings[static_cast<std::size_t>(rank)].type == Ending::Type::peer);
    CHECK(contains(endings[static_cast<std::size_t>(rank)].text, "rank 0 failed first"));
  }
  communicators.clear();
  CHECK(nothing_is_left());
  check_usable(ranks);
}

TEST_CASE("a body that throws ends its group: what it called is started, and the thread is outside") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
    CudaStream const stream;
    Elements<NcclCommunicator, float> values(8, 1.0f);
    NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = long_deadline_ms});
    AllReduce<float> const sum{.send = values.data(), .receive = values.data(), .count = 8};
    CHECK_THROWS_AS(comm.group(stream,
                               [&] {
                                 comm.enqueue(stream, sum);
                                 comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = -1});
                               }),
                    zero::UsageError);
    comm.enqueue(stream, sum);
    stream.synchronize();
    CHECK(values[0] == static_cast<float>(ranks * ranks));
  });
  for (Ending const& ending : endings) CHECK(ending.text == "");
}
