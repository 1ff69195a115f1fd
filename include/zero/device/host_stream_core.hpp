// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Internals of host_stream.hpp: the queue of tasks, its worker thread, tickets and the failure of a stream.

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/wait_id.hpp>

namespace zero {

/// How a `HostStream` is made.
struct HostStreamOptions {
  bool worker = true;               ///< False: no thread; what is enqueued runs on the calling thread at once.
  std::int32_t capacity = 256;      ///< Tasks that fit into the queue, rounded up to a power of two; a full queue blocks `enqueue`.
  std::uint64_t delay_seed = 0;     ///< Other than 0: delays the stream at random. Give every stream its own seed.
  std::int32_t max_delay_us = 200;  ///< The longest such delay [microseconds].
  WaitId skip_wait = WaitId::none;  ///< Waits with this id are ignored, to see a test fail.
};

namespace detail {

/// The largest functor a task may be [bytes]: tasks live in the slots of the queue, so that nothing is allocated for them.
inline constexpr std::size_t task_bytes = 256;

inline void relax_processor() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Looks at a condition for some tens of iterations: longer pays only where every thread has a processor to itself.
template <class Condition>
bool spin_until(Condition condition) noexcept {
  for (int i = 0; i < 32; ++i) {
    if (condition()) return true;
    relax_processor();
  }
  return false;
}

/// A count that only grows, of which threads wait for a value.
///
/// A waiter registers what it waits for, then looks at the count again; the advancing thread stores the count, then looks at what is
/// registered. All of it is sequentially consistent, so one of the two sees the other. Only a thread that reaches a registered
/// value wakes anybody: the wait for the last of many tasks is woken once.
class Progress {
public:
  [[nodiscard]] bool reached(std::uint64_t value) const noexcept { return count_.load(std::memory_order_acquire) >= value; }

  void wait(std::uint64_t value) noexcept {
    if (spin_until([&] { return reached(value); })) return;
    while (true) {
      std::uint32_t const seen = word_.load();
      std::uint64_t least = awaited_.load();
      while (least > value && !awaited_.compare_exchange_weak(least, value)) {
      }
      if (count_.load() >= value) return;  // A registration left behind costs one wake-up of nobody.
      word_.wait(seen);
      if (reached(value)) return;
    }
  }

  /// To be called by one thread at a time.
  void advance(std::uint64_t value) noexcept {
    count_.store(value);
    if (awaited_.load() <= value) {
      awaited_.store(nobody);
      word_.fetch_add(1);
      word_.notify_all();
    }
  }

private:
  static constexpr std::uint64_t nobody = std::numeric_limits<std::uint64_t>::max();

  std::atomic<std::uint64_t> count_ = 0;
  std::atomic<std::uint64_t> awaited_ = nobody;
  std::atomic<std::uint32_t> word_ = 0;
};

/// One delay of a delayed stream.
struct Delay {
  bool yields = false;            ///< Gives the processor away once.
  std::int64_t microseconds = 0;  ///< Sleeps this long [microseconds].
};

/// The count-th delay of a stream with this seed: five of eight are none at all, two give the processor away, one sleeps up to max_us. Many
/// small delays would only slow everything down alike; few long ones bring the streams out of step.
constexpr Delay random_delay(std::uint64_t seed, std::uint64_t count, std::int32_t max_us) noexcept {
  std::uint64_t const bits = mixed_bits(seed + mixed_bits(count));
  std::uint64_t const kind = bits & 7u;
  if (kind == 0) return {.microseconds = static_cast<std::int64_t>((bits >> 32) % (static_cast<std::uint64_t>(max_us) + 1))};
  return {.yields = kind <= 2};
}

/// Whose collectives are on a stream. One that waits for its peers holds up all that is behind it: if a peer's is, it waits for ever.
class StreamClaims {
public:
  static constexpr int none = -1;

  /// Counts one more collective of a rank, unless the stream holds some of another rank, which is returned; `none` otherwise.
  /// @param domain a number for the ranks that may wait for one another. Those of another domain than that of the first are not counted.
  /// @param claimed whether `release` is to be called once the collective is gone.
  int claim(std::uint32_t domain, int rank, bool& claimed) noexcept {
    std::uint64_t const mine = (static_cast<std::uint64_t>(domain) << 40 | static_cast<std::uint64_t>(rank & 0xffff) << 24) & ~count_mask;
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    while (true) {
      bool const free = (seen & count_mask) == 0;
      claimed = free || (seen & ~count_mask) == mine;
      if (!claimed) return seen >> 40 == mine >> 40 ? static_cast<int>(seen >> 24 & 0xffff) : none;
      if (word_.compare_exchange_weak(seen, (free ? mine : seen) + 1)) return none;
    }
  }

  void release() noexcept { word_.fetch_sub(1); }

private:
  static constexpr std::uint64_t count_mask = 0xff'ffff;

  std::atomic<std::uint64_t> word_ = 0;  ///< 24 bits of domain, 16 of rank, and how many collectives.
};

class HostStreamCore;

/// The tasks that run on this thread now, innermost first.
struct TaskFrame {
  HostStreamCore* core;
  TaskFrame* outer;

  explicit TaskFrame(HostStreamCore* running) noexcept : core(running), outer(innermost()) { innermost() = this; }
  TaskFrame(TaskFrame const&) = delete;
  TaskFrame& operator=(TaskFrame const&) = delete;
  ~TaskFrame() { innermost() = outer; }

  static TaskFrame*& innermost() noexcept {
    thread_local TaskFrame* frame = nullptr;
    return frame;
  }

  static bool runs(HostStreamCore const* core) noexcept {
    for (TaskFrame const* frame = innermost(); frame != nullptr; frame = frame->outer) {
      if (frame->core == core) return true;
    }
    return false;
  }
};

/// What a host stream is behind its view: a bounded queue that several threads fill and one worker empties, in the order of tickets.
/// The owner and every queued wait hold a reference, because a wait may outlive the stream it waits for.
class HostStreamCore {
public:
  explicit HostStreamCore(HostStreamOptions const& options) : options_(options) {
    if (!options.worker) return;
    capacity_ = std::bit_ceil(static_cast<std::uint64_t>(options.capacity));
    slots_ = FixedArray<Slot>(static_cast<std::size_t>(capacity_));
    worker_ = std::thread([this] { work(); });
  }

  HostStreamCore(HostStreamCore const&) = delete;
  HostStreamCore& operator=(HostStreamCore const&) = delete;

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void remove_reference() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// Lets the worker finish what is queued and end. Once, by the owner.
  void finish() noexcept {
    if (!has_worker()) return;
    stop_ticket_.store(last_ticket() + 1, std::memory_order_relaxed);  // Published by the push.
    push([]() noexcept {});
    worker_.join();
  }

  [[nodiscard]] bool has_worker() const noexcept { return options_.worker; }
  [[nodiscard]] bool skips(WaitId id) const noexcept { return id != WaitId::none && id == options_.skip_wait; }

  /// The ticket of the task enqueued last.
  [[nodiscard]] std::uint64_t last_ticket() const noexcept { return enqueued_.load(std::memory_order_acquire); }
  /// True once everything up to this ticket has run or, behind a failure, was dropped.
  [[nodiscard]] bool reached(std::uint64_t ticket) const noexcept { return completed_.reached(ticket); }
  void wait_until(std::uint64_t ticket) noexcept { completed_.wait(ticket); }

  /// The cause if this ticket or one before it failed. Meaningful once the ticket is reached.
  [[nodiscard]] std::exception_ptr failure_at(std::uint64_t ticket) const noexcept {
    return failed_ticket_.load(std::memory_order_acquire) <= ticket ? cause_ : nullptr;
  }
  [[nodiscard]] std::exception_ptr failure() const noexcept { return failure_at(no_ticket - 1); }

  void throw_if_failed() const {
    if (std::exception_ptr const cause = failure()) std::rethrow_exception(cause);
  }

  void refuse_inside_own_task(char const* call, SourceLocation where) const {
    if (TaskFrame::runs(this))
      throw UsageError(std::string(call) + " on a stream from inside one of its own tasks would never return", where);
  }

  [[nodiscard]] StreamClaims& claims() noexcept { return claims_; }

  /// Gives the worker a task. Blocks while the queue is full.
  template <class F>
  void push(F&& task) noexcept {
    using Task = std::remove_cvref_t<F>;
    std::uint64_t const ticket = enqueued_.fetch_add(1) + 1;
    if (ticket > capacity_) wait_until(ticket - capacity_);  // The slot's former task is gone.
    Slot& slot = slot_of(ticket);
    ::new (static_cast<void*>(slot.storage)) Task(std::forward<F>(task));
    slot.consume = &consume<Task>;
    slot.ticket.store(ticket);
    if (asleep_.load() != 0) {
      asleep_.store(0);
      asleep_.notify_one();
    }
  }

  /// Runs a task of a stream without a worker.
  template <class F>
  void run_now(F& task) {
    TaskFrame const frame(this);
    delay();
    task();
  }

  /// Stops the calling thread for a pseudo-random time if this stream is a delayed one.
  void delay() noexcept {
    if (options_.delay_seed != 0) delay_at_random();
  }

private:
  static constexpr std::uint64_t no_ticket = std::numeric_limits<std::uint64_t>::max();

  [[gnu::noinline]] void delay_at_random() noexcept {
    Delay const delay = random_delay(options_.delay_seed, delays_.fetch_add(1, std::memory_order_relaxed), options_.max_delay_us);
    if (delay.microseconds > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay.microseconds));
    } else if (delay.yields) {
      std::this_thread::yield();
    }
  }

  struct Slot {
    std::atomic<std::uint64_t> ticket = 0;                   ///< Of the task that lies here, stored last.
    void (*consume)(void* storage, bool execute) = nullptr;  ///< Runs the task if it is to be executed, and destroys it.
    alignas(std::max_align_t) std::byte storage[task_bytes];
  };

  ~HostStreamCore() = default;

  template <class Task>
  static void consume(void* storage, bool execute) {
    struct Owner {
      Task* task;
      ~Owner() { task->~Task(); }
    } const owner{std::launder(static_cast<Task*>(storage))};
    if (execute) (*owner.task)();
  }

  Slot& slot_of(std::uint64_t ticket) noexcept { return slots_[static_cast<std::size_t>((ticket - 1) & (capacity_ - 1))]; }

  void work() noexcept {
    TaskFrame const frame(this);
    for (std::uint64_t ticket = 1;; ++ticket) {
      Slot& slot = slot_of(ticket);
      sleep_until_published(slot, ticket);
      bool const execute = failed_ticket_.load(std::memory_order_relaxed) == no_ticket;
      if (execute) delay();
      try {
        slot.consume(slot.storage, execute);
      } catch (...) {
        cause_ = std::current_exception();
        failed_ticket_.store(ticket, std::memory_order_release);
      }
      completed_.advance(ticket);
      if (ticket == stop_ticket_.load(std::memory_order_relaxed)) return;
    }
  }

  void sleep_until_published(Slot const& slot, std::uint64_t ticket) noexcept {
    auto const published = [&] { return slot.ticket.load(std::memory_order_acquire) == ticket; };
    if (spin_until(published)) return;
    while (true) {
      asleep_.store(1);
      if (slot.ticket.load() == ticket) break;
      asleep_.wait(1);
      if (published()) break;
    }
    asleep_.store(0, std::memory_order_relaxed);
  }

  HostStreamOptions options_;
  std::uint64_t capacity_ = 1;
  FixedArray<Slot> slots_;
  std::exception_ptr cause_;  // Written once by the worker, before failed_ticket_.
  std::atomic<std::uint64_t> failed_ticket_ = no_ticket;
  std::atomic<std::uint64_t> delays_ = 0;
  std::atomic<std::uint32_t> references_ = 1;
  std::atomic<std::uint64_t> stop_ticket_ = no_ticket;
  alignas(64) std::atomic<std::uint64_t> enqueued_ = 0;
  StreamClaims claims_;
  alignas(64) std::atomic<std::uint32_t> asleep_ = 0;
  alignas(64) Progress completed_;
  std::thread worker_;
};

/// Keeps a core alive as long as a queued wait needs it.
class HostStreamReference {
public:
  explicit HostStreamReference(HostStreamCore* core) noexcept : core_(core) { core_->add_reference(); }
  HostStreamReference(HostStreamReference&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  HostStreamReference& operator=(HostStreamReference&&) = delete;
  ~HostStreamReference() {
    if (core_ != nullptr) core_->remove_reference();
  }
  HostStreamCore* operator->() const noexcept { return core_; }

private:
  HostStreamCore* core_;
};

/// To be called between the parts of a collective: delays the stream whose task runs here if it was made with a `delay_seed`.
inline void delay_point() noexcept {
  if (TaskFrame const* const frame = TaskFrame::innermost()) frame->core->delay();
}

}  // namespace detail

}  // namespace zero
