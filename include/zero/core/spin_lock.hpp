// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A lock for what is held for a moment.

#include <atomic>
#include <cstdint>

namespace zero::detail {

/// A mutex in a few instructions, which asks the system for nothing unless somebody waits. Who waits for it sleeps.
class SpinLock {
public:
  [[gnu::always_inline]] void lock() noexcept {
    if (!try_lock()) wait_and_lock();
  }
  [[nodiscard]] bool try_lock() noexcept {
    std::uint32_t expected = free;
    return state_.compare_exchange_strong(expected, held, std::memory_order_acquire, std::memory_order_relaxed);
  }
  [[gnu::always_inline]] void unlock() noexcept {
    if (state_.exchange(free, std::memory_order_release) == awaited) wake_one();
  }

private:
  static constexpr std::uint32_t free = 0;
  static constexpr std::uint32_t held = 1;
  static constexpr std::uint32_t awaited = 2;  // held, and somebody may be asleep

  // Both apart from their callers, which are inlined. Who has slept does not know whether others do, and so leaves it awaited.
  [[gnu::noinline]] void wait_and_lock() noexcept {
    while (state_.exchange(awaited, std::memory_order_acquire) != free) state_.wait(awaited, std::memory_order_relaxed);
  }

  [[gnu::noinline]] void wake_one() noexcept { state_.notify_one(); }

  std::atomic<std::uint32_t> state_ = free;
};

class LockGuard {
public:
  enum Held { held };

  explicit LockGuard(SpinLock& lock) noexcept : lock_(lock) { lock_.lock(); }
  LockGuard(SpinLock& lock, Held) noexcept : lock_(lock) {}
  LockGuard(LockGuard const&) = delete;
  LockGuard& operator=(LockGuard const&) = delete;
  ~LockGuard() { lock_.unlock(); }

private:
  SpinLock& lock_;
};

}  // namespace zero::detail
