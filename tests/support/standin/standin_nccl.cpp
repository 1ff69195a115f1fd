// SPDX-License-Identifier: Apache-2.0
/// @file
/// The stand-in libnccl, see standin_nccl.hpp.

#include "support/standin/standin_nccl.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/core/hash.hpp>

namespace {

using zero::standin::NcclFailure;
using zero::standin::NcclLive;
using zero::standin::NcclStandinOptions;

using Bytes = std::vector<unsigned char>;

enum class Kind { all_gather, reduce_scatter, all_reduce, broadcast, send, receive };

/// One operation, as it was called.
struct Call {
  Kind kind;
  void const* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  double factor = 1;
  int peer = 0;  // or root
  bool hangs = false;

  [[nodiscard]] bool matches(Call const& o) const {
    return kind == o.kind && count == o.count && type == o.type && op == o.op && (kind != Kind::broadcast || peer == o.peer);
  }
};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

/// What the ranks of one collective have brought.
struct Slot {
  std::vector<Bytes> inputs;
  std::vector<Call> calls;
  int arrived = 0;
  int left = 0;
  bool matched = true;
};

/// The ranks of a split.
struct SplitRound;

/// A communicator's group, shared by its ranks.
struct Group {
  explicit Group(int size) : ranks(size), devices(static_cast<std::size_t>(size), -1) {}

  int const ranks;
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  std::vector<int> devices;
  std::map<std::int64_t, Slot> slots;
  std::map<std::pair<int, int>, std::deque<Bytes>> mail;  // from, to
  std::map<std::int64_t, SplitRound> splits;
  std::map<std::int64_t, int> windows;
};

struct SplitRound {
  struct Entry {
    bool here = false;
    int color = 0;
    int key = 0;
  };
  std::vector<Entry> entries;
  int arrived = 0;
  std::map<int, std::shared_ptr<Group>> children;
};

/// What a communicator shares with its operations on streams.
struct Life {
  std::atomic<bool> aborted = false;
  std::atomic<int> error = ncclSuccess;
  std::int64_t turn = 0;  // under the group's mutex
  std::int64_t in_flight = 0;
};

/// What one call puts on one stream.
struct Job {
  std::shared_ptr<Group> group;
  std::shared_ptr<Life> life;
  int rank;
  std::int64_t ticket;
  std::vector<std::pair<Call, std::int64_t>> calls;  // with the number of the collective
};

template <class T>
T value_at(Bytes const& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
T combined(T a, T b, ncclRedOp_t op) {
  using C = zero::compute_t<T>;
  auto const x = static_cast<C>(a);
  auto const y = static_cast<C>(b);
  if (op == ncclMax) {
    if constexpr (zero::RealElement<T>) return std::isnan(x) ? b : std::isnan(y) ? a : x < y ? b : a;
    return x < y ? b : a;
  }
  if constexpr (zero::RealElement<T>) {
    return static_cast<T>(static_cast<C>(x + y));
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(x) + static_cast<std::uint64_t>(y));
  }
}

/// As a ring: the addends one after the other, rounded at every hop, beginning at another rank each time.
template <class T>
void reduce_as(Slot const& slot, Call const& call, std::int64_t number, std::size_t first, std::size_t count) {
  std::size_t const ranks = slot.inputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    T sum{};
    for (std::size_t hop = 0; hop < ranks; ++hop) {
      T value = value_at<T>(slot.inputs[(static_cast<std::size_t>(number) + hop) % ranks], first + i);
      if constexpr (zero::RealElement<T>) {
        using C = zero::compute_t<T>;
        if (call.factor != 1) value = static_cast<T>(static_cast<C>(static_cast<C>(value) * static_cast<C>(call.factor)));
      }
      sum = hop == 0 ? value : combined(sum, value, call.op);
    }
    std::memcpy(static_cast<unsigned char*>(call.receive) + i * sizeof(T), &sum, sizeof(T));
  }
}

void reduce(Slot const& slot, Call const& call, std::int64_t number, std::size_t first, std::size_t count) {
  switch (call.type) {
    case ncclInt8: return reduce_as<std::int8_t>(slot, call, number, first, count);
    case ncclUint8: return reduce_as<std::uint8_t>(slot, call, number, first, count);
    case ncclInt32: return reduce_as<std::int32_t>(slot, call, number, first, count);
    case ncclUint32: return reduce_as<std::uint32_t>(slot, call, number, first, count);
    case ncclInt64: return reduce_as<std::int64_t>(slot, call, number, first, count);
    case ncclUint64: return reduce_as<std::uint64_t>(slot, call, number, first, count);
    case ncclFloat16: return reduce_as<zero::half>(slot, call, number, first, count);
    case ncclBfloat16: return reduce_as<zero::bf16>(slot, call, number, first, count);
    case ncclFloat32: return reduce_as<float>(slot, call, number, first, count);
    case ncclFloat64: return reduce_as<double>(slot, call, number, first, count);
    default: return;
  }
}

/// An operation's run on its stream.
class Run {
public:
  explicit Run(Job& job) : job_(job), group_(*job.group), lock_(group_.mutex) {}

  void run() {
    auto const done = [&] {
      ++job_.life->turn;
      --job_.life->in_flight;
      group_.changed.notify_all();
    };
    if (wait([&] { return job_.life->turn == job_.ticket; })) {
      for (auto& [call, number] : job_.calls) post(call, number);
      for (auto& [call, number] : job_.calls) {
        if (call.hangs) {
          wait([] { return false; });
          break;
        }
        if (!complete(call, number)) break;
      }
    }
    done();
  }

private:
  /// False where this rank was aborted.
  template <class F>
  bool wait(F ready) {
    group_.changed.wait(lock_, [&] { return ready() || job_.life->aborted.load(); });
    return !job_.life->aborted.load();
  }

  void post(Call const& call, std::int64_t number) {
    if (call.hangs || call.kind == Kind::receive) return;
    auto const ranks = static_cast<std::size_t>(group_.ranks);
    std::size_t const parts = call.kind == Kind::reduce_scatter ? ranks : 1;
    std::size_t const bytes = call.count * parts * bytes_of(call.type);
    bool const brings = call.kind != Kind::broadcast || call.peer == job_.rank;
    Bytes input(brings ? bytes : 0);
    if (!input.empty()) std::memcpy(input.data(), call.send, input.size());
    if (call.kind == Kind::send) {
      group_.mail[{job_.rank, call.peer}].push_back(std::move(input));
    } else {
      Slot& slot = group_.slots[number];
      slot.inputs.resize(ranks);
      slot.calls.resize(ranks, call);
      slot.inputs[static_cast<std::size_t>(job_.rank)] = std::move(input);
      slot.calls[static_cast<std::size_t>(job_.rank)] = call;
      ++slot.arrived;
      for (Call const& other : slot.calls) slot.matched = slot.matched && other.matches(call);
    }
    group_.changed.notify_all();
  }

  bool complete(Call const& call, std::int64_t number) {
    if (call.kind == Kind::send) return true;
    if (call.kind == Kind::receive) {
      auto& box = group_.mail[{call.peer, job_.rank}];
      std::size_t const bytes = call.count * bytes_of(call.type);
      if (!wait([&] { return !box.empty() && box.front().size() == bytes; })) return false;
      if (bytes > 0) std::memcpy(call.receive, box.front().data(), bytes);
      box.pop_front();
      return true;
    }
    Slot& slot = group_.slots[number];
    bool const needs_only_root = call.kind == Kind::broadcast;
    auto const root_is_here = [&] { return call.peer == job_.rank || !slot.inputs[static_cast<std::size_t>(call.peer)].empty(); };
    bool const here =
        wait([&] { return slot.matched && (slot.arrived == group_.ranks || (needs_only_root && call.count > 0 && root_is_here())); });
    if (!here) return false;
    finish(slot, call, number);
    if (++slot.left == group_.ranks) group_.slots.erase(number);
    return true;
  }

  void finish(Slot const& slot, Call const& call, std::int64_t number) {
    std::size_t const bytes = call.count * bytes_of(call.type);
    auto const rank = static_cast<std::size_t>(job_.rank);
    switch (call.kind) {
      case Kind::all_gather:
        for (std::size_t r = 0; r < slot.inputs.size() && bytes > 0; ++r) {
          std::memcpy(static_cast<unsigned char*>(call.receive) + r * bytes, slot.inputs[r].data(), bytes);
        }
        break;
      case Kind::reduce_scatter: reduce(slot, call, number, rank * call.count, call.count); break;
      case Kind::all_reduce: reduce(slot, call, number, 0, call.count); break;
      case Kind::broadcast:
        if (call.peer != job_.rank && bytes > 0) std::memcpy(call.receive, slot.inputs[static_cast<std::size_t>(call.peer)].data(), bytes);
        break;
      default: break;
    }
  }

  Job& job_;
  Group& group_;
  std::unique_lock<std::mutex> lock_;
};

void run_job(void* data) {
  std::unique_ptr<Job> const job(static_cast<Job*>(data));
  Run(*job).run();
}

}  // namespace

struct ncclWindow_vidmem;

/// NCCL's opaque type.
struct ncclComm {
  std::shared_ptr<Group> group;
  std::shared_ptr<Life> life = std::make_shared<Life>();
  int rank = 0;
  int device = 0;
  bool blocking = true;
  std::mutex mutex;
  int polls = 0;                            // that still say "in progress"
  std::function<bool()> pending = nullptr;  // what the last call still has to do: false while it cannot
  std::int64_t tickets = 0;
  std::int64_t collectives = 0;
  std::int64_t splits = 0;
  std::int64_t windows = 0;
  std::set<ncclWindow_vidmem*> live_windows{};
  std::map<int, double> reductions;
  int reductions_made = 0;
  std::atomic<int> inside = 0;  // threads that block in a call: an abort waits until they have left
};

struct ncclWindow_vidmem {
  ncclComm_t comm;
};

namespace {

struct Library {
  std::mutex mutex;
  std::atomic<int> cta_policy = NCCL_CONFIG_UNDEF_INT;
  NcclStandinOptions options;
  NcclFailure failure;
  std::int64_t matching = 0;
  std::map<std::pair<std::string, int>, std::int64_t> calls;
  std::int64_t all_calls = 0;
  std::uint64_t random = 1;
  std::map<std::string, std::shared_ptr<Group>> starting;
  std::set<ncclComm_t> live;
  NcclLive counts;
};

Library& library() {
  static auto* const instance = new Library;  // Never destroyed: the leak sanitizer finds here what a test has lost on purpose.
  return *instance;
}

struct ThisThread {
  int rank = -1;
  int depth = 0;
  std::vector<std::pair<ncclComm_t, std::pair<cudaStream_t, Call>>> queue;
  std::string last_error;
};

ThisThread& this_thread() {
  thread_local ThisThread state;
  return state;
}

ncclResult_t refuse(ncclResult_t result, std::string text) {
  this_thread().last_error = std::move(text);
  return result;
}

/// Counts a call. True where it was made to fail.
bool made_to_fail(char const* function, ncclResult_t& result, bool& later) {
  Library& lib = library();
  std::lock_guard const lock(lib.mutex);
  int const rank = this_thread().rank;
  ++lib.all_calls;
  ++lib.calls[{function, rank}];
  if (lib.failure.call == 0 || lib.failure.function != function || (lib.failure.rank >= 0 && lib.failure.rank != rank)) return false;
  if (++lib.matching != lib.failure.call) return false;
  result = lib.failure.result;
  later = lib.failure.later;
  this_thread().last_error = std::string(function) + " was made to fail by a test";
  return true;
}

/// For what does its work even where it fails.
#define STANDIN_NCCL_ENDS(function)   \
  ncclResult_t made_to = ncclSuccess; \
  bool made_to_later = false;         \
  static_cast<void>(made_to_fail(#function, made_to, made_to_later))

#define STANDIN_NCCL(function)        \
  ncclResult_t made_to = ncclSuccess; \
  bool made_to_later = false;         \
  if (made_to_fail(#function, made_to, made_to_later) && !made_to_later) return made_to

void demand_alive(ncclComm_t comm, char const* function) {
  std::lock_guard const lock(library().mutex);
  if (library().live.count(comm) != 0) return;
  std::fprintf(stderr, "stand-in libnccl: %s is given a communicator that does not exist (any more)\n", function);
  std::abort();
}

int polls_of_next_call() {
  std::lock_guard const lock(library().mutex);
  library().random = zero::mixed_bits(library().random + 0x9e3779b97f4a7c15u);
  return static_cast<int>(library().random % static_cast<std::uint64_t>(library().options.most_polls + 1));
}

ncclComm_t make_comm(std::shared_ptr<Group> group, int rank, int device, bool blocking) {
  auto* const comm = new ncclComm;
  comm->group = std::move(group);
  comm->rank = rank;
  comm->device = device;
  comm->blocking = blocking;
  std::lock_guard const lock(library().mutex);
  library().live.insert(comm);
  ++library().counts.communicators;
  return comm;
}

/// The communicator's memory goes, and its windows; operations that still run keep what they need.
void free_comm(ncclComm_t comm) {
  {
    std::lock_guard const lock(library().mutex);
    library().live.erase(comm);
    --library().counts.communicators;
    library().counts.reductions -= static_cast<std::int64_t>(comm->reductions.size());
    library().counts.windows -= static_cast<std::int64_t>(comm->live_windows.size());
  }
  for (ncclWindow_vidmem* const window : comm->live_windows) delete window;
  delete comm;
}

/// True while the last call is not done, or an error was reported: nothing else may be called then.
bool refuses_calls(ncclComm_t comm, char const* function, ncclResult_t& result) {
  std::lock_guard const lock(comm->mutex);
  if (comm->pending != nullptr) {
    result = refuse(ncclInvalidUsage, std::string(function) + ": the call before it is not done yet");
    return true;
  }
  if (int const error = comm->life->error.load(); error != ncclSuccess) {
    result = static_cast<ncclResult_t>(error);
    return true;
  }
  return false;
}

/// Does what a call has to do: at once, as soon as it can on a blocking communicator, or when it is asked often enough.
ncclResult_t start(ncclComm_t comm, std::function<bool()> work) {
  if (comm->blocking) {
    bool done = false;
    ++comm->inside;
    while (!done && !comm->life->aborted.load()) {
      done = work();
      std::unique_lock lock(comm->group->mutex);
      if (!done) comm->group->changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    --comm->inside;
    return done ? ncclSuccess : ncclInternalError;
  }
  std::lock_guard const lock(comm->mutex);
  comm->polls = polls_of_next_call();
  comm->pending = std::move(work);
  return ncclInProgress;
}

/// A non-blocking communicator may also be done at once, or say so.
ncclResult_t poll(ncclComm_t comm) {
  std::lock_guard const lock(comm->mutex);
  if (int const error = comm->life->error.load(); error != ncclSuccess) return static_cast<ncclResult_t>(error);
  if (comm->pending == nullptr) return ncclSuccess;
  if (comm->polls > 0) {
    --comm->polls;
    return ncclInProgress;
  }
  if (!comm->pending()) return ncclInProgress;
  comm->pending = nullptr;
  return static_cast<ncclResult_t>(comm->life->error.load());  // of a launch
}

bool launch(ncclComm_t comm, cudaStream_t stream, std::vector<Call> const& calls) {
  auto job = std::make_unique<Job>();
  job->group = comm->group;
  job->life = comm->life;
  job->rank = comm->rank;
  job->ticket = comm->tickets++;
  for (Call const& call : calls) {
    bool const collective = call.kind != Kind::send && call.kind != Kind::receive;
    job->calls.emplace_back(call, collective ? comm->collectives++ : -1);
  }
  {
    std::lock_guard const lock(comm->group->mutex);
    ++comm->life->in_flight;
  }
  if (cudaLaunchHostFunc(stream, run_job, job.get()) != cudaSuccess) {
    comm->life->error = ncclUnhandledCudaError;
    std::lock_guard const lock(comm->group->mutex);
    --comm->life->in_flight;
    return true;
  }
  static_cast<void>(job.release());
  return true;
}

/// What was called for one communicator goes on its streams.
ncclResult_t start_calls(ncclComm_t comm, std::vector<std::pair<cudaStream_t, Call>> const& calls) {
  return start(comm, [comm, calls] {
    for (std::size_t i = 0; i < calls.size();) {
      std::vector<Call> of_stream;
      std::size_t const first = i;
      for (; i < calls.size() && calls[i].first == calls[first].first; ++i) of_stream.push_back(calls[i].second);
      launch(comm, calls[first].first, of_stream);
    }
    return true;
  });
}

ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, Call call, char const* function, bool hangs, ncclResult_t later) {
  demand_alive(comm, function);
  ncclResult_t result = ncclSuccess;
  if (refuses_calls(comm, function, result)) return result;
  bool const is_reduction = call.kind == Kind::reduce_scatter || call.kind == Kind::all_reduce;
  if (call.count > 0 && ((call.send == nullptr && call.kind != Kind::receive) || (call.receive == nullptr && call.kind != Kind::send))) {
    return refuse(ncclInvalidArgument, std::string(function) + ": a null pointer");
  }
  if (call.peer < 0 || call.peer >= comm->group->ranks) return refuse(ncclInvalidArgument, std::string(function) + ": no such rank");
  if (is_reduction && static_cast<int>(call.op) >= static_cast<int>(ncclNumOps)) {
    auto const found = comm->reductions.find(static_cast<int>(call.op));
    if (found == comm->reductions.end()) return refuse(ncclInvalidArgument, std::string(function) + ": no such reduction");
    call.factor = found->second;
    call.op = ncclSum;
  }
  if (hangs) {
    call.hangs = true;
    comm->life->error = later;
  }
  if (this_thread().depth > 0) {
    this_thread().queue.emplace_back(comm, std::pair(stream, call));
    return ncclSuccess;
  }
  result = start_calls(comm, {{stream, call}});
  int const version = library().options.version;
  return version >= 22000 && version < 22400 && result == ncclInProgress ? ncclSuccess : result;  // As 2.22 says it.
}

#define STANDIN_ENQUEUE(function, ...) \
  STANDIN_NCCL(function);              \
  return enqueue(comm, stream, Call{__VA_ARGS__}, #function, made_to_later, made_to)

}  // namespace

namespace zero::standin {

void reset_nccl(NcclStandinOptions const& options) {
  Library& lib = library();
  std::lock_guard const lock(lib.mutex);
  lib.options = options;
  lib.failure = {};
  lib.matching = 0;
  lib.calls.clear();
  lib.all_calls = 0;
  lib.starting.clear();
}

void set_nccl_rank(int rank) { this_thread().rank = rank; }

void fail_nccl(NcclFailure const& failure) {
  std::lock_guard const lock(library().mutex);
  library().failure = failure;
  library().matching = 0;
}

std::int64_t nccl_calls(std::string const& function, int rank) {
  std::lock_guard const lock(library().mutex);
  std::int64_t sum = 0;
  for (auto const& [key, count] : library().calls) sum += key.first == function && (rank < 0 || key.second == rank) ? count : 0;
  return sum;
}

std::map<std::string, std::int64_t> nccl_calls_of(int rank) {
  std::lock_guard const lock(library().mutex);
  std::map<std::string, std::int64_t> result;
  for (auto const& [key, count] : library().calls) {
    if (key.second == rank) result[key.first] = count;
  }
  return result;
}

int nccl_cta_policy() { return library().cta_policy; }

std::int64_t nccl_calls() {
  std::lock_guard const lock(library().mutex);
  return library().all_calls;
}

NcclLive live_nccl() {
  std::lock_guard const lock(library().mutex);
  return library().counts;
}

}  // namespace zero::standin

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  STANDIN_NCCL(ncclGetVersion);
  *version = library().options.version;
  return ncclSuccess;
}

char const* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

char const* ncclGetLastError(ncclComm_t) { return this_thread().last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  STANDIN_NCCL(ncclGetUniqueId);
  *id = {};
  if (char const* const address = std::getenv("NCCL_COMM_ID")) {
    std::snprintf(id->internal, sizeof id->internal, "%s", address);
  } else {
    static std::atomic<int> made = 0;
    std::snprintf(id->internal, sizeof id->internal, "stand-in %d", ++made);
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  STANDIN_NCCL(ncclCommInitRankConfig);
  *comm = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) return refuse(ncclInvalidArgument, "ncclCommInitRankConfig: no such rank");
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return refuse(ncclUnhandledCudaError, "ncclCommInitRankConfig: no CUDA device");
  std::shared_ptr<Group> group;
  {
    Library& lib = library();
    std::lock_guard const lock(lib.mutex);
    auto& starting = lib.starting[id.internal];
    if (starting == nullptr) starting = std::make_shared<Group>(ranks);
    group = starting;
    std::lock_guard const group_lock(group->mutex);
    if (group->ranks != ranks) return refuse(ncclInvalidUsage, "ncclCommInitRankConfig: the ranks differ in their number");
    for (int r = 0; r < ranks; ++r) {
      int const other = group->devices[static_cast<std::size_t>(r)];
      if (r == rank ? other >= 0 : other == device) {
        return refuse(ncclInvalidUsage, r == rank ? "ncclCommInitRankConfig: the rank is there already" : "Duplicate GPU detected");
      }
    }
    group->devices[static_cast<std::size_t>(rank)] = device;
    if (++group->arrived == ranks) lib.starting.erase(id.internal);
    group->changed.notify_all();
  }
#if NCCL_VERSION_CODE >= 22800
  library().cta_policy = config == nullptr ? NCCL_CONFIG_UNDEF_INT : config->CTAPolicy;
#endif
  bool const blocking = config == nullptr || config->blocking != 0;
  ncclComm_t const made = make_comm(group, rank, device, blocking);
  *comm = made;
  if (made_to_later) made->life->error = made_to;
  return start(made, [group] {
    std::lock_guard const lock(group->mutex);
    return group->arrived == group->ranks;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  STANDIN_NCCL(ncclCommGetAsyncError);
  demand_alive(comm, "ncclCommGetAsyncError");
  *state = poll(comm);
  if (*state != ncclSuccess && *state != ncclInProgress) this_thread().last_error = "the communicator has failed";
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t const comm, int* count) {
  STANDIN_NCCL(ncclCommCount);
  demand_alive(comm, "ncclCommCount");
  *count = comm->group->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t const comm, int* rank) {
  STANDIN_NCCL(ncclCommUserRank);
  demand_alive(comm, "ncclCommUserRank");
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t const comm, int* device) {
  STANDIN_NCCL(ncclCommCuDevice);
  demand_alive(comm, "ncclCommCuDevice");
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  STANDIN_NCCL(ncclCommFinalize);
  demand_alive(comm, "ncclCommFinalize");
  ncclResult_t result = ncclSuccess;
  if (refuses_calls(comm, "ncclCommFinalize", result)) return result;
  return start(comm, [comm] {
    std::lock_guard const lock(comm->group->mutex);
    return comm->life->in_flight == 0;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  STANDIN_NCCL_ENDS(ncclCommDestroy);
  demand_alive(comm, "ncclCommDestroy");
  {
    std::unique_lock lock(comm->group->mutex);
    comm->group->changed.wait(lock, [&] { return comm->life->in_flight == 0; });
  }
  free_comm(comm);
  return made_to;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  STANDIN_NCCL_ENDS(ncclCommAbort);
  demand_alive(comm, "ncclCommAbort");
  std::shared_ptr<Group> const group = comm->group;
  {
    std::lock_guard const lock(group->mutex);
    comm->life->aborted = true;
    group->changed.notify_all();
  }
  while (comm->inside.load() > 0) std::this_thread::yield();
  {
    // Nobody listens any more where the ranks were to meet.
    std::lock_guard const lock(library().mutex);
    std::erase_if(library().starting, [&](auto const& entry) { return entry.second == group; });
  }
  free_comm(comm);
  return made_to;
}

#if NCCL_VERSION_CODE >= 22809
ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  STANDIN_NCCL(ncclCommRevoke);
  demand_alive(comm, "ncclCommRevoke");
  std::lock_guard const lock(comm->group->mutex);
  comm->life->aborted = true;
  comm->group->changed.notify_all();
  return ncclSuccess;
}
#endif

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  STANDIN_NCCL(ncclCommSplit);
  demand_alive(comm, "ncclCommSplit");
  ncclResult_t result = ncclSuccess;
  if (refuses_calls(comm, "ncclCommSplit", result)) return result;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, "ncclCommSplit: a negative color");
  *child = nullptr;
  if (made_to_later) {
    comm->life->error = made_to;
    return ncclInProgress;
  }
  bool const blocking = config == nullptr ? comm->blocking : config->blocking != 0;
  std::shared_ptr<Group> const group = comm->group;
  std::int64_t const number = comm->splits++;
  {
    std::lock_guard const lock(group->mutex);
    SplitRound& round = group->splits[number];
    round.entries.resize(static_cast<std::size_t>(group->ranks));
    round.entries[static_cast<std::size_t>(comm->rank)] = {true, color, key};
    ++round.arrived;
    group->changed.notify_all();
  }
  return start(comm, [comm, group, number, color, child, blocking] {
    std::shared_ptr<Group> children;
    int rank = 0;
    {
      std::lock_guard const lock(group->mutex);
      SplitRound& round = group->splits[number];
      if (round.arrived < group->ranks) return false;
      int size = 0;
      auto const& own = round.entries[static_cast<std::size_t>(comm->rank)];
      for (int r = 0; r < group->ranks; ++r) {
        auto const& other = round.entries[static_cast<std::size_t>(r)];
        if (other.color != color) continue;
        ++size;
        if (other.key < own.key || (other.key == own.key && r < comm->rank)) ++rank;
      }
      auto& shared = round.children[color];
      if (shared == nullptr) shared = std::make_shared<Group>(size);
      children = shared;
    }
    if (color < 0) return true;
    ncclComm_t const made = make_comm(children, rank, comm->device, blocking);
    if (!blocking) static_cast<void>(start(made, [] { return true; }));
    __atomic_store_n(child, made, __ATOMIC_RELEASE);
    return true;
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                                      ncclComm_t comm) {
  STANDIN_NCCL(ncclRedOpCreatePreMulSum);
  demand_alive(comm, "ncclRedOpCreatePreMulSum");
  if (residence != ncclScalarHostImmediate)
    return refuse(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: only host scalars in the stand-in");
  double factor = 0;
  auto const read = [&]<class T>(T value) {
    std::memcpy(&value, scalar, sizeof value);
    factor = static_cast<double>(static_cast<zero::compute_t<T>>(value));
  };
  if (type == ncclFloat16) read(zero::half{});
  else if (type == ncclBfloat16) read(zero::bf16{});
  else if (type == ncclFloat32) read(float{});
  else if (type == ncclFloat64) read(double{});
  else return refuse(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: only real types in the stand-in");
  int const handle = static_cast<int>(ncclNumOps) + comm->reductions_made++;
  comm->reductions[handle] = factor;
  *op = static_cast<ncclRedOp_t>(handle);
  std::lock_guard const lock(library().mutex);
  ++library().counts.reductions;
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  STANDIN_NCCL_ENDS(ncclRedOpDestroy);
  demand_alive(comm, "ncclRedOpDestroy");
  if (comm->reductions.erase(static_cast<int>(op)) == 0) return refuse(ncclInvalidArgument, "ncclRedOpDestroy: no such reduction");
  std::lock_guard const lock(library().mutex);
  --library().counts.reductions;
  return made_to;
}

ncclResult_t ncclAllGather(void const* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENQUEUE(ncclAllGather, .kind = Kind::all_gather, .send = send, .receive = receive, .count = count, .type = type);
}

ncclResult_t ncclReduceScatter(void const* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  STANDIN_ENQUEUE(ncclReduceScatter, .kind = Kind::reduce_scatter, .send = send, .receive = receive, .count = count, .type = type,
                  .op = op);
}

ncclResult_t ncclAllReduce(void const* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  STANDIN_ENQUEUE(ncclAllReduce, .kind = Kind::all_reduce, .send = send, .receive = receive, .count = count, .type = type, .op = op);
}

ncclResult_t ncclBroadcast(void const* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  STANDIN_ENQUEUE(ncclBroadcast, .kind = Kind::broadcast, .send = send, .receive = receive, .count = count, .type = type, .peer = root);
}

ncclResult_t ncclSend(void const* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENQUEUE(ncclSend, .kind = Kind::send, .send = send, .count = count, .type = type, .peer = peer);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  STANDIN_ENQUEUE(ncclRecv, .kind = Kind::receive, .receive = receive, .count = count, .type = type, .peer = peer);
}

ncclResult_t ncclGroupStart() {
  STANDIN_NCCL(ncclGroupStart);
  ++this_thread().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  ncclResult_t made_to = ncclSuccess;
  bool later = false;
  bool const fails = made_to_fail("ncclGroupEnd", made_to, later);
  ThisThread& thread = this_thread();
  if (thread.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--thread.depth > 0) return fails ? made_to : ncclSuccess;
  auto const queue = std::exchange(thread.queue, {});
  if (fails) return made_to;
  std::vector<ncclComm_t> order;
  std::map<ncclComm_t, std::vector<std::pair<cudaStream_t, Call>>> of;
  for (auto const& [comm, call] : queue) {
    if (of[comm].empty()) order.push_back(comm);
    of[comm].push_back(call);
  }
  ncclResult_t result = ncclSuccess;
  for (ncclComm_t comm : order) {
    ncclResult_t const started = start_calls(comm, of[comm]);
    if (started != ncclSuccess) result = started;
  }
  return result;
}

ncclResult_t ncclMemAlloc(void** block, size_t bytes) {
  STANDIN_NCCL(ncclMemAlloc);
  if (cudaMalloc(block, bytes) != cudaSuccess) return refuse(ncclUnhandledCudaError, "ncclMemAlloc: cudaMalloc failed");
  std::lock_guard const lock(library().mutex);
  ++library().counts.blocks;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* block) {
  STANDIN_NCCL_ENDS(ncclMemFree);
  bool const freed = cudaFree(block) == cudaSuccess;
  std::lock_guard const lock(library().mutex);
  --library().counts.blocks;
  return freed ? made_to : refuse(ncclUnhandledCudaError, "ncclMemFree: cudaFree failed");
}

#if NCCL_VERSION_CODE >= 22700
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* block, size_t bytes, ncclWindow_t* window, int) {
  STANDIN_NCCL(ncclCommWindowRegister);
  demand_alive(comm, "ncclCommWindowRegister");
  ncclResult_t result = ncclSuccess;
  if (refuses_calls(comm, "ncclCommWindowRegister", result)) return result;
  *window = nullptr;
  if (block == nullptr || bytes == 0) return refuse(ncclInvalidArgument, "ncclCommWindowRegister: nothing to register");
  std::shared_ptr<Group> const group = comm->group;
  std::int64_t const number = comm->windows++;
  {
    std::lock_guard const lock(group->mutex);
    ++group->windows[number];
    group->changed.notify_all();
  }
  return start(comm, [comm, group, number, window] {
    {
      std::lock_guard const lock(group->mutex);
      if (group->windows[number] < group->ranks) return false;
    }
    std::lock_guard const lock(library().mutex);
    if (library().options.null_windows) return true;
    *window = new ncclWindow_vidmem{comm};
    comm->live_windows.insert(*window);
    ++library().counts.windows;
    return true;
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  STANDIN_NCCL_ENDS(ncclCommWindowDeregister);
  demand_alive(comm, "ncclCommWindowDeregister");
  if (window == nullptr || window->comm != comm)
    return refuse(ncclInvalidArgument, "ncclCommWindowDeregister: another communicator's window");
  std::lock_guard const lock(library().mutex);
  comm->live_windows.erase(window);
  delete window;
  --library().counts.windows;
  return made_to;
}
#endif

}  // extern "C"
