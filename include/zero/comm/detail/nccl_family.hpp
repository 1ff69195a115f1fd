// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The communicators of one rank that fail together, and the watchdog thread that aborts them.

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <zero/comm/detail/nccl_domain.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>

namespace zero::detail {

/// Milliseconds since some point in the past.
[[nodiscard]] inline std::int64_t steady_ms() noexcept {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Waits a little longer each time: peers that are nearly there are met at once, those that are late cost nothing.
class Backoff {
public:
  void pause() noexcept {
    ++rounds_;
    if (rounds_ < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(rounds_ < 512 ? 20 : 500));
    }
  }

private:
  int rounds_ = 0;
};

/// What the watchdog looks after: one communicator.
class NcclWatched {
public:
  /// True while operations are in flight; sets `cause` where one has failed or is overdue.
  /// @param now_ms  by the family's clock.
  virtual bool look(std::int64_t now_ms, std::exception_ptr& cause) = 0;
  /// Fails the streams that have not passed their operations yet.
  virtual void fail_streams(std::exception_ptr const& cause) noexcept = 0;
  /// Ends what is in flight. False: somebody is inside a call right now, try again.
  virtual bool abort_now() noexcept = 0;

protected:
  ~NcclWatched() = default;
};

/// The communicators of one rank that were split from one another. The first failure of any of them, or of another rank of this process that
/// shares the domain, fails the streams on which something is in flight and aborts them all.
class NcclFamily {
public:
  /// @throws Error where no thread can be started.
  NcclFamily(std::shared_ptr<NcclDomain> domain, int rank, int device, std::int64_t deadline_ms)
      : domain_(std::move(domain)), rank_(rank), device_(device), deadline_ms_(deadline_ms) {
    try {
      thread_ = std::thread([this] { watch(); });
    } catch (std::system_error const& error) {
      throw Error(std::string("cannot start the watchdog of a communicator: ") + error.what(), rank);
    }
  }
  NcclFamily(NcclFamily const&) = delete;
  NcclFamily& operator=(NcclFamily const&) = delete;
  ~NcclFamily() {
    stop_.store(true, std::memory_order_release);
    wake();
    thread_.join();
  }

  /// The rank in messages: that of the first group.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t deadline_ms() const noexcept { return deadline_ms_; }
  /// Its streams have failed, or are about to.
  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }
  /// True also where a peer in this process has failed, which the watchdog has not noticed yet. See `NcclDomain`.
  [[nodiscard]] std::atomic<bool> const& failure() const noexcept { return domain_->failure(); }

  void add(NcclWatched& watched) {
    LockGuard const guard(lock_);
    watched_.push_back(&watched);
  }
  /// Returns when the watchdog does not look at it any more.
  void remove(NcclWatched& watched) noexcept {
    {
      LockGuard const guard(lock_);
      std::erase(watched_, &watched);
    }
    while (aborting_.load(std::memory_order_acquire) == &watched) aborting_.wait(&watched, std::memory_order_acquire);
  }

  /// Milliseconds while something was in flight and this process ran.
  [[nodiscard]] std::int64_t clock_ms() const noexcept { return clock_ms_.load(std::memory_order_relaxed); }

  /// Something is in flight, or has failed.
  [[gnu::noinline]] void wake() noexcept {
    wakes_.fetch_add(1, std::memory_order_release);
    wakes_.notify_one();
  }

  /// Keeps the first cause. Never blocks for peers or for NCCL: the watchdog aborts.
  void fail(std::exception_ptr cause) noexcept {
    domain_->fail(rank_, std::move(cause));
    notice();
  }

  /// Throws the cause as this rank sees it, if there is one.
  void throw_if_failed() {
    if (domain_->failed()) throw_first();
  }

  /// The cause as this rank sees it, null if there is none.
  [[nodiscard]] std::exception_ptr cause() noexcept {
    try {
      domain_->throw_if_failed(rank_);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

private:
  [[gnu::noinline]] void throw_first() {
    try {
      domain_->throw_if_failed(rank_);
    } catch (...) {
      notice();
      throw;
    }
  }

  void notice() noexcept {
    if (failed()) return;
    std::exception_ptr const seen = cause();
    {
      // Whoever sees that it has failed, and aborts, comes after the streams have failed: what an abort ends is no success.
      LockGuard const guard(lock_);
      if (failed_.exchange(true)) return;
      for (NcclWatched* watched : watched_) watched->fail_streams(seen);
    }
    wake();
  }

  void watch() noexcept {
    // Else the first call here could begin to use another device.
    if (cudaSetDevice(device_) != cudaSuccess) static_cast<void>(cudaGetLastError());
    // Else a look at an event would count as a mistake in a capture that some other thread has begun.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) static_cast<void>(cudaGetLastError());
    std::int64_t const pause_ms = deadline_ms_ < 160 ? (deadline_ms_ + 15) / 16 : 10;
    for (;;) {
      std::uint32_t const seen = wakes_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_acquire)) return;
      bool busy = look();
      if (failed()) busy = !abort_all();
      if (busy) {
        std::int64_t const before = steady_ms();
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
        // A process that was stopped, by a debugger perhaps, has not waited for its peers meanwhile.
        std::int64_t const passed = steady_ms() - before;
        clock_ms_.fetch_add(passed < 10 * pause_ms ? passed : 10 * pause_ms, std::memory_order_relaxed);
      } else {
        wakes_.wait(seen, std::memory_order_acquire);
      }
    }
  }

  bool look() noexcept {
    bool busy = false;
    std::exception_ptr found;
    try {
      LockGuard const guard(lock_);
      std::int64_t const now = clock_ms();
      for (NcclWatched* watched : watched_) busy = watched->look(now, found) || busy;
    } catch (...) {  // No memory for a text: the failure itself counts.
      found = std::current_exception();
    }
    if (found == nullptr && !failed()) found = cause();  // A peer in this process.
    if (found != nullptr) fail(std::move(found));
    return busy;
  }

  /// Without the lock: an abort waits for graphs that hold NCCL's operations to be destroyed, and nobody else shall wait for that.
  bool abort_all() noexcept {
    bool done = true;
    for (std::size_t left = static_cast<std::size_t>(-1);;) {  // From the end: who leaves meanwhile moves nobody who has not been seen.
      {
        LockGuard const guard(lock_);
        left = left < watched_.size() ? left : watched_.size();
        if (left == 0) return done;
        aborting_.store(watched_[--left], std::memory_order_relaxed);
      }
      done = aborting_.load(std::memory_order_relaxed)->abort_now() && done;
      aborting_.store(nullptr, std::memory_order_release);
      aborting_.notify_all();
    }
  }

  std::shared_ptr<NcclDomain> domain_;
  int rank_;
  int device_;
  std::int64_t deadline_ms_;
  SpinLock lock_;
  std::vector<NcclWatched*> watched_;
  std::atomic<NcclWatched*> aborting_ = nullptr;
  std::atomic<std::int64_t> clock_ms_ = 1;  // 0 stands for no time
  std::atomic<bool> failed_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint32_t> wakes_ = 0;
  std::thread thread_;  // The last member: it uses all others.
};

}  // namespace zero::detail
