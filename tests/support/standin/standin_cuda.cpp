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
  std::shared_ptr<Point> latest = nullptr;  // null: never recorded
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
  std::map<std::string, std::int64_t> calls;
  std::int64_t all_calls = 0;
  std::int64_t matching_calls = 0;
  std::uint64_t streams_made = 0;
  std::set<cudaStream_t> streams;
  std::vector<std::unique_ptr<CUstream_st>> ended;
  std::set<cudaEvent_t> events;
  std::map<void*, Block> blocks;

  ~Runtime() { join_ended(); }

  void join_ended() {
    for (auto const& stream : ended) stream->join();
    ended.clear();
  }

  /// The error that this call was made to have.
  cudaError_t count(char const* function) {
    std::lock_guard const lock(mutex);
    ++all_calls;
    ++calls[function];
    if (failure.call == 0 || (!failure.function.empty() && failure.function != function)) return cudaSuccess;
    ++matching_calls;
    bool const fails = matching_calls == failure.call || (failure.from_then_on && matching_calls > failure.call);
    return fails ? failure.error : cudaSuccess;
  }
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

struct ThisThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};

ThisThread& this_thread() {
  thread_local ThisThread state;
  return state;
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
  return runtime().calls[function];
}

Live live() {
  Runtime& r = runtime();
  std::lock_guard const lock(r.mutex);
  auto const size = [](auto const& set) { return static_cast<std::int64_t>(set.size()); };
  return {size(r.streams), size(r.events), size(r.blocks)};
}

cudaError_t launch(cudaStream_t stream, void (*function)(void*), void* data) {
  STANDIN_CALL(launch);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (stream->device != this_thread().device) return result(cudaErrorInvalidResourceHandle);
  stream->push([function, data] { function(data); });
  return cudaSuccess;
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
  stream->wait_until_idle();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  STANDIN_CALL(cudaStreamQuery);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
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
    point = event->latest;
  }
  if (point != nullptr) stream->push([point] { point->wait(); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  STANDIN_CALL(cudaLaunchHostFunc);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  stream->push([function, data] { function(data); });
  return cudaSuccess;
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
    event->latest = point;
  }
  stream->push([point] { point->finish(); });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  STANDIN_CALL(cudaEventSynchronize);
  if (!known(event)) return result(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> point;
  {
    std::lock_guard const lock(runtime().mutex);
    point = event->latest;
  }
  if (point != nullptr) point->wait();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  STANDIN_CALL(cudaEventQuery);
  if (!known(event)) return result(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Point> point;
  {
    std::lock_guard const lock(runtime().mutex);
    point = event->latest;
  }
  return point == nullptr || point->is_done() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  STANDIN_CALL(cudaMalloc);
  return result(allocate(block, bytes, cudaMemoryTypeDevice, this_thread().device));
}

cudaError_t cudaFree(void* block) {
  cudaError_t const made_to = runtime().count("cudaFree");
  if (block == nullptr) return result(made_to);
  wait_for_all_streams();
  if (cudaError_t const error = forget_block(block); error != cudaSuccess) return result(error);
  ::operator delete(block, alignment);
  return result(made_to);
}

cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t stream) {
  STANDIN_CALL(cudaMallocAsync);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  return result(allocate(block, bytes, cudaMemoryTypeDevice, stream->device));
}

cudaError_t cudaFreeAsync(void* block, cudaStream_t stream) {
  cudaError_t const made_to = runtime().count("cudaFreeAsync");
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (cudaError_t const error = forget_block(block); error != cudaSuccess) return result(error);
  stream->push([block] { ::operator delete(block, alignment); });
  return result(made_to);
}

cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned int) {
  STANDIN_CALL(cudaHostAlloc);
  return result(allocate(block, bytes, cudaMemoryTypeHost, this_thread().device));
}

cudaError_t cudaFreeHost(void* block) {
  cudaError_t const made_to = runtime().count("cudaFreeHost");
  if (block == nullptr) return result(made_to);
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
    stream->push([to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); });
    return cudaSuccess;
  }
  stream->push([to, from, bytes] { std::memmove(to, from, bytes); });
  if (to_pageable) stream->wait_until_idle();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) {
  STANDIN_CALL(cudaMemcpy);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  STANDIN_CALL(cudaMemsetAsync);
  if (!known(stream)) return result(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (block_of(to).second.type == cudaMemoryTypeUnregistered) return result(cudaErrorInvalidValue);
  stream->push([to, value, bytes] { std::memset(to, value, bytes); });
  return cudaSuccess;
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
    default: return "unrecognized error code";
  }
}

char const* cudaGetErrorString(cudaError_t) { return "text of the stand-in CUDA runtime"; }

}  // extern "C"
