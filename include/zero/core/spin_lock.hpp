// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A lock for what is held for a moment.

#include <atomic>
#include <cstdint>

namespace zero::detail {

/// A mutex of two instructions to lock and two to unlock, which asks the system for nothing unless somebody waits. Who waits for it sleeps.
class SpinLock {
public:
  [[gnu::always_inline]] void lock() noexcept {
    if (!try_lock()) wait_and_lock();
  }
  [[nodiscard, gnu::always_inline]] bool try_lock() noexcept { return (state_.fetch_or(held, std::memory_order_acquire) & held) == 0; }
  [[gnu::always_inline]] void unlock() noexcept {
    if (state_.fetch_sub(held, std::memory_order_release) != held) wake_one();
  }

private:
  static constexpr std::uint32_t held = 1;
  static constexpr std::uint32_t waiter = 2;  // Above the lowest bit the threads are counted that wait.

  // Both apart from their callers, which are inlined.
  [[gnu::noinline]] void wait_and_lock() noexcept {
    std::uint32_t seen = state_.fetch_add(waiter, std::memory_order_relaxed) + waiter;
    for (;;) {
      if ((seen & held) != 0) {
        state_.wait(seen, std::memory_order_relaxed);
        seen = state_.load(std::memory_order_relaxed);
      } else if (state_.compare_exchange_weak(seen, seen - waiter + held, std::memory_order_acquire, std::memory_order_relaxed)) {
        return;
      }
    }
  }

  // The lock may be gone by now, with who took it next: only its address is used.
  [[gnu::noinline]] void wake_one() noexcept { state_.notify_one(); }

  std::atomic<std::uint32_t> state_ = 0;
};

class LockGuard {
public:
  enum Held { held };

  [[gnu::always_inline]] explicit LockGuard(SpinLock& lock) noexcept : lock_(lock) { lock_.lock(); }
  [[gnu::always_inline]] LockGuard(SpinLock& lock, Held) noexcept : lock_(lock) {}
  LockGuard(LockGuard const&) = delete;
  LockGuard& operator=(LockGuard const&) = delete;
  [[gnu::always_inline]] ~LockGuard() { lock_.unlock(); }

private:
  SpinLock& lock_;
};

}  // namespace zero::detail
