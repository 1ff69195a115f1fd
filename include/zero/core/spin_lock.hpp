// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A lock for what is held for a moment.

#include <atomic>

namespace zero::detail {

/// A mutex in a few instructions. Who waits for it sleeps.
class SpinLock {
public:
  void lock() noexcept {
    if (flag_.test_and_set(std::memory_order_acquire)) wait_and_lock();
  }
  [[nodiscard]] bool try_lock() noexcept { return !flag_.test_and_set(std::memory_order_acquire); }
  void unlock() noexcept {
    flag_.clear(std::memory_order_release);
    flag_.notify_one();
  }

private:
  // Apart from `lock`, which is inlined.
  [[gnu::noinline]] void wait_and_lock() noexcept {
    do flag_.wait(true, std::memory_order_relaxed);
    while (flag_.test_and_set(std::memory_order_acquire));
  }

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

}  // namespace zero::detail
