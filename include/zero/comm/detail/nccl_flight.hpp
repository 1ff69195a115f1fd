// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The operations of one communicator that streams have not passed yet, in the order in which they were enqueued.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <zero/comm/detail/nccl_family.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_stream.hpp>

namespace zero::detail {

/// A view of a stream that keeps what is behind it alive.
class CudaStreamHold : public CudaStreamRef {
public:
  explicit CudaStreamHold(CudaStreamRef stream) noexcept : CudaStreamRef(stream) { core_->add_reference(); }
  CudaStreamHold(CudaStreamHold const& other) noexcept : CudaStreamHold(static_cast<CudaStreamRef const&>(other)) {}
  CudaStreamHold& operator=(CudaStreamHold const& other) noexcept {
    other.core_->add_reference();
    core_->remove_reference();
    core_ = other.core_;
    return *this;
  }
  ~CudaStreamHold() { core_->remove_reference(); }
};

/// One communicator's operations start in the order of their calls, over all streams, so the oldest is complete first and only it can be
/// overdue. Any thread may call.
class NcclFlight {
public:
  /// Adds what was just enqueued. True if nothing was in flight before.
  [[nodiscard]] bool add(CudaStreamRef stream, char const* operation, Label label) {
    CudaEvent const event = stream.record();
    LockGuard const guard(lock_);
    entries_.push_back({CudaStreamHold(stream), event, operation, label, steady_ms()});
    return entries_.size() - first_ == 1;
  }

  /// Drops what is complete. True if something is left; `overdue` then says which operation has passed the deadline, if one has.
  bool update(std::int64_t now_ms, std::int64_t deadline_ms = 0, std::string* overdue = nullptr) {
    LockGuard const guard(lock_);
    std::size_t const before = first_;
    while (first_ < entries_.size() && entries_[first_].event.ready()) ++first_;
    if (first_ == entries_.size()) {
      entries_.clear();
      first_ = 0;
      return false;
    }
    if (first_ != before) oldest_since_ms_ = now_ms;
    if (first_ > entries_.size() / 2) {  // The vector keeps its memory.
      entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    Entry const& oldest = entries_[first_];
    std::int64_t const since_ms = oldest.since_ms > oldest_since_ms_ ? oldest.since_ms : oldest_since_ms_;
    if (overdue != nullptr && now_ms - since_ms > deadline_ms) {
      *overdue = std::string(oldest.operation) + " (" + name(oldest.label.subject) +
                 (oldest.label.index >= 0 ? " " + std::to_string(oldest.label.index) : std::string()) + ") was not complete after " +
                 std::to_string(deadline_ms) + " ms: a peer has not called it, has called something else, or is gone";
    }
    return true;
  }

  /// Fails the streams of what is not complete.
  void fail_streams(std::exception_ptr const& cause) noexcept {
    LockGuard const guard(lock_);
    for (std::size_t i = first_; i < entries_.size(); ++i) {
      if (!entries_[i].event.ready()) entries_[i].stream.fail(cause);
    }
  }

private:
  struct Entry {
    CudaStreamHold stream;
    CudaEvent event;
    char const* operation;
    Label label;
    std::int64_t since_ms;
  };

  SpinLock lock_;
  std::vector<Entry> entries_;
  std::size_t first_ = 0;             // of those that are in flight
  std::int64_t oldest_since_ms_ = 0;  // when the one before the oldest was found complete
};

}  // namespace zero::detail
