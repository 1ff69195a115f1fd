// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Groups that fail together: the first cause of a failure, and the way to wake everybody who waits for a peer.

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <zero/core/error.hpp>

namespace zero::detail {

/// Protects what is touched when groups are made, end or fail, never in a collective that succeeds.
class SpinLock {
public:
  void lock() noexcept {
    while (flag_.test_and_set(std::memory_order_acquire)) flag_.wait(true, std::memory_order_relaxed);
  }
  [[nodiscard]] bool try_lock() noexcept { return !flag_.test_and_set(std::memory_order_acquire); }
  void unlock() noexcept {
    flag_.clear(std::memory_order_release);
    flag_.notify_one();
  }

private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

class LockGuard {
public:
  explicit LockGuard(SpinLock& lock) noexcept : lock_(lock) { lock_.lock(); }
  LockGuard(LockGuard const&) = delete;
  LockGuard& operator=(LockGuard const&) = delete;
  ~LockGuard() { lock_.unlock(); }

private:
  SpinLock& lock_;
};

/// The text of an exception.
[[nodiscard]] inline std::string text_of(std::exception_ptr const& cause) {
  if (cause == nullptr) return "no reason was given";
  try {
    std::rethrow_exception(cause);
  } catch (std::exception const& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

/// True for an error of that type, such as a `MismatchError`.
template <class E>
[[nodiscard]] bool is_a(std::exception_ptr const& cause) noexcept {
  if (cause == nullptr) return false;
  try {
    std::rethrow_exception(cause);
  } catch (E const&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// Something in which ranks wait and which can be told that it will never complete.
class Breakable {
public:
  virtual void break_waits() noexcept = 0;
  /// What the watchdog asks for: the text of a deadline error if ranks have waited too long, empty otherwise.
  virtual std::string overdue(std::int64_t now_ms, std::int64_t deadline_ms) = 0;

protected:
  ~Breakable() = default;
};

/// All groups split from one first group. Ranks in messages are those of the first group.
class FailureDomain {
public:
  /// Why the domain failed. Texts, because one exception object shared by threads would be read and freed by all of them.
  struct Cause {
    int rank = -1;  ///< -1: the watchdog.
    bool deadline = false;
    bool mismatch = false;  ///< Ranks called different things: nobody's failure more than the others', and said alike on all ranks.
    std::string text;
    std::exception_ptr exception;
  };

  /// Registers a group. A domain that has failed already breaks it at once.
  void add(Breakable& group) {
    LockGuard const guard(lock_);
    groups_.push_back(&group);
    if (failed_) group.break_waits();
  }

  void remove(Breakable& group) noexcept {
    LockGuard const guard(lock_);
    std::erase(groups_, &group);
  }

  /// Keeps the first cause and wakes all ranks of all groups. Never blocks for long, never throws.
  void fail(int rank, std::exception_ptr exception) noexcept {
    Cause cause;
    cause.rank = rank;
    cause.mismatch = is_a<MismatchError>(exception);
    cause.deadline = is_a<DeadlineError>(exception);
    try {
      cause.text = text_of(exception);
    } catch (...) {  // No memory for the text: the failure itself still counts.
    }
    cause.exception = std::move(exception);
    keep(std::move(cause));
  }

  /// Throws the cause as `rank` sees it, if there is one.
  void throw_if_failed(int rank) {
    std::exception_ptr own;
    std::string text;
    int peer = -1;
    bool deadline = false;
    bool mismatch = false;
    {
      LockGuard const guard(lock_);
      if (!failed_) return;
      if (cause_.rank == rank) own = cause_.exception;
      text = cause_.text;
      peer = cause_.rank;
      deadline = cause_.deadline;
      mismatch = cause_.mismatch;
    }
    if (own != nullptr) std::rethrow_exception(own);
    if (deadline) throw DeadlineError(text, rank);
    if (mismatch) throw MismatchError("rank " + std::to_string(peer) + " says: " + text, rank);
    throw PeerError("rank " + std::to_string(peer) + " failed first: " + text, rank, peer);
  }

  /// The first cause, null while there is none. For who holds the lock, and for the thread that has joined all ranks.
  [[nodiscard]] Cause const* cause() const noexcept { return failed_ ? &cause_ : nullptr; }

  /// Fails the domain if some group has waited for too long.
  void look_for_overdue(std::int64_t now_ms, std::int64_t deadline_ms) {
    std::string text;
    {
      LockGuard const guard(lock_);
      if (failed_) return;
      for (Breakable* group : groups_) {
        text = group->overdue(now_ms, deadline_ms);
        if (!text.empty()) break;
      }
    }
    if (text.empty()) return;
    Cause cause;
    cause.deadline = true;
    cause.exception = std::make_exception_ptr(DeadlineError(text));
    cause.text = std::move(text);
    keep(std::move(cause));
  }

  [[nodiscard]] SpinLock& lock() noexcept { return lock_; }

private:
  void keep(Cause cause) noexcept {
    LockGuard const guard(lock_);
    if (failed_) return;
    failed_ = true;
    cause_ = std::move(cause);
    for (Breakable* group : groups_) group->break_waits();
  }

  SpinLock lock_;
  std::vector<Breakable*> groups_;
  bool failed_ = false;
  Cause cause_;
};

}  // namespace zero::detail
