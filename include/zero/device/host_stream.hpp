// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Streams of the host: a worker thread that runs tasks in order, or the calling thread itself, behind one type.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/device/host_stream_core.hpp>
#include <zero/device/wait_id.hpp>

namespace zero {

class HostStream;

namespace detail {
class StreamClaim;
}

/// A point in a host stream: complete when everything enqueued before it is. Trivially copyable; a default one is complete already.
/// An event may be used while the stream it was recorded on exists.
class HostEvent {
public:
  constexpr HostEvent() noexcept = default;

  /// True if waiting for it would not block. It says nothing about success.
  [[nodiscard]] bool ready() const noexcept { return core_ == nullptr || core_->reached(ticket_); }

  /// Blocks the calling thread until the event is complete.
  /// @throws the cause with which the stream failed, if it failed at or before this point.
  /// @throws UsageError inside a task of that stream, where the event could never complete.
  void synchronize(SourceLocation where = SourceLocation::current()) const {
    if (core_ == nullptr) return;
    if (!core_->reached(ticket_)) {
      core_->refuse_inside_own_task("waiting for an event", where);
      core_->wait_until(ticket_);
    }
    if (std::exception_ptr const cause = core_->failure_at(ticket_)) std::rethrow_exception(cause);
  }

  friend bool operator==(HostEvent, HostEvent) noexcept = default;

private:
  friend class HostStreamRef;
  HostEvent(detail::HostStreamCore* core, std::uint64_t ticket) noexcept : core_(core), ticket_(ticket) {}

  detail::HostStreamCore* core_ = nullptr;
  std::uint64_t ticket_ = 0;
};

/// A view of a stream: tasks run one after the other in the order in which they were enqueued. It is a pointer, to be passed by value,
/// and valid while its `HostStream` lives.
///
/// Tasks of a stream with a worker run on its thread; without one they run inside `enqueue` on the calling thread, where exceptions
/// propagate and every event is complete. A task that throws fails a stream with a worker for good: the first cause is kept, what is queued
/// behind is destroyed without being run, and `enqueue`, `wait` and `synchronize` throw the cause. What was completed before stays a
/// success. A task must not enqueue to, wait on or synchronise its own stream: UsageError. Any thread may use a stream; tasks of
/// different threads are ordered as their calls of `enqueue` were.
class HostStreamRef {
public:
  HostStreamRef(HostStreamRef const&) noexcept = default;
  HostStreamRef& operator=(HostStreamRef const&) noexcept = default;
  HostStreamRef(HostStream&&) = delete;  // a view of a stream that is about to end
  HostStreamRef(std::nullptr_t) = delete;

  /// The stream that runs what is enqueued on the calling thread at once.
  [[nodiscard]] static HostStreamRef calling_thread() noexcept { return HostStreamRef(static_cast<detail::HostStreamCore*>(nullptr)); }

  /// Appends a task: `task()` is called once everything enqueued before has been done.
  ///
  /// The task is moved into the queue and destroyed on the stream right after it ran. Nothing is allocated. Blocks while the queue is full.
  /// @throws whatever failed the stream earlier; without a worker what the task throws.
  /// @throws UsageError inside a task of this stream.
  template <class F>
    requires std::invocable<F&>
  void enqueue(F task, SourceLocation where = SourceLocation::current()) const {
    static_assert(sizeof(F) <= detail::task_bytes,
                  "zero: a task of a host stream holds at most 256 bytes; capture a pointer to what is larger");
    static_assert(alignof(F) <= alignof(std::max_align_t), "zero: a task of a host stream must not be over-aligned");
    static_assert(std::is_nothrow_move_constructible_v<F> && std::is_nothrow_destructible_v<F>,
                  "zero: a task of a host stream is moved into the queue and destroyed there, neither of which may throw");
    if (core_ == nullptr) {
      task();
      return;
    }
    core_->refuse_inside_own_task("enqueue", where);
    if (core_->has_worker()) {
      core_->throw_if_failed();
      core_->push(std::move(task));
    } else {
      core_->run_now(task);
    }
  }

  /// The point after everything enqueued so far. Never blocks or throws; on a failed stream the event carries the failure.
  [[nodiscard]] HostEvent record() const noexcept {
    return core_ != nullptr && core_->has_worker() ? HostEvent(core_, core_->last_ticket()) : HostEvent();
  }

  /// Lets what is enqueued from now on start only when the event is complete.
  ///
  /// With a worker the wait is a task of this stream and the call returns at once; without one the calling thread blocks. If the event's
  /// stream failed at or before the event, this stream fails with the same cause; without a worker the cause is thrown. An event of this
  /// stream, or a complete one, costs nothing.
  /// @param id names the wait, see `WaitId`.
  /// @throws whatever failed this stream earlier.
  /// @throws UsageError inside a task of this stream.
  void wait(HostEvent event, WaitId id = WaitId::user, SourceLocation where = SourceLocation::current()) const {
    if (core_ != nullptr) {
      core_->refuse_inside_own_task("wait", where);
      if (core_->skips(id)) return;
      core_->throw_if_failed();
    }
    if (event.core_ == nullptr || event.core_ == core_) return;
    if (core_ == nullptr || !core_->has_worker()) {
      event.synchronize(where);
    } else if (!event.core_->reached(event.ticket_) || event.core_->failure_at(event.ticket_) != nullptr) {
      core_->push([other = detail::HostStreamReference(event.core_), ticket = event.ticket_] {
        other->wait_until(ticket);
        if (std::exception_ptr const cause = other->failure_at(ticket)) std::rethrow_exception(cause);
      });
    }
  }

  /// Blocks the calling thread until everything enqueued so far is done.
  /// @throws the cause if the stream has failed.
  /// @throws UsageError inside a task of this stream.
  void synchronize(SourceLocation where = SourceLocation::current()) const {
    if (core_ == nullptr) return;
    core_->refuse_inside_own_task("synchronize", where);
    if (!core_->has_worker()) return;
    core_->wait_until(core_->last_ticket());
    core_->throw_if_failed();
  }

  /// What failed the stream, null if nothing did so far.
  [[nodiscard]] std::exception_ptr failure() const noexcept { return core_ != nullptr ? core_->failure() : nullptr; }

  /// True for views of the same stream: then nothing enqueued to one overlaps with what is enqueued to the other.
  friend bool operator==(HostStreamRef, HostStreamRef) noexcept = default;

protected:
  friend class detail::StreamClaim;
  explicit HostStreamRef(detail::HostStreamCore* core) noexcept : core_(core) {}

  detail::HostStreamCore* core_;
};

namespace detail {

/// A collective's mark on the stream with a worker on which it is queued, see `StreamClaims`. A stream that runs its tasks at
/// once needs none.
class StreamClaim {
public:
  StreamClaim(HostStreamRef stream, std::uint32_t domain, int rank) noexcept : stream_(stream) {
    if (stream.core_ != nullptr && stream.core_->has_worker()) other_ = stream.core_->claims().claim(domain, rank, claimed_);
  }
  StreamClaim(StreamClaim&& other) noexcept
      : stream_(other.stream_), other_(other.other_), claimed_(std::exchange(other.claimed_, false)) {}
  StreamClaim& operator=(StreamClaim&&) = delete;
  ~StreamClaim() {
    if (claimed_) stream_.core_->claims().release();
  }

  [[nodiscard]] HostStreamRef stream() const noexcept { return stream_; }
  /// The rank whose collectives are in the way, `StreamClaims::none` if there is none.
  [[nodiscard]] int other() const noexcept { return other_; }

private:
  HostStreamRef stream_;
  int other_ = StreamClaims::none;
  bool claimed_ = false;
};

}  // namespace detail

/// Owns a stream of the host. It is a view of itself: pass it where a `HostStreamRef` is asked for.
///
/// The destructor lets what is queued finish and joins the worker, so it returns only if every queued task ends: whoever queued a
/// collective and leaves by an exception aborts the communicator's group first, or peers that never come would be waited for. It never
/// throws; failures nobody asked for are dropped. No other thread may be using the stream then.
///
/// @par Memory
/// `capacity` slots of about 300 bytes on the heap, and one thread. Nothing is allocated after construction.
class HostStream : public HostStreamRef {
public:
  /// @throws UsageError for a capacity below 1 or a negative delay.
  /// @throws Error where no thread can be started.
  explicit HostStream(HostStreamOptions options = {}, SourceLocation where = SourceLocation::current())
      : HostStreamRef(make(options, where)) {}

  /// The source becomes a view of the calling thread. Views of it stay views of this stream.
  HostStream(HostStream&& other) noexcept : HostStreamRef(std::exchange(other.core_, nullptr)) {}

  HostStream& operator=(HostStream&& other) noexcept {
    if (this != &other) {
      end();
      core_ = std::exchange(other.core_, nullptr);
    }
    return *this;
  }

  ~HostStream() { end(); }

private:
  static detail::HostStreamCore* make(HostStreamOptions const& options, SourceLocation where) {
    if (options.capacity < 1) throw UsageError("a host stream of " + std::to_string(options.capacity) + " slots", where);
    if (options.max_delay_us < 0) throw UsageError("a delay of " + std::to_string(options.max_delay_us) + " microseconds", where);
    try {
      return new detail::HostStreamCore(options);
    } catch (std::system_error const& error) {
      throw Error(std::string("cannot start the worker thread of a host stream: ") + error.what());
    }
  }

  void end() noexcept {
    if (core_ == nullptr) return;
    core_->finish();
    core_->remove_reference();
  }
};

}  // namespace zero
