// SPDX-License-Identifier: Apache-2.0
/// @file
/// Training of two ranks over NCCL and CUDA, with the stand-ins of both: each call that it makes is made to fail on one rank. Every rank ends with a
/// typed error, or with the results of a run without failures where what failed concerns nobody any more; nothing hangs, nothing is lost.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_memory.hpp>
#include <zero/comm/nccl_start.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/device_training.hpp"
#include "support/nccl_ranks.hpp"
#include "support/outcomes.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaMemory;
using zero::CudaStream;
using zero::MemoryResource;
using zero::NcclCommunicator;
using zero::NcclMemory;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::ThreadCommunicator;
using zero::Unit;
using zero::UnitView;

constexpr int ranks = 2;
/// For runs that must end well, and for those in which a rank waits in vain.
constexpr std::int64_t patient_ms = 60'000, hasty_ms = 100;

using Bytes = std::vector<unsigned char>;

/// Two steps of two micro-batches.
template <class S, class P>
Bytes train(NcclCommunicator& group, MemoryResource& memory) {
  using Parameter = typename P::parameter;
  using Gradient = typename P::gradient;
  ParameterLayout const layout = zero::test::training_layout();
  CudaStream const compute({.events = 4});
  CudaStream const communication({.events = 4});
  auto parameters = zero::shard_parameters<S, P>(layout, group, {compute, communication}, memory);
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.05}};
  parameters.initialize(3, [](ParameterId) { return zero::InitialValue::normal(0, 1); });
  for (int step = 0; step < 2; ++step) {
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass({.last = m == 1});
      for (Unit unit : layout.units().reversed()) {
        auto weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        UnitView<Gradient> const into = gradients;
        UnitView<Parameter const> const of = weights;
        for (std::int32_t k = 0; k < into.size(); ++k) {
          if (into[k] == nullptr) continue;
          CudaDevice::for_each(compute, into.elements(k),
                               zero::test::PullTo<Parameter, Gradient>{into[k], of[k], static_cast<float>(step + m + group.rank())});
        }
        gradients.hand_over();
      }
      pass.finish();
    }
    static_cast<void>(optimizer.step(parameters, {.max_norm = 1.0, .micro_batches = 2}).wait());
  }
  Bytes result;
  auto const whole = parameters.gather_all();
  for (Unit unit : layout.units()) {
    UnitView<Parameter const> const view = whole[unit];
    for (std::int32_t k = 0; k < view.size(); ++k) {
      std::vector<Parameter> host(static_cast<std::size_t>(view.elements(k)));
      auto const bytes = static_cast<std::int64_t>(host.size() * sizeof(Parameter));
      CudaDevice::copy(compute, host.data(), view[k], bytes);
      CudaDevice::synchronize(compute);
      auto const* const begin = reinterpret_cast<unsigned char const*>(host.data());
      result.insert(result.end(), begin, begin + bytes);
    }
  }
  return result;
}

/// How ranks find each other.
enum class Start {
  processes,    ///< as ranks that are processes do: a peer learns of a failure by its own deadline
  one_process,  ///< they fail together
  adopted,      ///< the communicator is the caller's, who ends it
};

std::string name(Start start) {
  return start == Start::processes ? "processes" : start == Start::one_process ? "one process" : "adopted communicators";
}

/// What a rank does with its communicator, to the end.
template <class S, class P>
Bytes train_and_finalize(NcclCommunicator& comm, bool windows) {
  Bytes result;
  if (windows) {
    NcclMemory memory(comm, {.windows = true});
    result = train<S, P>(comm, memory);
  } else {
    CudaMemory memory;
    result = train<S, P>(comm, memory);
  }
  comm.finalize();
  return result;
}

/// What is there before a call is made to fail: communicators that are adopted, one a rank.
std::vector<ncclComm_t> owned_by_the_caller() {
  ncclUniqueId id{};
  id.internal[0] = 'f';
  std::vector<ncclComm_t> result(ranks, nullptr);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    static_cast<void>(cudaSetDevice(rank));
    static_cast<void>(ncclCommInitRankConfig(&result[static_cast<std::size_t>(rank)], ranks, id, rank, &config));
  }
  static_cast<void>(cudaSetDevice(0));
  for (ncclComm_t const comm : result) {
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) static_cast<void>(ncclCommGetAsyncError(comm, &state));
  }
  return result;
}

/// A rank that adopts its communicator, and ends it as its owner has to.
template <class S, class P>
Bytes adopt_train_and_destroy(ncclComm_t raw, std::int64_t deadline_ms, bool windows) {
  Bytes result;
  std::exception_ptr failure;
  std::optional<NcclCommunicator> comm;
  try {
    comm.emplace(NcclCommunicator::adopt(raw, {.deadline_ms = deadline_ms, .may_abort = true}));
    result = train_and_finalize<S, P>(*comm, windows);
  } catch (...) {
    failure = std::current_exception();
    if (comm) comm->abort(failure);
  }
  bool const gone = comm && comm->aborted();
  comm.reset();
  zero::test::this_is_rank(-1);  // What the owner calls does not fail.
  if (!gone) static_cast<void>(ncclCommDestroy(raw));
  if (failure != nullptr) std::rethrow_exception(failure);
  return result;
}

/// How a rank ended.
struct Ending {
  std::optional<Bytes> result;
  std::string error;    ///< of the library's types
  std::string untyped;  ///< of another type
};

template <class S, class P, class Arm>
std::array<Ending, ranks> run(Start start, std::int64_t deadline_ms, bool windows, Arm const& arm) {
  std::array<Ending, ranks> endings;
  std::vector<NcclCommunicator> made;
  std::vector<ncclComm_t> owned;
  if (start == Start::adopted) owned = owned_by_the_caller();
  arm();
  if (start == Start::one_process) {
    try {
      made = zero::nccl_all_devices(std::array{0, 1}, {.deadline_ms = deadline_ms});
    } catch (zero::Error const& error) {
      for (Ending& ending : endings) ending.error = error.what();
      return endings;
    }
  }
  static_cast<void>(zero::test::outcomes_of(ranks, [&](ThreadCommunicator& threads) {
    zero::test::this_is_rank(threads.rank());
    auto const me = static_cast<std::size_t>(threads.rank());
    Ending& ending = endings[me];
    try {
      zero::detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), {});
      if (start == Start::adopted) {
        ending.result = adopt_train_and_destroy<S, P>(owned[me], deadline_ms, windows);
      } else {
        NcclCommunicator comm = start == Start::processes ? zero::nccl_over(threads, {.deadline_ms = deadline_ms}) : std::move(made[me]);
        ending.result = train_and_finalize<S, P>(comm, windows);
      }
    } catch (zero::Error const& error) {
      ending.error = error.what();
      threads.abort(std::current_exception());  // So that nobody waits for it at the start.
    } catch (std::exception const& error) {
      ending.untyped = error.what();
      threads.abort(std::current_exception());
    }
    zero::test::this_is_rank(-1);
  }));
  return endings;
}

/// A call that is made to fail, of CUDA or of NCCL.
struct Failing {
  std::string function;
  std::int64_t call;
  bool nccl;
  bool from_then_on;
};

/// What the library has nobody to tell of: it gives back, goes back to what was, or asks again.
bool is_ignored(std::string const& function) {
  static std::set<std::string> const known{
      "cudaFree",      "cudaFreeHost",     "cudaEventDestroy",        "cudaStreamDestroy",
      "cudaSetDevice", "cudaEventQuery",   "cudaStreamIsCapturing",   "cudaThreadExchangeStreamCaptureMode",
      "ncclMemFree",   "ncclRedOpDestroy", "ncclCommWindowDeregister"};
  return known.count(function) != 0;
}

template <class S, class P>
class Runs {
public:
  Runs(Start start, bool windows) : start_(start), windows_(windows) {
    again();
    static_cast<void>(run<S, P>(start_, patient_ms, windows_, [] {}));  // What a process keeps is there afterwards.
    again();
    endings_ = run<S, P>(start_, patient_ms, windows_, [] {});
    for (Ending const& ending : endings_) {
      CHECK(ending.error == "");
      CHECK(ending.untyped == "");
      REQUIRE(ending.result.has_value());
    }
    kept_ = zero::standin::live();
    CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
    CHECK(kept_.streams == 0);
    CHECK(kept_.events == 0);
    for (auto const& [function, calls] : zero::standin::calls_of(bad)) add(function, calls, false);
    for (auto const& [function, calls] : zero::standin::nccl_calls_of(bad)) add(function, calls, true);
  }

  /// @param each  at the most so many calls of a function fail: the first, the last and some between them
  void fail_calls(std::int64_t each) {
    for (auto const& [function, calls, nccl] : functions_) {
      std::int64_t const times = calls < each ? calls : each;
      for (std::int64_t i = 0; i < times; ++i) {
        std::int64_t const call = times == 1 ? 1 : 1 + i * (calls - 1) / (times - 1);
        fail({function, call, nccl, !nccl && i % 2 == 1});
        ++runs_;
      }
    }
    CHECK(runs_ > 50);
    CHECK(threw_ > runs_ / 2);
  }

  [[nodiscard]] bool calls(std::string const& function) const {
    for (auto const& entry : functions_) {
      if (std::get<0>(entry) == function) return true;
    }
    return false;
  }

  /// What ends communicators, memory, windows and sums fails too, on every rank, while a failure in the middle of a step ends the run.
  void fail_ends() {
    for (std::string const function : {"ncclCommAbort", "ncclMemFree", "ncclCommWindowDeregister", "ncclRedOpDestroy", "ncclCommDestroy"}) {
      INFO(name(start_), ": ", function, " fails where a run is ended");
      check_run(
          [&] {
            zero::standin::fail({.call = 10, .function = "launch", .device = bad});
            zero::standin::fail_nccl({.function = function, .call = 1});
          },
          true);
    }
  }

private:
  static constexpr int bad = 1;

  void fail(Failing const& failing) {
    INFO(name(start_), ": ", failing.function, " fails at call ", failing.call,
         std::string(failing.from_then_on ? " and from then on" : ""));
    auto const arm = [&] {
      if (failing.nccl) {
        zero::standin::fail_nccl({.function = failing.function, .rank = bad, .call = failing.call});
      } else {
        zero::standin::fail({.call = failing.call, .function = failing.function, .from_then_on = failing.from_then_on, .device = bad});
      }
    };
    check_run(arm, failing.call == 1 && !is_ignored(failing.function));  // The last calls of some are made by destructors.
  }

  template <class Arm>
  void check_run(Arm const& arm, bool must_throw) {
    again();
    auto const begin = std::chrono::steady_clock::now();
    auto const endings = run<S, P>(start_, hasty_ms, windows_, arm);
    auto const passed = std::chrono::steady_clock::now() - begin;
    CHECK(std::chrono::duration_cast<std::chrono::seconds>(passed).count() < 20);
    bool threw = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Ending const& ending = endings[rank];
      INFO("rank ", rank, ": ", ending.error);
      CHECK(ending.untyped == "");
      CHECK((ending.result.has_value() || !ending.error.empty()));
      if (ending.result) CHECK((*ending.result == *endings_[rank].result));
      threw = threw || !ending.error.empty();
    }
    if (must_throw) CHECK(threw);
    threw_ += threw ? 1 : 0;
    zero::standin::fail({});
    CHECK(zero::standin::live().streams == 0);
    CHECK(zero::standin::live().events == 0);
    CHECK(zero::standin::live().blocks <= kept_.blocks);
    CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
  }

  void again() {
    zero::standin::reset({.devices = ranks});
    zero::standin::reset_nccl();
  }
  void add(std::string const& function, std::int64_t calls, bool nccl) {
    // How often it is asked is up to chance.
    bool const asks = function == "ncclCommGetAsyncError" || function == "cudaEventQuery" || function == "cudaStreamQuery";
    functions_.emplace_back(function, asks && calls > 4 ? 4 : calls, nccl);
  }

  Start start_;
  bool windows_;
  std::array<Ending, ranks> endings_;
  zero::standin::Live kept_;
  std::vector<std::tuple<std::string, std::int64_t, bool>> functions_;
  std::int64_t runs_ = 0;
  std::int64_t threw_ = 0;
};

using Bf16 = zero::Precision<zero::bf16>;
using Half = zero::Precision<zero::half>;

}  // namespace

TEST_CASE("each call of CUDA and NCCL fails on one rank of two in one process: Stage3") {
  Runs<zero::Stage3, Bf16> runs(Start::one_process, false);
  runs.fail_calls(12);
  runs.fail_ends();
}

TEST_CASE("each call of CUDA and NCCL fails on one rank of two in one process: Stage1, windows, sums with a factor") {
  Runs<zero::Stage1, Half> runs(Start::one_process, true);
  runs.fail_calls(8);
  runs.fail_ends();
  CHECK(runs.calls("ncclMemFree"));
  CHECK(runs.calls("ncclCommWindowDeregister"));
}

TEST_CASE("each call of CUDA and NCCL fails on one rank of two that know of each other by NCCL only") {
  Runs<zero::Stage3, Half> runs(Start::processes, false);
  runs.fail_calls(3);
  runs.fail_ends();
}

TEST_CASE("each call of CUDA and NCCL fails on one rank of two with adopted communicators") {
  Runs<zero::Stage1, Half> runs(Start::adopted, false);
  runs.fail_calls(3);
  runs.fail_ends();
  CHECK(runs.calls("ncclRedOpDestroy"));
}
