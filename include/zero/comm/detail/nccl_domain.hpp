// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The first cause of a failure among communicators that fail together, of one rank or of all ranks of a process.

#include <atomic>
#include <exception>
#include <string>
#include <utility>

#include <zero/comm/detail/failure_domain.hpp>
#include <zero/core/error.hpp>

namespace zero::detail {

/// Keeps the first cause, and says it as each rank sees it. Any thread may call.
class NcclDomain {
public:
  /// Never throws, never blocks for peers.
  void fail(int rank, std::exception_ptr exception) noexcept {
    std::string text;
    try {
      text = text_of(exception);
    } catch (...) {  // No memory for the text: the failure itself still counts.
    }
    bool const overdue = is_a<DeadlineError>(exception);
    LockGuard const guard(lock_);
    if (failed_.load(std::memory_order_relaxed)) return;
    rank_ = rank;
    overdue_ = overdue;
    text_ = std::move(text);
    exception_ = std::move(exception);
    failed_.store(true);
  }

  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }
  /// The same. In one order with the operations of `NcclFlight`: one is seen in flight by who fails it, or sees the failure.
  [[nodiscard]] std::atomic<bool> const& failure() const noexcept { return failed_; }

  /// Throws the cause if there is one: to its rank what it was; to the others a `PeerError`, or a `DeadlineError`, which is nobody's fault.
  void throw_if_failed(int rank) {
    if (failed()) throw_first(rank);
  }

  /// The first cause itself, null while there is none.
  [[nodiscard]] std::exception_ptr first() {
    LockGuard const guard(lock_);
    return exception_;
  }

private:
  // Apart from who asks, who is inlined.
  [[noreturn, gnu::noinline]] void throw_first(int rank) {
    std::exception_ptr own;
    std::string text;
    int peer = -1;
    bool overdue = false;
    {
      LockGuard const guard(lock_);
      if (rank_ == rank) own = exception_;
      text = text_;
      peer = rank_;
      overdue = overdue_;
    }
    if (own != nullptr) std::rethrow_exception(own);
    if (overdue) throw DeadlineError(text, rank);
    throw PeerError("rank " + std::to_string(peer) + " failed first: " + text, rank, peer);
  }

  SpinLock lock_;
  std::atomic<bool> failed_ = false;  // Set last: all that a call looks at while nothing has failed.
  bool overdue_ = false;
  int rank_ = -1;
  std::string text_;
  std::exception_ptr exception_;
};

}  // namespace zero::detail
