// SPDX-License-Identifier: Apache-2.0
/// @file
/// What goes wrong with NCCL, over the stand-in library: calls that fail, ranks that never come, and what the watchdog does about it. Every rank
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
using zero::test::Elements;

/// Long enough for a busy machine, short enough to be waited for.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t short_deadline_ms = 1500;
#else
constexpr std::int64_t short_deadline_ms = 500;
#endif
constexpr std::int64_t long_deadline_ms = 120'000;

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

struct Injected : std::runtime_error {
  Injected() : std::runtime_error("injected") {}
};

/// How a rank ended.
struct Ending {
  enum class Type { none, nccl, deadline, peer, communication, usage, other };
  Type type = Type::none;
  std::string text;
  std::string call;
  ncclResult_t result = ncclSuccess;
};

Ending ending_of(std::exception_ptr const& failure) {
  using Type = Ending::Type;
  if (failure == nullptr) return {};
  try {
    std::rethrow_exception(failure);
  } catch (zero::NcclError const& error) {
    return {Type::nccl, error.what(), error.call(), error.result()};
  } catch (zero::DeadlineError const& error) {
    return {Type::deadline, error.what(), "", ncclSuccess};
  } catch (zero::PeerError const& error) {
    return {Type::peer, error.what(), "", ncclSuccess};
  } catch (zero::CommunicationError const& error) {
    return {Type::communication, error.what(), "", ncclSuccess};
  } catch (zero::UsageError const& error) {
    return {Type::usage, error.what(), "", ncclSuccess};
  } catch (std::exception const& error) {
    return {Type::other, error.what(), "", ncclSuccess};
  }
}

/// Runs `body(threads)` on every rank, each on its device, and says how each ended.
std::vector<Ending> endings_of(int ranks, std::function<void(ThreadCommunicator&)> const& body) {
  std::vector<Ending> endings(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
    zero::test::this_is_rank(threads.rank());
    CHECK_NOTHROW(zero::detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), {}));
    try {
      body(threads);
    } catch (...) {
      endings[static_cast<std::size_t>(threads.rank())] = ending_of(std::current_exception());
    }
    zero::test::this_is_rank(-1);
  });
  return endings;
}

bool nothing_is_left() {
  zero::standin::NcclLive const live = zero::standin::live_nccl();
  CAPTURE(live.communicators);
  CAPTURE(live.reductions);
  return live.communicators == 0 && live.blocks == 0 && live.windows == 0;
}

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

TEST_CASE("field case 69: a rank that returns early, throws, or never calls: an error on all by the deadline, in waits outside too") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  enum class Fault { returns, throws, never_calls, calls_something_else };
  for (Fault const fault : {Fault::returns, Fault::throws, Fault::never_calls, Fault::calls_something_else}) {
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
    CHECK(std::chrono::duration_cast<std::chrono::seconds>(passed).count() < 60);
    CHECK(raw_waits.load() == (fault == Fault::calls_something_else ? ranks : ranks - 1));
    for (int rank = 0; rank < ranks - 1; ++rank) {
      Ending const& ending = endings[static_cast<std::size_t>(rank)];
      CHECK(ending.type == Ending::Type::deadline);
      CHECK(contains(ending.text, "zero: rank " + std::to_string(rank) + ": all-reduce (gradients 3) was not complete after " +
                                      std::to_string(short_deadline_ms) + " ms"));
    }
    CHECK(nothing_is_left());
  }
}

TEST_CASE("field cases 68, 70: a rank that never arrives: starting and splitting end by the deadline") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const splits : {false, true}) {
    CAPTURE(splits);
    zero::test::need_devices(ranks);
    auto const endings = endings_of(ranks, [&](ThreadCommunicator& threads) {
      ncclUniqueId id{};
      id.internal[0] = splits ? 'a' : 'b';
      bool const missing = threads.rank() == ranks - 1;
      if (missing && !splits) return;
      NcclCommunicator comm(id, {.rank = threads.rank(), .ranks = ranks, .device = threads.rank()}, {.deadline_ms = short_deadline_ms});
      if (missing) return;
      static_cast<void>(comm.split(0));
    });
    for (int rank = 0; rank < ranks - 1; ++rank) {
      Ending const& ending = endings[static_cast<std::size_t>(rank)];
      CHECK(ending.type == Ending::Type::deadline);
      CHECK(contains(ending.text, splits ? "split (control) was not complete" : "ncclCommInitRankConfig was not done after "));
    }
    CHECK(nothing_is_left());
  }
}

TEST_CASE("field case 67: an abort from any thread ends a hang at once, and the first cause is kept") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  zero::test::need_devices(ranks);
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

TEST_CASE("ranks of one process fail together, at once") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  zero::test::need_devices(ranks);
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
  // One that cannot start ends them all.
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
