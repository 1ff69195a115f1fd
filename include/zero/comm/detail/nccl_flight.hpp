// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The operations of one communicator that streams have not passed yet, in the order in which they were enqueued.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/detail/nccl_family.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/spin_lock.hpp>
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
/// overdue. Any thread may call.
class NcclFlight {
public:
  NcclFlight() : ring_(1024) {}

  /// Adds what was just enqueued. True if nothing was in flight before.
  [[nodiscard]] bool add(CudaStreamRef stream, char const* operation, Label label) {
    CudaEvent const event = stream.record();
    LockGuard const guard(lock_);
    if (count_ == ring_.size()) grow();
    Entry& entry = at(count_);
    entry.stream = CudaStreamHold(stream);
    entry.event = event;
    entry.operation = operation;
    entry.label = label;
    return count_++ == 0;
  }

  /// Drops what is complete. True if something is left; `overdue` then says which operation has passed the deadline, if one has.
  bool update(std::int64_t now_ms, std::int64_t deadline_ms = 0, std::string* overdue = nullptr) {
    LockGuard const guard(lock_);
    for (; count_ > 0 && at(0).event.ready(); --count_, oldest_since_ms_ = 0) {
      at(0) = Entry();
      first_ = (first_ + 1) % ring_.size();
    }
    if (count_ == 0) return false;
    if (oldest_since_ms_ == 0) oldest_since_ms_ = now_ms;
    Entry const& oldest = at(0);
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
    for (std::size_t i = 0; i < count_; ++i) {
      if (!at(i).event.ready()) at(i).stream.fail(cause);
    }
  }

private:
  struct Entry {
    CudaStreamHold stream;
    CudaEvent event;
    char const* operation = nullptr;
    Label label;
  };

  /// The i-th of those in flight.
  [[nodiscard]] Entry& at(std::size_t i) noexcept { return ring_[(first_ + i) & (ring_.size() - 1)]; }

  [[gnu::noinline]] void grow() {
    std::vector<Entry> larger(2 * ring_.size());
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move(at(i));
    ring_ = std::move(larger);
    first_ = 0;
  }

  SpinLock lock_;
  std::vector<Entry> ring_;  // of a power of two; grows if need be
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::int64_t oldest_since_ms_ = 0;  // when the oldest was first seen with nothing before it; 0: not yet
};

}  // namespace zero::detail
