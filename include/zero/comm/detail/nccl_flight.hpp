// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The operations of one communicator that streams have not passed yet, in the order in which they were enqueued.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_capture.hpp>
#include <zero/device/cuda_stream.hpp>

namespace zero::detail {

/// A view of a stream that keeps what is behind it alive; of none at first.
class CudaStreamHold : public CudaStreamRef {
public:
  CudaStreamHold() noexcept : CudaStreamRef(static_cast<CudaStreamCore*>(nullptr)) {}
  explicit CudaStreamHold(CudaStreamRef stream) noexcept : CudaStreamRef(stream) { core_->add_reference(); }
  CudaStreamHold(CudaStreamHold&& other) noexcept : CudaStreamRef(std::exchange(other.core_, nullptr)) {}
  CudaStreamHold& operator=(CudaStreamHold&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~CudaStreamHold() {
    if (core_ != nullptr) core_->remove_reference();
  }
};

/// One communicator's operations start in the order of their calls, over all streams, so the oldest is complete first and only it can be
/// overdue. Each has a CUDA event of its own: those of a stream stand for later points once the host is far ahead. Any thread may call.
class NcclFlight {
public:
  NcclFlight() = default;
  NcclFlight(NcclFlight const&) = delete;
  NcclFlight& operator=(NcclFlight const&) = delete;
  ~NcclFlight() {
    for (Entry const& entry : ring_) destroy_cuda_event(entry.event);
  }

  /// Once, before the first operation: room for some, on the device that is current.
  /// @throws DeviceError
  void prepare(SourceLocation where) {
    ring_.resize(first_size);
    for (Entry& entry : ring_) entry.event = make_cuda_event(where);
  }

  /// Adds what was just enqueued. True if nothing was in flight before. CUDA may block in it while its queue is full: nothing that `update`
  /// and `fail_streams` need is locked then.
  /// @throws DeviceError; the stream has failed then.
  [[nodiscard]] bool add(CudaStreamRef stream, char const* operation, Label label, SourceLocation where) {
    LockGuard const guard(adding_);
    std::uint64_t const next = next_.load(std::memory_order_relaxed);
    if (next - first_.load(std::memory_order_acquire) == ring_.size()) grow(stream, where);
    Entry& entry = at(next);
    cudaError_t const error = cudaEventRecord(entry.event, stream.native());
    if (error != cudaSuccess) fail_to_record(stream, error, where);
    entry.stream = CudaStreamHold(stream);
    entry.operation = operation;
    entry.label = label;
    next_.store(next + 1);  // In one order with `first_` in `update`: one of the two sees the other.
    return first_.load() == next;
  }

  /// Drops what is complete. True if something is left; `overdue` then says which operation has passed the deadline, if one has, and `failed`
  /// what the device's work has failed with.
  bool update(std::int64_t now_ms, std::int64_t deadline_ms = 0, std::string* overdue = nullptr, std::exception_ptr* failed = nullptr) {
    LockGuard const guard(lock_);
    CudaPoint point = CudaPoint::complete;
    cudaError_t error = cudaSuccess;
    std::uint64_t first = first_.load(std::memory_order_relaxed);
    while (first != next_.load() && (point = ask(at(first), error)) == CudaPoint::complete) {
      at(first).stream = {};
      first_.store(++first);
      oldest_since_ms_ = 0;
    }
    if (first == next_.load()) return false;
    if (oldest_since_ms_ == 0) oldest_since_ms_ = now_ms;
    Entry const& oldest = at(first);
    if (failed != nullptr && point == CudaPoint::failed) {
      *failed = std::make_exception_ptr(cuda_error("cudaEventQuery", error, SourceLocation::current()));
    }
    if (overdue != nullptr && now_ms - oldest_since_ms_ > deadline_ms) {
      *overdue = std::string(oldest.operation) + " (" + name(oldest.label.subject) +
                 (oldest.label.index >= 0 ? " " + std::to_string(oldest.label.index) : std::string()) + ") was not complete after " +
                 std::to_string(deadline_ms) + " ms: a peer has not called it, has called something else, or is gone";
    }
    return true;
  }

  /// Fails the streams of what is not complete.
  void fail_streams(std::exception_ptr const& cause) noexcept {
    LockGuard const guard(lock_);
    cudaError_t error = cudaSuccess;
    for (std::uint64_t i = first_.load(std::memory_order_relaxed); i != next_.load(); ++i) {
      if (ask(at(i), error) != CudaPoint::complete) at(i).stream.fail(cause);
    }
  }

private:
  struct Entry {
    cudaEvent_t event = nullptr;
    CudaStreamHold stream;
    char const* operation = nullptr;
    Label label;
  };

  static constexpr std::size_t first_size = 256;  // Sizes are powers of two.

  [[nodiscard]] static CudaPoint ask(Entry const& entry, cudaError_t& error) noexcept {
    return ask_cuda_event(entry.event, cuda_captures_of_thread > 0, error);
  }

  /// The i-th since the beginning.
  [[nodiscard]] Entry& at(std::uint64_t i) noexcept { return ring_[static_cast<std::size_t>(i & (ring_.size() - 1))]; }

  /// Twice the room. By who adds.
  [[gnu::noinline]] void grow(CudaStreamRef stream, SourceLocation where) {
    try {
      CudaDeviceGuard const guard(stream.device(), where);
      grow(where);
    } catch (...) {
      stream.fail(std::current_exception());
      throw;
    }
  }
  void grow(SourceLocation where) {
    std::vector<Entry> larger(2 * ring_.size());
    std::size_t const old = ring_.size();
    CudaEvents fresh;
    fresh.events.reserve(old);
    while (fresh.events.size() < old) fresh.events.push_back(make_cuda_event(where));
    LockGuard const guard(lock_);
    std::uint64_t const next = next_.load(std::memory_order_relaxed);
    auto const place = [&](std::uint64_t i) { return static_cast<std::size_t>(i & (2 * old - 1)); };
    for (std::uint64_t i = next - old; i != next; ++i) std::swap(larger[place(i)], at(i));
    for (std::uint64_t i = next; i != next + old; ++i) {
      larger[place(i)].event = fresh.events.back();
      fresh.events.pop_back();
    }
    ring_.swap(larger);
  }

  /// Given back where there are not enough.
  struct CudaEvents {
    ~CudaEvents() {
      for (cudaEvent_t event : events) destroy_cuda_event(event);
    }
    std::vector<cudaEvent_t> events{};
  };

  [[noreturn, gnu::noinline]] static void fail_to_record(CudaStreamRef stream, cudaError_t error, SourceLocation where) {
    std::exception_ptr const cause = std::make_exception_ptr(cuda_error("cudaEventRecord", error, where));
    stream.fail(cause);
    std::rethrow_exception(cause);
  }

  SpinLock adding_;  // before lock_
  SpinLock lock_;    // for dropping, failing and growing
  std::vector<Entry> ring_;
  std::atomic<std::uint64_t> first_ = 0;  // of those in flight, as numbered since the beginning
  std::atomic<std::uint64_t> next_ = 0;   // the next to be added
  std::int64_t oldest_since_ms_ = 0;      // when the oldest was first seen with nothing before it; 0: not yet
};

}  // namespace zero::detail
