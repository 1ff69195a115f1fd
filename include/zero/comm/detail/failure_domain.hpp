// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Groups that fail together: the first cause of a failure, and the way to wake everybody who waits for a peer.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/core/spin_lock.hpp>

namespace zero::detail {

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

/// True for an error of that type.
template <class E>
[[nodiscard]] bool is_a(std::exception_ptr const& cause) noexcept {
  try {
    if (cause != nullptr) std::rethrow_exception(cause);
  } catch (E const&) {
    return true;
  } catch (...) {
  }
  return false;
}

/// Something in which ranks wait and which can be told that it will never complete.
class Breakable {
public:
  virtual void break_waits() noexcept = 0;
  /// What the watchdog asks for: the text of a deadline error if ranks have waited too long, empty otherwise.
  virtual std::string overdue(std::int64_t now_ms, std::int64_t deadline_ms) = 0;

protected:
  ~Breakable() = default;

private:
  friend class FailureDomain;
  Breakable* next_ = nullptr;  // in the domain's list
};

/// All groups split from one first group. Ranks are numbered here as they are there.
class FailureDomain {
public:
  /// Why the domain failed. Texts, because one exception object shared by threads would be read and freed by all of them.
  struct Cause {
    enum class Kind : unsigned char {
      failure,   ///< One rank's: its peers throw `PeerError`.
      mismatch,  ///< Ranks called different things: nobody's failure more than the others', and said alike on all ranks.
      deadline,  ///< The watchdog's, of all ranks.
      usage,     ///< A mistake that ranks made together: every rank throws `UsageError`.
    };
    int rank = -1;
    Kind kind = Kind::failure;
    SourceLocation where = {};  ///< Of a mistake.
    std::string text;
    std::exception_ptr exception;
  };

  /// Registers a group. A domain that has failed already breaks it at once.
  void add(Breakable& group) noexcept {
    LockGuard const guard(lock_);
    group.next_ = std::exchange(groups_, &group);
    if (failed_) group.break_waits();
  }

  void remove(Breakable& group) noexcept {
    LockGuard const guard(lock_);
    Breakable** link = &groups_;
    while (*link != &group) link = &(*link)->next_;
    *link = group.next_;
  }

  /// Keeps the first cause and wakes all ranks of all groups. Never blocks for long, never throws.
  /// @param reason_follows an exception is on its way out of the rank's code, and nobody can look at it before it is caught: `ended` will
  /// tell it. Until then peers wait, so that they can say it.
  void fail(int rank, std::exception_ptr exception, bool reason_follows = false) noexcept {
    Cause cause = cause_of(rank, std::move(exception));
    LockGuard const guard(lock_);
    if (!failed_) keep(std::move(cause), reason_follows);
  }

  /// Fails the domain because of a mistake that is not only this rank's.
  void refuse(int rank, std::string const& what, SourceLocation where, std::exception_ptr exception) {
    Cause cause{rank, Cause::Kind::usage, where, what, std::move(exception)};
    LockGuard const guard(lock_);
    if (!failed_) keep(std::move(cause), false);
  }

  /// The rank's code has ended, by this exception if there is one.
  void ended(int rank, std::exception_ptr exception) noexcept {
    bool const threw = exception != nullptr;
    Cause cause = cause_of(rank, std::move(exception));
    LockGuard const guard(lock_);
    if (!failed_) {
      if (threw) keep(std::move(cause), false);
    } else if (cause_.rank == rank && reason_follows_.load(std::memory_order_relaxed)) {
      if (threw) cause_ = std::move(cause);
      end_wait_for_reason();
    }
  }

  /// Throws the cause as a rank of one of the groups sees it, if there is one.
  /// @param members the ranks of that group.
  void throw_if_failed(PlainArray<int> const& members, int rank) {
    RankName const own(rank, members[static_cast<std::size_t>(rank)]);
    std::exception_ptr exception;
    RankName peer;
    Cause::Kind kind = {};
    SourceLocation where;
    std::string text;
    {
      LockGuard const guard(lock_);
      if (!failed_) return;
      if (cause_.rank == own.in_first_group) exception = cause_.exception;
    }
    if (exception != nullptr) std::rethrow_exception(exception);
    reason_follows_.wait(true, std::memory_order_acquire);
    {
      LockGuard const guard(lock_);
      peer.in_first_group = cause_.rank;
      kind = cause_.kind;
      where = cause_.where;
      text = cause_.text;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == peer.in_first_group) peer.number = static_cast<int>(i);
    }
    switch (kind) {
      case Cause::Kind::failure: break;
      case Cause::Kind::mismatch: throw MismatchError(peer.text() + " says: " + text, own);
      case Cause::Kind::deadline: throw DeadlineError(text, own);
      case Cause::Kind::usage: throw UsageError(text, where, own);
    }
    throw PeerError(peer.text() + " failed first: " + text, own, peer);
  }

  /// The first cause, null while there is none. For who holds the lock, and for the thread that has joined all ranks.
  [[nodiscard]] Cause const* cause() const noexcept { return failed_ ? &cause_ : nullptr; }

  /// Gives up waiting for the reason of a failure after a second: the rank may have caught the exception and do something else.
  void look_for_late_reason(std::int64_t now_ms) noexcept {
    LockGuard const guard(lock_);
    if (!reason_follows_.load(std::memory_order_relaxed)) return;
    if (reason_awaited_since_ms_ < 0) reason_awaited_since_ms_ = now_ms;
    if (now_ms - reason_awaited_since_ms_ > 1000) end_wait_for_reason();
  }

  /// Fails the domain if some group has waited for too long.
  void look_for_overdue(std::int64_t now_ms, std::int64_t deadline_ms) {
    std::string text;
    {
      LockGuard const guard(lock_);
      if (failed_) return;
      for (Breakable* group = groups_; group != nullptr && text.empty(); group = group->next_) {
        text = group->overdue(now_ms, deadline_ms);
      }
    }
    if (text.empty()) return;
    Cause cause;
    cause.kind = Cause::Kind::deadline;
    cause.exception = std::make_exception_ptr(DeadlineError(text));
    cause.text = std::move(text);
    LockGuard const guard(lock_);
    if (!failed_) keep(std::move(cause), false);
  }

  [[nodiscard]] SpinLock& lock() noexcept { return lock_; }

private:
  static Cause cause_of(int rank, std::exception_ptr exception) noexcept {
    Cause cause;
    cause.rank = rank;
    if (is_a<MismatchError>(exception)) cause.kind = Cause::Kind::mismatch;
    try {
      cause.text = text_of(exception);
    } catch (...) {  // No memory for the text: the failure itself still counts.
    }
    cause.exception = std::move(exception);
    return cause;
  }

  void keep(Cause cause, bool reason_follows) noexcept {
    failed_ = true;
    cause_ = std::move(cause);
    reason_follows_.store(reason_follows, std::memory_order_relaxed);
    for (Breakable* group = groups_; group != nullptr; group = group->next_) group->break_waits();
  }

  void end_wait_for_reason() noexcept {
    reason_follows_.store(false, std::memory_order_release);
    reason_follows_.notify_all();
  }

  SpinLock lock_;
  Breakable* groups_ = nullptr;  // the latest first
  bool failed_ = false;
  Cause cause_;
  std::atomic<bool> reason_follows_ = false;
  std::int64_t reason_awaited_since_ms_ = -1;
};

}  // namespace zero::detail
