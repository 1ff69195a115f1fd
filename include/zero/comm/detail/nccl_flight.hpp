// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The operations of one communicator that streams have not passed yet, in the order in which they were enqueued.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <utility>

#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_capture.hpp>
#include <zero/device/cuda_stream.hpp>

namespace zero::detail {

/// A view of a stream, of none at first. What is behind it lives as long as it is held.
class FlightStream : public CudaStreamRef {
public:
  FlightStream() noexcept : CudaStreamRef(static_cast<CudaStreamCore*>(nullptr)) {}
  FlightStream(CudaStreamRef stream) noexcept : CudaStreamRef(stream) {}

  [[nodiscard]] bool is(FlightStream other) const noexcept { return core_ == other.core_; }
  void hold() const noexcept { core_->add_reference(); }
  void let_go() const noexcept {
    if (core_ != nullptr) core_->remove_reference();
  }
};

/// One communicator's operations start in the order of their calls, over all streams, so the oldest is complete first and only it can be
/// overdue. Each has a CUDA event of its own: those of a stream stand for later points once the host is far ahead.
///
/// They are a ring of entries that are linked: those from `first_` up to `next_` are in flight, and the others belong to who adds. One thread
/// at a time adds; any thread may call the rest.
class NcclFlight {
public:
  NcclFlight() = default;
  NcclFlight(NcclFlight const&) = delete;
  NcclFlight& operator=(NcclFlight const&) = delete;
  ~NcclFlight() {
    for (Entry* entry = first_.load(); entry != next_.load(); entry = entry->following) pass(entry->stream);
    passed_.let_go();
    for (Entry const& entry : entries_) destroy_cuda_event(entry.event);
  }

  /// Once, before the first operation: room for some, on the device that is current.
  /// @throws DeviceError
  void prepare(SourceLocation where) {
    Entry& entry = make_entry(where);
    entry.following = &entry;
    while (entries_.size() < first_size) add_entry_behind(entry, where);
    free_ = &entry;
    LockGuard const guard(lock_);  // The watchdog may look already, and sees both or neither.
    first_.store(&entry);
    next_.store(&entry);
  }

  /// Adds what was just enqueued. True if nothing was in flight before. CUDA may block in it while its queue is full: nothing that `update`
  /// and `fail_streams` need is locked then.
  /// @throws DeviceError; the stream has failed then.
  [[nodiscard]] bool add(CudaStreamRef stream, char const* operation, Label label, SourceLocation where) {
    if (is_last(*free_)) grow(*free_, stream, where);
    if (added_.is(stream)) return add_plainly(stream, operation, label, where);
    FlightStream const before = std::exchange(added_, stream);
    added_.hold();
    try {
      return add_plainly(stream, operation, label, where);
    } catch (...) {
      std::exchange(added_, before).let_go();
      throw;
    }
  }

  /// True where there is room, and the operation before was on the same stream.
  [[nodiscard]] bool takes_plainly(CudaStreamRef stream) const noexcept { return added_.is(stream) && !is_last(*free_); }
  /// What `add` does then.
  [[nodiscard, gnu::always_inline]] bool add_plainly(CudaStreamRef stream, char const* operation, Label label, SourceLocation where) {
    Entry& entry = *free_;
    entry.operation = operation;
    entry.label = label;
    entry.stream = stream;
    cudaError_t const error = cudaEventRecord(entry.event, stream.native());
    if (error != cudaSuccess) fail_to_record(stream, error, where);
    free_ = entry.following;
    next_.store(free_);  // In one order with `first_` in `update`: one of the two sees the other.
    return first_.load() == &entry;
  }

  /// Drops what is complete. True if something is left; `overdue` then says which operation has passed the deadline, if one has, and `failed`
  /// what the device's work has failed with.
  bool update(std::int64_t now_ms, std::int64_t deadline_ms = 0, std::string* overdue = nullptr, std::exception_ptr* failed = nullptr) {
    LockGuard const guard(lock_);
    CudaPoint point = CudaPoint::complete;
    cudaError_t error = cudaSuccess;
    Entry* first = first_.load(std::memory_order_relaxed);
    while (first != next_.load() && (point = ask(*first, error)) == CudaPoint::complete) {
      pass(first->stream);
      first = first->following;
      first_.store(first);
      oldest_since_ms_ = 0;
    }
    if (first == next_.load()) return false;
    if (oldest_since_ms_ == 0) oldest_since_ms_ = now_ms;
    if (failed != nullptr && point == CudaPoint::failed) {
      *failed = std::make_exception_ptr(cuda_error("cudaEventQuery", error, SourceLocation::current()));
    }
    if (overdue != nullptr && now_ms - oldest_since_ms_ > deadline_ms) {
      *overdue = std::string(first->operation) + " (" + name(first->label.subject) +
                 (first->label.index >= 0 ? " " + std::to_string(first->label.index) : std::string()) + ") was not complete after " +
                 std::to_string(deadline_ms) + " ms: a peer has not called it, has called something else, or is gone";
    }
    return true;
  }

  /// Fails the streams of what is not complete.
  void fail_streams(std::exception_ptr const& cause) noexcept {
    LockGuard const guard(lock_);
    cudaError_t error = cudaSuccess;
    for (Entry* entry = first_.load(std::memory_order_relaxed); entry != next_.load(); entry = entry->following) {
      if (ask(*entry, error) != CudaPoint::complete) entry->stream.fail(cause);
    }
  }

private:
  struct Entry {
    cudaEvent_t event = nullptr;
    Entry* following = nullptr;
    FlightStream stream;
    char const* operation = nullptr;
    Label label;
  };

  static constexpr std::size_t first_size = 256;

  [[nodiscard]] static CudaPoint ask(Entry const& entry, cudaError_t& error) noexcept {
    return ask_cuda_event(entry.event, cuda_captures_of_thread > 0, error);
  }

  /// One entry is always free.
  [[nodiscard]] bool is_last(Entry const& entry) const noexcept { return entry.following == first_.load(std::memory_order_acquire); }

  // Operations in a row on one stream hold it together, from when the first of them is added until one of another stream is dropped.
  void pass(FlightStream stream) noexcept {
    if (passed_.is(stream)) return;
    passed_.let_go();
    passed_ = stream;
  }

  Entry& make_entry(SourceLocation where) {
    cudaEvent_t const event = make_cuda_event(where);
    try {
      entries_.emplace_back().event = event;
    } catch (...) {
      destroy_cuda_event(event);
      throw;
    }
    return entries_.back();
  }
  void add_entry_behind(Entry& entry, SourceLocation where) {
    Entry& added = make_entry(where);
    added.following = std::exchange(entry.following, &added);
  }

  /// Twice the room, behind an entry that is not in flight: nobody else looks at it.
  [[gnu::noinline]] void grow(Entry& entry, CudaStreamRef stream, SourceLocation where) {
    try {
      CudaDeviceGuard const guard(stream.device(), where);
      for (std::size_t more = entries_.size(); more > 0; --more) add_entry_behind(entry, where);
    } catch (...) {
      stream.fail(std::current_exception());
      throw;
    }
  }

  [[noreturn, gnu::noinline]] static void fail_to_record(CudaStreamRef stream, cudaError_t error, SourceLocation where) {
    std::exception_ptr const cause = std::make_exception_ptr(cuda_error("cudaEventRecord", error, where));
    stream.fail(cause);
    std::rethrow_exception(cause);
  }

  std::deque<Entry> entries_;            // Their addresses stay.
  std::atomic<Entry*> first_ = nullptr;  // the oldest in flight
  std::atomic<Entry*> next_ = nullptr;   // where the next is added
  Entry* free_ = nullptr;                // the same, of who adds
  FlightStream added_;                   // of the newest; by who adds
  SpinLock lock_;                        // for dropping and failing
  FlightStream passed_;                  // of the newest that was dropped, which is held still
  std::int64_t oldest_since_ms_ = 0;     // when the oldest was first seen with nothing before it; 0: not yet
};

}  // namespace zero::detail
