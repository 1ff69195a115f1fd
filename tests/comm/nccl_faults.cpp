// SPDX-License-Identifier: Apache-2.0
/// @file
/// What goes wrong with NCCL, over the stand-in library: calls that fail, and what the watchdog does about it. Every rank
/// ends with a typed error by the deadline, and so do waits outside the library.

#include <zero/comm/nccl.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zero/comm/nccl_start.hpp>

#include "support/nccl_endings.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Barrier;
using zero::Broadcast;
using zero::CudaStream;
using zero::NcclCommunicator;
using zero::ReduceScatter;
using zero::ThreadCommunicator;
using zero::standin::NcclFailure;
using zero::test::contains;
using zero::test::Elements;
using zero::test::Ending;
using zero::test::endings_of;
using zero::test::Injected;
using zero::test::nothing_is_left;

/// Long enough for a busy machine, short enough to be waited for.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t short_deadline_ms = 1500;
#else
constexpr std::int64_t short_deadline_ms = 500;
#endif
constexpr std::int64_t long_deadline_ms = 120'000;

/// Everything that a communicator calls.
void everything(ThreadCommunicator& threads, std::int64_t deadline_ms) {
  Elements<NcclCommunicator, zero::half> values(static_cast<std::size_t>(16 * threads.size()));
  Elements<NcclCommunicator, zero::half> other(values.size());
  CudaStream const stream;
  NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = deadline_ms});
  float const factor = comm.size() > 1 ? 0.5f : 1.0f;
  comm.enqueue(stream, AllGather<zero::half>{.send = values.data() + 16 * comm.rank(), .receive = values.data(), .count = 16});
  comm.enqueue(stream, ReduceScatter<zero::half>{.send = values.data(), .receive = other.data(), .count = 16, .factor = factor});
  comm.enqueue(stream, AllReduce<zero::half>{.send = values.data(), .receive = values.data(), .count = 16, .factor = factor});
  comm.enqueue(stream, Broadcast<zero::half>{.buffer = values.data(), .count = 16});
  comm.enqueue(stream, AllToAll<zero::half>{.send = values.data(), .receive = other.data(), .count = 16});
  comm.enqueue(stream, Barrier{});
  comm.group(stream, [&] {
    comm.enqueue(stream, AllReduce<zero::half>{.send = values.data(), .receive = values.data(), .count = 16});
    comm.enqueue(stream, AllGather<zero::half>{.send = other.data(), .receive = other.data(), .count = 0});
  });
  NcclCommunicator child = comm.split(0, comm.rank());
  child.enqueue(stream, Barrier{});
  stream.synchronize();
  child.finalize();
  comm.finalize();
}

/// The functions of NCCL that fail somewhere in `everything`.
constexpr char const* functions[] = {"ncclGetVersion",    "ncclGetUniqueId",  "ncclCommInitRankConfig", "ncclCommGetAsyncError",
                                     "ncclCommCount",     "ncclCommUserRank", "ncclCommCuDevice",       "ncclAllGather",
                                     "ncclReduceScatter", "ncclAllReduce",    "ncclBroadcast",          "ncclSend",
                                     "ncclRecv",          "ncclGroupStart",   "ncclGroupEnd",           "ncclRedOpCreatePreMulSum",
                                     "ncclCommSplit",     "ncclCommFinalize", "ncclCommDestroy"};

/// True for those whose operation can also fail later.
bool fails_later(std::string const& function) {
  return function == "ncclCommInitRankConfig" || function == "ncclAllGather" || function == "ncclReduceScatter" ||
         function == "ncclAllReduce" || function == "ncclBroadcast" || function == "ncclSend" || function == "ncclRecv" ||
         function == "ncclCommSplit";
}

void check_failure(int ranks, NcclFailure const& failure) {
  zero::test::need_devices(ranks, 9);
  zero::standin::fail_nccl(failure);
  INFO(failure.function, " fails at call ", failure.call, " of rank ", failure.rank, failure.later ? ", later" : "");
  auto const endings = endings_of(ranks, [](ThreadCommunicator& threads) { everything(threads, short_deadline_ms); });
  for (int rank = 0; rank < ranks; ++rank) {
    Ending const& ending = endings[static_cast<std::size_t>(rank)];
    INFO("rank ", rank, ": ", ending.text);
    if (rank == failure.rank) {
      CHECK(ending.type == Ending::Type::nccl);
      CHECK(ending.result == failure.result);
      if (!failure.later) {
        CHECK(ending.call == failure.function);
        CHECK(contains(ending.text, "zero: rank " + std::to_string(rank)) == (failure.function != "ncclGetVersion"));
        CHECK(contains(ending.text, failure.function + " failed: unhandled system error (2); NCCL's last error: " + failure.function +
                                        " was made to fail by a test"));
      }
    } else {
      // Peers that needed nothing of the failed rank any more may be done.
      bool const typed =
          ending.type == Ending::Type::none || ending.type == Ending::Type::deadline || ending.type == Ending::Type::communication;
      CHECK(typed);
    }
  }
  CHECK(nothing_is_left());
}

}  // namespace

TEST_CASE("a run without failures leaves nothing behind") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks, 3);
  for (Ending const& ending : endings_of(ranks, [](ThreadCommunicator& threads) { everything(threads, long_deadline_ms); })) {
    CHECK(ending.text == "");
  }
  CHECK(nothing_is_left());
  CHECK(zero::standin::live().events == 0);
  CHECK(zero::standin::live().streams == 0);
}

TEST_CASE("field case 65: every call of NCCL that fails, at every index, is a typed error on all ranks and no hang") {
  int const ranks = zero::test::ranks();
  int const faulty = ranks - 1;
  zero::test::need_devices(ranks, 3);
  static_cast<void>(endings_of(ranks, [](ThreadCommunicator& threads) { everything(threads, long_deadline_ms); }));
  std::vector<NcclFailure> failures;
  for (char const* function : functions) {
    int const rank = std::string(function) == "ncclGetUniqueId" ? 0 : faulty;
    std::int64_t calls = zero::standin::nccl_calls(function, rank);
    CAPTURE(function);
    CHECK((calls > 0 || ranks == 1));                                              // One rank only starts, splits and ends.
    if (std::string(function) == "ncclCommGetAsyncError" && calls > 5) calls = 5;  // How often is up to chance.
    for (std::int64_t call = 1; call <= calls; ++call) {
      failures.push_back({.function = function, .rank = rank, .call = call, .result = ncclSystemError});
      if (fails_later(function))
        failures.push_back({.function = function, .rank = rank, .call = call, .result = ncclRemoteError, .later = true});
    }
  }
  for (NcclFailure const& failure : failures) check_failure(ranks, failure);
}

TEST_CASE("an error that NCCL reports later ends a hang before the deadline") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  zero::test::need_devices(ranks);
  zero::standin::fail_nccl({.function = "ncclAllReduce", .rank = 0, .call = 1, .result = ncclRemoteError, .later = true});
  auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
    CudaStream const stream;
    Elements<NcclCommunicator, float> values(8);
    NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = threads.rank() == 0 ? long_deadline_ms : short_deadline_ms});
    comm.group(stream, [&] { comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8}); });
    stream.synchronize();
  });
  CHECK(endings[0].type == Ending::Type::nccl);
  CHECK(contains(endings[0].text, "remote process exited or there was a network error"));
  for (int rank = 1; rank < ranks; ++rank) CHECK(endings[static_cast<std::size_t>(rank)].type == Ending::Type::deadline);
}

TEST_CASE("a failed stream takes the communicator along: its peers would wait") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
    CudaStream const stream;
    CudaStream const other;
    NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = long_deadline_ms});
    stream.fail(std::make_exception_ptr(Injected()));
    CHECK_THROWS_AS(comm.enqueue(stream, Barrier{}), Injected);
    comm.enqueue(other, Barrier{});
  });
  for (Ending const& ending : endings) CHECK(ending.text == "injected");
}

TEST_CASE("ranks of one process of which one cannot start all end") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  zero::test::need_devices(ranks);
  std::vector<int> devices;
  for (int device = 0; device < ranks; ++device) devices.push_back(device);
  zero::standin::fail_nccl({.function = "ncclCommInitRankConfig", .call = 2});
  CHECK_THROWS_AS(static_cast<void>(zero::nccl_all_devices(devices, {.deadline_ms = long_deadline_ms})), zero::NcclError);
  CHECK(nothing_is_left());
}

TEST_CASE("each call of CUDA in the start of all ranks of a process fails: a typed error, and the thread is in no group") {
  int const ranks = zero::test::ranks();
  std::vector<int> devices;
  for (int device = 0; device < ranks; ++device) devices.push_back(device);
  zero::test::need_devices(ranks);
  static_cast<void>(zero::nccl_all_devices(devices, {.deadline_ms = long_deadline_ms}));
  for (std::string const function :
       {"cudaDriverGetVersion", "cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaHostAlloc", "cudaEventCreateWithFlags"}) {
    zero::test::need_devices(ranks);
    static_cast<void>(zero::nccl_all_devices(devices, {.deadline_ms = long_deadline_ms}));
    std::int64_t const calls = zero::standin::calls(function);
    for (std::int64_t call = 1; call <= calls; ++call) {
      INFO(function, " fails at call ", call);
      zero::test::need_devices(ranks);
      zero::standin::fail({.call = call, .function = function});
      try {
        static_cast<void>(zero::nccl_all_devices(devices, {.deadline_ms = short_deadline_ms}));
      } catch (zero::Error const&) {
      }
      zero::standin::fail({});
      CHECK(ncclGroupEnd() == ncclInvalidUsage);
      CHECK(cudaSetDevice(0) == cudaSuccess);
      CHECK(nothing_is_left());
    }
  }
}

TEST_CASE("adopted communicators stay their owner's") {
  int const ranks = zero::test::ranks();
  for (bool const blocking : {true, false}) {
    CAPTURE(blocking);
    zero::test::need_devices(ranks);
    auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
      ncclUniqueId id{};
      id.internal[0] = blocking ? 'c' : 'd';
      ncclComm_t raw = nullptr;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking ? 1 : 0;
      static_cast<void>(ncclCommInitRankConfig(&raw, ranks, id, threads.rank(), &config));
      for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) CHECK(ncclCommGetAsyncError(raw, &state) == ncclSuccess);
      CudaStream const stream;
      Elements<NcclCommunicator, zero::half> values(8, zero::half(1.0f));
      {
        NcclCommunicator comm = NcclCommunicator::adopt(raw);
        CHECK(comm.native() == raw);
        CHECK(comm.rank() == threads.rank());
        CHECK(comm.size() == ranks);
        float const factor = ranks > 1 ? 0.5f : 1.0f;
        comm.enqueue(stream, AllReduce<zero::half>{.send = values.data(), .receive = values.data(), .count = 8, .factor = factor});
        NcclCommunicator child = comm.split(0);
        child.enqueue(stream, Barrier{});
        comm.finalize();
        CHECK(zero::standin::nccl_calls("ncclRedOpDestroy", threads.rank()) ==
              zero::standin::nccl_calls("ncclRedOpCreatePreMulSum", threads.rank()));
        CHECK(static_cast<float>(values[0]) == static_cast<float>(ranks) * factor);
      }
      CHECK(ncclCommFinalize(raw) != ncclInvalidArgument);
      for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) CHECK(ncclCommGetAsyncError(raw, &state) == ncclSuccess);
      CHECK(ncclCommDestroy(raw) == ncclSuccess);
    });
    for (Ending const& ending : endings) CHECK(ending.text == "");
    CHECK(nothing_is_left());
  }
  CHECK_THROWS_AS(static_cast<void>(NcclCommunicator::adopt(nullptr)), zero::UsageError);
}

TEST_CASE("a communicator that cannot be adopted stays its owner's, who ends it") {
  zero::test::need_devices(1);
  for (std::string const function : {"ncclCommGetAsyncError", "ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice"}) {
    for (std::int64_t call = 1; call <= 2; ++call) {
      INFO(function, " fails at call ", call);
      zero::test::need_devices(1);
      ncclUniqueId id{};
      id.internal[0] = 'h';
      ncclComm_t raw = nullptr;
      REQUIRE(ncclCommInitRank(&raw, 1, id, 0) == ncclSuccess);
      zero::standin::fail_nccl({.function = function, .call = call});
      try {
        NcclCommunicator comm = NcclCommunicator::adopt(raw, {.may_abort = true});
        CHECK(call == 2);
      } catch (zero::NcclError const& error) {
        CHECK(error.call() == function);
      }
      CHECK(zero::standin::nccl_calls("ncclCommAbort") == 0);
      zero::standin::fail_nccl({});
      CHECK(ncclCommDestroy(raw) == ncclSuccess);
    }
  }
  CHECK(nothing_is_left());
}

TEST_CASE("a hang on an adopted communicator: it is aborted only where that is allowed, else revoked") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const may_abort : {true, false}) {
    CAPTURE(may_abort);
    zero::test::need_devices(ranks);
    auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
      ncclUniqueId id{};
      id.internal[0] = may_abort ? 'e' : 'f';
      ncclComm_t raw = nullptr;
      CHECK(ncclCommInitRank(&raw, ranks, id, threads.rank()) == ncclSuccess);
      CudaStream const stream;
      Elements<NcclCommunicator, float> values(8);
      NcclCommunicator comm = NcclCommunicator::adopt(raw, {.deadline_ms = short_deadline_ms, .may_abort = may_abort});
      if (comm.rank() > 0) {
        comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 8});
        CHECK(cudaStreamSynchronize(stream.native()) == cudaSuccess);
        while (comm.native() != nullptr) std::this_thread::yield();
        CHECK_THROWS_AS(stream.synchronize(), zero::DeadlineError);
      }
      bool const aborted = comm.rank() > 0 && may_abort;
      CHECK(comm.aborted() == aborted);
      if (!aborted) CHECK(ncclCommDestroy(raw) == ncclSuccess);
      if (comm.rank() == 0) static_cast<void>(comm.release());
    });
    static_cast<void>(endings);
    CHECK(nothing_is_left());
  }
}

TEST_CASE("a blocking communicator that hangs inside a call is aborted from outside") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  zero::test::need_devices(ranks);
  zero::standin::fail_nccl({.function = "ncclCommSplit", .rank = 0, .call = 1});
  auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
    ncclUniqueId id{};
    id.internal[0] = 'g';
    ncclComm_t raw = nullptr;
    CHECK(ncclCommInitRank(&raw, ranks, id, threads.rank()) == ncclSuccess);
    NcclCommunicator comm = NcclCommunicator::adopt(raw, {.deadline_ms = short_deadline_ms, .may_abort = true});
    static_cast<void>(comm.split(0));
  });
  CHECK(endings[0].type == Ending::Type::nccl);
  for (int rank = 1; rank < ranks; ++rank) {
    CHECK(endings[static_cast<std::size_t>(rank)].type == Ending::Type::deadline);
    CHECK(contains(endings[static_cast<std::size_t>(rank)].text, "a call of NCCL did not return"));
  }
  CHECK(nothing_is_left());
}
