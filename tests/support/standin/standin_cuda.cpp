// SPDX-License-Identifier: Apache-2.0
/// @file
/// The stand-in CUDA runtime, see standin_cuda.hpp.

#include "support/standin/standin_cuda.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <zero/core/hash.hpp>

namespace {

using zero::standin::Failure;
using zero::standin::Live;
using zero::standin::Options;

/// A point in a stream, as an event has recorded it.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void finish() {
    std::lock_guard const lock(mutex);
    done = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return done; });
  }
  bool is_done() {
    std::lock_guard const lock(mutex);
    return done;
  }
};

}  // namespace

/// Work that was captured: tasks, and which of them each runs after.
struct CUgraph_st {
  struct Node {
    std::function<void()> task;
    std::vector<std::size_t> after;
  };
  std::vector<Node> nodes;

  /// Whether every node is one of those, or before one.
  [[nodiscard]] bool all_before(std::vector<std::size_t> ends) const {
    std::set<std::size_t> seen;
    while (!ends.empty()) {
      std::size_t const node = ends.back();
      ends.pop_back();
      if (seen.insert(node).second) ends.insert(ends.end(), nodes[node].after.begin(), nodes[node].after.end());
    }
    return seen.size() == nodes.size();
  }

  /// Runs every node once, in an order that the dependencies allow.
  /// @param seed  0: the order of the capture.
  void run(std::uint64_t seed) const {
    std::vector<bool> done(nodes.size(), false);
    for (std::size_t ran = 0; ran < nodes.size(); ++ran) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        bool const free = std::all_of(nodes[i].after.begin(), nodes[i].after.end(), [&](std::size_t before) { return done[before]; });
        if (!done[i] && free) ready.push_back(i);
      }
      std::size_t const next = ready[seed == 0 ? 0 : zero::mixed_bits(seed + ran) % ready.size()];
      nodes[next].task();
      done[next] = true;
    }
  }
};

struct CUgraphExec_st {
  std::shared_ptr<CUgraph_st const> graph;
  std::uint64_t launches = 0;
};

namespace {

/// A capture under way. Guarded by the runtime's mutex.
struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalidated = false;
  CUgraph_st graph;
};

}  // namespace

/// A stream: tasks and a thread that runs them in order.
struct CUstream_st {
  CUstream_st(int on, std::uint64_t seed, std::int32_t max_delay) : device(on), seed_(seed), max_delay_us_(max_delay) {
    thread_ = std::thread([this] { work(); });
  }

  /// False where the stream was destroyed and all that was queued has run.
  bool push(std::function<void()> task) {
    std::lock_guard const lock(mutex_);
    if (ended_) return false;
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return true;
  }
  void wait_until_idle() {
    auto const point = std::make_shared<Point>();
    if (push([point] { point->finish(); })) point->wait();
  }
  bool idle() {
    std::lock_guard const lock(mutex_);
    return tasks_.empty() && !busy_;
  }
  /// What is queued still runs.
  void end() {
    std::lock_guard const lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  void join() { thread_.join(); }

  int const device;
  // Guarded by the runtime's mutex:
  std::shared_ptr<Capture> capture;   // what it is captured in, if it is
  std::vector<std::size_t> latest{};  // the nodes that its next one runs after

private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) {
        ended_ = true;
        return;
      }
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      delay();
      task();
      task = nullptr;
      lock.lock();
      busy_ = false;
    }
  }

  void delay() {
    if (seed_ == 0) return;
    std::uint64_t const bits = zero::mixed_bits(seed_ + zero::mixed_bits(count_++));
    if ((bits & 7u) == 0) {
      auto const us = static_cast<std::int64_t>((bits >> 32) % (static_cast<std::uint64_t>(max_delay_us_) + 1));
      std::this_thread::sleep_for(std::chrono::microseconds(us));
    } else if ((bits & 7u) <= 2) {
      std::this_thread::yield();
    }
  }

  std::uint64_t seed_;
  std::int32_t max_delay_us_;
  std::uint64_t count_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;
  bool ends_ = false;   // when what is queued has run
  bool ended_ = false;  // nothing runs any more
  std::thread thread_;
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<Point> latest = nullptr;  // null: never recorded, or in a capture
  std::shared_ptr<Capture> capture = nullptr;
  std::vector<std::size_t> nodes{};  // what was recorded in the capture
};

namespace {

struct Block {
  std::size_t bytes;
  cudaMemoryType type;
  int device;
};

constexpr std::align_val_t alignment{256};

struct Runtime {
  std::mutex mutex;
  Options options;
  Failure failure;
  std::map<std::pair<std::string, int>, std::int64_t> calls;  // by function and device
  std::int64_t all_calls = 0;
  std::int64_t matching_calls = 0;
  std::uint64_t streams_made = 0;
  std::set<cudaStream_t> streams;
  std::vector<std::unique_ptr<CUstream_st>> ended;
  std::set<cudaEvent_t> events;
  std::map<void*, Block> blocks;
  std::vector<std::shared_ptr<Capture>> captures;
  std::int64_t graphs = 0;

  ~Runtime() { join_ended(); }

  void join_ended() {
    for (auto const& stream : ended) stream->join();
    ended.clear();
  }

  /// The error that this call was made to have.
  cudaError_t count(char const* function);
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

struct ThisThread {
  int device = 0;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  cudaError_t last_error = cudaSuccess;
};

ThisThread& this_thread() {
  thread_local ThisThread state;
  return state;
}

cudaError_t Runtime::count(char const* function) {
  int const device = this_thread().device;
  std::lock_guard const lock(mutex);
  ++all_calls;
  ++calls[{function, device}];
  if (failure.call == 0 || (!failure.function.empty() && failure.function != function)) return cudaSuccess;
  if (failure.device >= 0 && failure.device != device) return cudaSuccess;
  ++matching_calls;
  bool const fails = matching_calls == failure.call || (failure.from_then_on && matching_calls > failure.call);
  return fails ? failure.error : cudaSuccess;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) this_thread().last_error = error;
  return error;
}

/// Counts a call and returns from it where it was made to fail, there is no driver or no device.
#define STANDIN_CALL(name)                                                                                  \
  do {                                                                                                      \
    if (cudaError_t const made_to = runtime().count(#name); made_to != cudaSuccess) return result(made_to); \
    if (runtime().options.driver_version == 0) return result(cudaErrorInsufficientDriver);                  \
    if (runtime().options.devices == 0) return result(cudaErrorNoDevice);                                   \
  } while (false)

bool known(cudaStream_t stream) {
  std::lock_guard const lock(runtime().mutex);
  return runtime().streams.count(stream) != 0;
}

bool known(cudaEvent_t event) {
  std::lock_guard const lock(runtime().mutex);
  return runtime().events.count(event) != 0;
}

bool is_captured(cudaStream_t stream) {
  std::lock_guard const lock(runtime().mutex);
  return stream->capture != nullptr;
}

/// The block that holds an address; a block of 0 bytes of type Unregistered where there is none.
std::pair<void*, Block> block_of(void const* address) {
  Runtime& r = runtime();
  std::lock_guard const lock(r.mutex);
  auto after = r.blocks.upper_bound(const_cast<void*>(address));
  if (after != r.blocks.begin()) {
    --after;
    if (static_cast<char const*>(address) < static_cast<char const*>(after->first) + after->second.bytes) return *after;
  }
  return {nullptr, Block{0, cudaMemoryTypeUnregistered, -2}};
}

cudaError_t allocate(void** block, std::size_t bytes, cudaMemoryType type, int device) {
  if (block == nullptr) return cudaErrorInvalidValue;
  void* const memory = ::operator new(bytes, alignment, std::nothrow);
  if (memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xff, bytes);
  std::lock_guard const lock(runtime().mutex);
  runtime().blocks[memory] = Block{bytes, type, device};
  *block = memory;
  return cudaSuccess;
}

cudaError_t forget_block(void* block) {
  std::lock_guard const lock(runtime().mutex);
  return runtime().blocks.erase(block) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_active(Capture const& capture) {
  for (auto const& active : runtime().captures) {
    if (active.get() == &capture) return true;
  }
  return false;
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.invalidated = true;
  return error;
}

/// Refuses what might wait for a capture behind its back, as cudaThreadExchangeStreamCaptureMode describes it.
cudaError_t check_safe() {
  std::lock_guard const lock(runtime().mutex);
  cudaStreamCaptureMode const own = this_thread().capture_mode;
  if (own == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (auto const& capture : runtime().captures) {
    bool const here = capture->thread == std::this_thread::get_id();
    bool const prohibits = here ? capture->mode != cudaStreamCaptureModeRelaxed
                                : own == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (prohibits) error = invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return error;
}

/// What may not be done to a captured stream: wait, ask, allocate in its order.
cudaError_t check_not_captured(cudaStream_t stream) {
  std::lock_guard const lock(runtime().mutex);
  return stream->capture == nullptr ? cudaSuccess : invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
}

/// Queues a task, or makes it a node of the graph that the stream is captured in.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> task) {
  {
    std::lock_guard const lock(runtime().mutex);
    if (Capture* const capture = stream->capture.get(); capture != nullptr) {
      if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
      capture->graph.nodes.push_back({std::move(task), stream->latest});
      stream->latest = {capture->graph.nodes.size() - 1};
      return cudaSuccess;
    }
  }
  stream->push(std::move(task));
  return cudaSuccess;
}

/// Lets a captured stream, or one that joins the capture so, wait for what was recorded in the capture.
cudaError_t wait_in_capture(cudaStream_t stream, CUevent_st const& event) {
  if (event.capture == nullptr) return invalidate(*stream->capture, cudaErrorStreamCaptureIsolation);
  if (!is_active(*event.capture)) {
    if (stream->capture != nullptr) stream->capture->invalidated = true;
    return cudaErrorCapturedEvent;
  }
  if (stream->capture != nullptr && stream->capture != event.capture) {
    event.capture->invalidated = true;
    return invalidate(*stream->capture, cudaErrorStreamCaptureMerge);
  }
  if (event.capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  stream->capture = event.capture;
  stream->latest.insert(stream->latest.end(), event.nodes.begin(), event.nodes.end());
  return cudaSuccess;
}

/// What an event stands for outside of captures.
cudaError_t point_of(cudaEvent_t event, std::shared_ptr<Point>& point) {
  {
    std::lock_guard const lock(runtime().mutex);
    if (event->capture != nullptr) return invalidate(*event->capture, cudaErrorCapturedEvent);
    point = event->latest;
  }
  return check_safe();
}

void wait_for_all_streams() {
  std::vector<cudaStream_t> streams;
  {
    std::lock_guard const lock(runtime().mutex);
    streams.assign(runtime().streams.begin(), runtime().streams.end());
  }
  for (cudaStream_t stream : streams) stream->wait_until_idle();
}

}  // namespace

namespace zero::standin {

void reset(Options const& options) {
  Runtime& r = runtime();
  r.join_ended();
  std::lock_guard const lock(r.mutex);
  r.options = options;
  r.failure = {};
  r.calls.clear();
  r.all_calls = r.matching_calls = 0;
}

void fail(Failure const& failure) {
  std::lock_guard const lock(runtime().mutex);
  runtime().failure = failure;
  runtime().matching_calls = 0;
}

std::int64_t calls() {
  std::lock_guard const lock(runtime().mutex);
  return runtime().all_calls;
}

std::int64_t calls(std::string const& function) {
  std::lock_guard const lock(runtime().mutex);
  std::int64_t sum = 0;
  for (auto const& [of, count] : runtime().calls) sum += of.first == function ? count : 0;
  return sum;
}

std::map<std::string, std::int64_t> calls_of(int device) {
  std::lock_guard const lock(runtime().mutex);
  std::map<std::string, std::int64_t> result;
  for (auto const& [of, count] : runtime().calls) {
    if (of.second == device) result[of.first] = count;
  }
  return result;
}

Live live() {
  Runtime& r = runtime();
  std::lock_guard const lock(r.mutex);
  auto const size = [](auto const& set) { return static_cast<std::int64_t>(set.size()); };
  return {size(r.streams), size(r.events), size(r.blocks), r.graphs};
}

cudaError_t launch(cudaStream_t stream, std::function<void()> task) {
  STANDIN_CALL(launch);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (stream->device != this_thread().device) return result(cudaErrorInvalidResourceHandle);
  return result(enqueue(stream, std::move(task)));
}

}  // namespace zero::standin

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  if (cudaError_t const made_to = runtime().count("cudaDriverGetVersion"); made_to != cudaSuccess) return result(made_to);
  *version = runtime().options.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  STANDIN_CALL(cudaGetDeviceCount);
  *count = runtime().options.devices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  STANDIN_CALL(cudaGetDevice);
  *device = this_thread().device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  STANDIN_CALL(cudaSetDevice);
  if (device < 0 || device >= runtime().options.devices) return result(cudaErrorInvalidDevice);
  this_thread().device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  STANDIN_CALL(cudaDeviceGetAttribute);
  if (device < 0 || device >= runtime().options.devices) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrPageableMemoryAccess  ? (runtime().options.pageable_access ? 1 : 0)
           : attribute == cudaDevAttrMultiProcessorCount ? 4
                                                         : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  STANDIN_CALL(cudaDeviceSynchronize);
  wait_for_all_streams();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  STANDIN_CALL(cudaStreamCreateWithPriority);
  Runtime& r = runtime();
  std::lock_guard const lock(r.mutex);
  std::uint64_t const seed = r.options.delay_seed == 0 ? 0 : r.options.delay_seed + 1000 * ++r.streams_made;
  *stream = new CUstream_st(this_thread().device, seed, r.options.max_delay_us);
  r.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaError_t const made_to = runtime().count("cudaStreamDestroy");
  Runtime& r = runtime();
  std::lock_guard const lock(r.mutex);
  if (r.streams.erase(stream) == 0) return result(cudaErrorInvalidResourceHandle);
  stream->end();
  r.ended.emplace_back(stream);
  return result(made_to);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  STANDIN_CALL(cudaStreamSynchronize);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (cudaError_t const error = check_not_captured(stream); error != cudaSuccess) return result(error);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  stream->wait_until_idle();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  STANDIN_CALL(cudaStreamQuery);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (cudaError_t const error = check_not_captured(stream); error != cudaSuccess) return result(error);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  return stream->idle() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  STANDIN_CALL(cudaStreamGetDevice);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  *device = stream->device;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  STANDIN_CALL(cudaStreamWaitEvent);
  if (!known(stream) || !known(event)) return result(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> point;
  {
    std::lock_guard const lock(runtime().mutex);
    if (event->capture != nullptr || (stream->capture != nullptr && event->latest != nullptr)) {
      return result(wait_in_capture(stream, *event));
    }
    point = event->latest;
  }
  if (point != nullptr) stream->push([point] { point->wait(); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  STANDIN_CALL(cudaLaunchHostFunc);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  return result(enqueue(stream, [function, data] { function(data); }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  STANDIN_CALL(cudaEventCreateWithFlags);
  *event = new CUevent_st{this_thread().device};
  std::lock_guard const lock(runtime().mutex);
  runtime().events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaError_t const made_to = runtime().count("cudaEventDestroy");
  {
    std::lock_guard const lock(runtime().mutex);
    if (runtime().events.erase(event) == 0) return result(cudaErrorInvalidResourceHandle);
  }
  delete event;
  return result(made_to);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  STANDIN_CALL(cudaEventRecord);
  if (!known(stream) || !known(event) || event->device != stream->device) return result(cudaErrorInvalidResourceHandle);
  auto const point = std::make_shared<Point>();
  {
    std::lock_guard const lock(runtime().mutex);
    event->capture = stream->capture;
    event->nodes = stream->latest;
    event->latest = stream->capture == nullptr ? point : nullptr;
    if (stream->capture != nullptr) return result(stream->capture->invalidated ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
  }
  stream->push([point] { point->finish(); });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  STANDIN_CALL(cudaEventSynchronize);
  if (!known(event)) return result(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> point;
  if (cudaError_t const error = point_of(event, point); error != cudaSuccess) return result(error);
  if (point != nullptr) point->wait();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  STANDIN_CALL(cudaEventQuery);
  if (!known(event)) return result(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> point;
  if (cudaError_t const error = point_of(event, point); error != cudaSuccess) return result(error);
  return point == nullptr || point->is_done() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  STANDIN_CALL(cudaMalloc);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  return result(allocate(block, bytes, cudaMemoryTypeDevice, this_thread().device));
}

cudaError_t cudaFree(void* block) {
  cudaError_t const made_to = runtime().count("cudaFree");
  if (block == nullptr) return result(made_to);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  wait_for_all_streams();
  if (cudaError_t const error = forget_block(block); error != cudaSuccess) return result(error);
  ::operator delete(block, alignment);
  return result(made_to);
}

cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t stream) {
  STANDIN_CALL(cudaMallocAsync);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (cudaError_t const error = check_not_captured(stream); error != cudaSuccess) return result(error);
  return result(allocate(block, bytes, cudaMemoryTypeDevice, stream->device));
}

cudaError_t cudaFreeAsync(void* block, cudaStream_t stream) {
  cudaError_t const made_to = runtime().count("cudaFreeAsync");
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (cudaError_t const error = check_not_captured(stream); error != cudaSuccess) return result(error);
  if (cudaError_t const error = forget_block(block); error != cudaSuccess) return result(error);
  stream->push([block] { ::operator delete(block, alignment); });
  return result(made_to);
}

cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned int) {
  STANDIN_CALL(cudaHostAlloc);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  return result(allocate(block, bytes, cudaMemoryTypeHost, this_thread().device));
}

cudaError_t cudaFreeHost(void* block) {
  cudaError_t const made_to = runtime().count("cudaFreeHost");
  if (block == nullptr) return result(made_to);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  wait_for_all_streams();
  if (cudaError_t const error = forget_block(block); error != cudaSuccess) return result(error);
  ::operator delete(block, alignment);
  return result(made_to);
}

cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  STANDIN_CALL(cudaMemcpyAsync);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return result(cudaErrorInvalidValue);
  bool const from_pageable = block_of(from).second.type == cudaMemoryTypeUnregistered;
  bool const to_pageable = block_of(to).second.type == cudaMemoryTypeUnregistered;
  if (from_pageable && !to_pageable) {
    std::vector<char> staged(bytes);
    std::memcpy(staged.data(), from, bytes);
    return result(enqueue(stream, [to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); }));
  }
  cudaError_t const error = enqueue(stream, [to, from, bytes] { std::memmove(to, from, bytes); });
  if (error == cudaSuccess && to_pageable && !is_captured(stream)) stream->wait_until_idle();
  return result(error);
}

cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) {
  STANDIN_CALL(cudaMemcpy);
  if (cudaError_t const error = check_safe(); error != cudaSuccess) return result(error);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  STANDIN_CALL(cudaMemsetAsync);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (block_of(to).second.type == cudaMemoryTypeUnregistered) return result(cudaErrorInvalidValue);
  return result(enqueue(stream, [to, value, bytes] { std::memset(to, value, bytes); }));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  STANDIN_CALL(cudaStreamBeginCapture);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  std::lock_guard const lock(runtime().mutex);
  if (stream->capture != nullptr) return result(invalidate(*stream->capture, cudaErrorIllegalState));
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->latest.clear();
  runtime().captures.push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  cudaError_t const made_to = runtime().count("cudaStreamEndCapture");
  *graph = nullptr;
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  Runtime& r = runtime();
  std::lock_guard const lock(r.mutex);
  std::shared_ptr<Capture> const capture = stream->capture;
  if (capture == nullptr) return result(cudaErrorIllegalState);
  if (capture->origin != stream) return result(invalidate(*capture, cudaErrorStreamCaptureUnmatched));
  if (capture->thread != std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed) {
    return result(invalidate(*capture, cudaErrorStreamCaptureWrongThread));
  }
  bool const joined = capture->graph.all_before(stream->latest);
  for (cudaStream_t other : r.streams) {
    if (other->capture != capture) continue;
    other->capture = nullptr;
    other->latest.clear();
  }
  r.captures.erase(std::find(r.captures.begin(), r.captures.end(), capture));
  if (made_to != cudaSuccess) return result(made_to);
  if (capture->invalidated) return result(cudaErrorStreamCaptureInvalidated);
  if (!joined) return result(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st(std::move(capture->graph));
  ++r.graphs;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  STANDIN_CALL(cudaStreamIsCapturing);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  std::lock_guard const lock(runtime().mutex);
  if (stream->capture == nullptr) *status = cudaStreamCaptureStatusNone;
  else *status = stream->capture->invalidated ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  STANDIN_CALL(cudaThreadExchangeStreamCaptureMode);
  std::swap(*mode, this_thread().capture_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  STANDIN_CALL(cudaGraphInstantiateWithFlags);
  *executable = new CUgraphExec_st{std::make_shared<CUgraph_st const>(*graph)};
  std::lock_guard const lock(runtime().mutex);
  ++runtime().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  STANDIN_CALL(cudaGraphLaunch);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  std::uint64_t const seed = runtime().options.delay_seed;
  std::uint64_t const order = seed == 0 ? 0 : zero::mixed_bits(seed + 1000 * ++executable->launches);
  return result(enqueue(stream, [graph = executable->graph, order] { graph->run(order); }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  cudaError_t const made_to = runtime().count("cudaGraphDestroy");
  delete graph;
  std::lock_guard const lock(runtime().mutex);
  --runtime().graphs;
  return result(made_to);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  cudaError_t const made_to = runtime().count("cudaGraphExecDestroy");
  delete executable;
  std::lock_guard const lock(runtime().mutex);
  --runtime().graphs;
  return result(made_to);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* address) {
  STANDIN_CALL(cudaPointerGetAttributes);
  *attributes = {};
  auto const [begin, block] = block_of(address);
  attributes->type = block.type;
  attributes->device = block.device;
  if (begin != nullptr) attributes->devicePointer = const_cast<void*>(address);
  if (block.type == cudaMemoryTypeHost) attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(this_thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return this_thread().last_error; }

char const* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge: return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched: return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    default: return "unrecognized error code";
  }
}

char const* cudaGetErrorString(cudaError_t) { return "text of the stand-in CUDA runtime"; }

}  // extern "C"
