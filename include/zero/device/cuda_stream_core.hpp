// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Internals of cuda_stream.hpp: the ring of events of a stream, and how its failure reaches the streams that wait for it.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_capture.hpp>

namespace zero::detail {

/// What a CUDA stream is behind its view.
///
/// Tickets number the recorded points. Ticket t is marked by event t mod K of a ring of K. When a slot is used again, its former ticket is
/// either complete, which is remembered, or from then on stands for the later point: whoever waits for it waits longer than necessary, never
/// too short, because points of one stream complete in order.
///
/// CUDA knows no failed streams, so the failure is kept here: tickets up to `good_` are a success, those after it carry the cause. Whoever
/// enqueued a wait for a ticket is remembered until this core ends, and fails with it. References keep a core alive for that.
///
/// While the stream is captured its points are recorded on a second ring of events, so that those of the first keep their meaning: CUDA
/// refuses whoever asks or waits for an event whose last record was captured. What CUDA refuses in a capture fails the capture, not the stream:
/// nothing of it has run.
class CudaStreamCore {
public:
  /// @param native  a stream of the caller's, or null: one is created.
  static CudaStreamCore* make(cudaStream_t native, int device, int priority, int events, SourceLocation where) {
    auto* const core = new CudaStreamCore(native, device);
    try {
      core->create(native == nullptr, priority, events, where);
    } catch (...) {
      core->end();
      core->remove_reference();
      throw;
    }
    return core;
  }
  CudaStreamCore(CudaStreamCore const&) = delete;
  CudaStreamCore& operator=(CudaStreamCore const&) = delete;

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void remove_reference() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// Gives back what CUDA holds. Once, by the owner. CUDA keeps it until queued work no longer needs it.
  void end() noexcept {
    std::vector<Dependent> dependents;
    {
      LockGuard const recording(recording_);
      LockGuard const guard(lock_);
      ended_ = true;
      dependents.swap(dependents_);
      for (cudaEvent_t event : events_) destroy_cuda_event(event);
      events_.clear();
      for (cudaEvent_t event : capture_events_) destroy_cuda_event(event);
      capture_events_.clear();
      if (created_ && cudaStreamDestroy(native_) != cudaSuccess) forget_cuda_error();
      created_ = false;
    }
    for (Dependent const& d : dependents) d.core->remove_reference();
  }

  [[nodiscard]] cudaStream_t native() const noexcept { return native_; }
  [[nodiscard]] int device() const noexcept { return device_; }

  /// Marks a point. On a failed stream, or where CUDA refuses, a ticket that carries the failure. Others need not wait while CUDA blocks in it.
  [[nodiscard]] std::uint64_t record() noexcept {
    LockGuard const guard(recording_);
    if (capturing()) return record_in_capture();
    std::uint64_t const ticket = ++recorded_;
    if (failed()) return ticket;
    std::uint64_t const ring = events_.size();
    cudaEvent_t const event = events_[static_cast<std::size_t>(ticket % ring)];
    if (ticket > ring && !known_complete(ticket - ring)) remember(ticket - ring);
    cudaError_t const error = cudaEventRecord(event, native_);
    if (error == cudaSuccess) marked_.store(ticket, std::memory_order_release);
    else fail(cause_of("cudaEventRecord", error, SourceLocation::current()));
    return ticket;
  }

  /// True where the ticket is known, without asking CUDA, to be complete.
  [[nodiscard]] bool known_complete(std::uint64_t ticket) const noexcept { return completed_.load(std::memory_order_acquire) >= ticket; }

  /// True where waiting for the ticket would not block. Never of a captured point. A failure of the device fails the stream.
  [[nodiscard]] bool reached(std::uint64_t ticket) noexcept {
    if (known_complete(ticket)) return true;
    if ((ticket & captured_ticket) != 0) return false;
    LockGuard const guard(lock_);
    if (ended_ || ticket > marked()) return true;  // nothing was marked: it carries a failure
    cudaError_t error = cudaSuccess;
    CudaPoint const point = ask(ticket, error);
    if (point == CudaPoint::complete) raise_completed(ticket);
    if (point == CudaPoint::failed) fail_locked(cause_of("cudaEventQuery", error, SourceLocation::current()));
    return point != CudaPoint::pending;
  }

  /// Blocks until the ticket is complete. Failures of CUDA fail the stream.
  /// @throws UsageError for a captured point, or in a capture.
  void wait_until(std::uint64_t ticket, SourceLocation where) {
    if (known_complete(ticket)) return;
    if ((ticket & captured_ticket) != 0) throw UsageError("a point in a captured graph is nothing that the host can wait for", where);
    if ((capturing() || cuda_captures_of_thread > 0) && reached(ticket)) return;
    check_not_capturing(where);
    cudaEvent_t event = nullptr;
    {
      LockGuard const guard(lock_);
      if (ended_ || ticket > marked()) return;
      event = event_of(ticket);
    }
    if (cudaError_t const error = cudaEventSynchronize(event); error != cudaSuccess) {
      fail(cause_of("cudaEventSynchronize", error, where));
      return;
    }
    LockGuard const guard(lock_);
    raise_completed(ticket);
  }

  /// Blocks until the stream is idle. Failures of CUDA fail the stream.
  /// @throws UsageError in a capture.
  void wait_until_idle(SourceLocation where) {
    check_not_capturing(where);
    std::uint64_t marked = 0;
    {
      LockGuard const guard(lock_);
      marked = this->marked();
    }
    if (cudaError_t const error = cudaStreamSynchronize(native_); error != cudaSuccess) {
      fail(cause_of("cudaStreamSynchronize", error, where));
      return;
    }
    LockGuard const guard(lock_);
    raise_completed(marked);
  }

  /// Lets another stream wait for a ticket of this one; where this stream fails before the ticket is complete, the other does too.
  /// @throws DeviceError with which `other` has failed; UsageError where the wait would lead into a capture or out of one.
  void let_wait(CudaStreamCore& other, std::uint64_t ticket, SourceLocation where) {
    if ((ticket & captured_ticket) != 0) return let_wait_in_capture(other, ticket, where);
    if (other.capturing()) return check_before_capture(other, ticket, where);
    cudaEvent_t event = nullptr;
    bool fails = false;
    {
      LockGuard const guard(lock_);
      fails = failed() && ticket > good_;
      if (!fails) {
        if (ended_ || ticket > marked()) return;
        add_dependent(other, ticket);
        event = event_of(ticket);
      }
    }
    if (fails) {
      other.fail(cause_);
    } else if (cudaError_t const error = cudaStreamWaitEvent(other.native_, event, 0); error != cudaSuccess) {
      other.fail_and_throw("cudaStreamWaitEvent", error, where);
    }
  }

  /// Keeps the cause, unless there was one before, and fails the streams that wait for what is not complete now.
  void fail(std::exception_ptr const& cause) noexcept {
    if (failed_.load(std::memory_order_acquire)) return;  // Before the lock: streams may wait for each other in circles.
    LockGuard const guard(lock_);
    fail_locked(cause);
  }

  /// @throws DeviceError of this call.
  [[noreturn]] void fail_and_throw(char const* call, cudaError_t error, SourceLocation where) {
    if (capturing()) throw cuda_error(call, error, where);
    std::exception_ptr const cause = cause_of(call, error, where);
    fail(cause);
    std::rethrow_exception(cause);
  }

  /// The cause if the stream failed at or before this ticket.
  [[nodiscard]] std::exception_ptr failure_at(std::uint64_t ticket) const noexcept {
    return failed_.load(std::memory_order_acquire) && ticket > good_ ? cause_ : nullptr;
  }
  [[nodiscard]] bool usable_on(int device) const noexcept { return usable_on_.load(std::memory_order_acquire) == device; }
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  [[nodiscard]] std::exception_ptr failure() const noexcept { return failed_.load(std::memory_order_acquire) ? cause_ : nullptr; }

  void throw_if_failed() const {
    if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(cause_);
  }

  // Captures. Called by the thread that captures.

  /// True from the begin of a capture, or the first wait for one of its points, to its end.
  [[nodiscard]] bool capturing() const noexcept { return capture_.load(std::memory_order_relaxed) != nullptr; }
  /// The same, also of captures that CUDA was asked for behind the library's back.
  [[nodiscard, gnu::always_inline]] bool natively_capturing() const noexcept {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    bool const refused = cudaStreamIsCapturing(native_, &status) != cudaSuccess;
    if (refused) forget_cuda_error();  // The next call meets it again.
    return status != cudaStreamCaptureStatusNone || (refused && capturing());
  }

  /// The stream is not captured yet. @throws DeviceError
  void begin_capture(CudaCapture& capture, SourceLocation where) {
    throw_if_failed();
    prepare_capture(capture, where);
    check_cuda("cudaStreamBeginCapture", cudaStreamBeginCapture(native_, cudaStreamCaptureModeThreadLocal), where);
    enter_capture(capture);
  }

  /// Makes sure that taking part in a capture will not fail for want of memory or events.
  void prepare_capture(CudaCapture& capture, SourceLocation where) {
    capture.streams.reserve(capture.streams.size() + 1);
    CudaDeviceGuard const guard(device_, where);
    capture_events_.reserve(events_.size());
    while (capture_events_.size() < events_.size()) capture_events_.push_back(make_cuda_event(where));
  }

  /// Takes part in a capture of the same CUDA stream that another core has begun.
  void share_capture(CudaCapture& capture, SourceLocation where) {
    prepare_capture(capture, where);
    enter_capture(capture);
  }

  void leave_capture() noexcept {
    capture_.store(nullptr, std::memory_order_relaxed);
    before_capture_ = false;
    remove_reference();
  }

  /// What was enqueued before the capture is before all of its graph: the stream it begins on has waited for it.
  void is_before_capture() noexcept { before_capture_ = true; }

private:
  struct Dependent {
    CudaStreamCore* core;
    std::uint64_t ticket;  // the latest that it waits for
  };

  CudaStreamCore(cudaStream_t native, int device) noexcept : native_(native), device_(device), usable_on_(device) {}
  ~CudaStreamCore() = default;

  void create(bool stream, int priority, int events, SourceLocation where) {
    CudaDeviceGuard const guard(device_, where);
    if (stream) {
      check_cuda("cudaStreamCreateWithPriority", cudaStreamCreateWithPriority(&native_, cudaStreamNonBlocking, priority), where);
      created_ = true;
    }
    events_.reserve(static_cast<std::size_t>(events));
    dependents_.reserve(8);
    for (int i = 0; i < events; ++i) events_.push_back(make_cuda_event(where));
  }

  void check_not_capturing(SourceLocation where) const {
    if (capturing()) throw UsageError("the stream is being captured: the host cannot wait for what has not run", where);
    if (cuda_captures_of_thread > 0) throw UsageError("this thread captures a stream: until that has ended it cannot wait for any", where);
  }

  void enter_capture(CudaCapture& capture) noexcept {
    capture.streams.push_back(this);  // reserved
    add_reference();
    ++captures_;
    captured_ = 0;
    capture_.store(&capture, std::memory_order_relaxed);
  }

  [[nodiscard]] std::uint64_t ticket_in_capture() const noexcept { return captured_ticket | captures_ << 32 | captured_; }

  /// Where CUDA refuses, or the stream has failed, a ticket of no capture: whoever waits for it learns of it.
  [[nodiscard, gnu::noinline]] std::uint64_t record_in_capture() noexcept {
    ++captured_;
    cudaEvent_t const event = capture_events_[static_cast<std::size_t>(captured_ % capture_events_.size())];
    if (cudaEventRecord(event, native_) == cudaSuccess) return ticket_in_capture();
    forget_cuda_error();
    return captured_ticket;
  }

  /// Before the event of this ticket stands for a later point: asks whether it is complete, first whether many others are.
  [[gnu::noinline]] void remember(std::uint64_t ticket) noexcept {
    if (!reached(ticket + events_.size() / 2)) static_cast<void>(reached(ticket));
  }

  void let_wait_in_capture(CudaStreamCore& other, std::uint64_t ticket, SourceLocation where) {
    if (std::exception_ptr const cause = failure_at(ticket)) std::rethrow_exception(cause);
    if (ticket == captured_ticket) check_cuda("cudaEventRecord", cudaErrorStreamCaptureInvalidated, where);
    CudaCapture* const capture = capture_.load(std::memory_order_relaxed);
    if (capture == nullptr || (ticket >> 32) != (ticket_in_capture() >> 32)) {
      throw UsageError("the event was recorded in a capture that has ended: it stands for nothing", where);
    }
    bool const joins = !other.capturing();
    if (joins) other.prepare_capture(*capture, where);
    cudaEvent_t const event = capture_events_[static_cast<std::size_t>((ticket & 0xffff'ffff) % capture_events_.size())];
    check_cuda("cudaStreamWaitEvent", cudaStreamWaitEvent(other.native_, event, 0), where);
    if (joins) other.enter_capture(*capture);
  }

  /// A captured stream cannot wait for a point from before the capture; it need not where that is complete, or before the graph anyway.
  void check_before_capture(CudaStreamCore const& other, std::uint64_t ticket, SourceLocation where) {
    if (std::exception_ptr const cause = failure_at(ticket)) std::rethrow_exception(cause);
    bool const together = capturing() && capture_.load(std::memory_order_relaxed) == other.capture_.load(std::memory_order_relaxed);
    if (together && before_capture_) return;
    CudaQueriesInCapture const queries(true);
    if (reached(ticket)) return;
    throw UsageError("a captured stream cannot wait for an event from outside of the capture: wait for it before the capture begins",
                     where);
  }

  [[nodiscard]] static std::exception_ptr cause_of(char const* call, cudaError_t error, SourceLocation where) noexcept {
    try {
      return std::make_exception_ptr(cuda_error(call, error, where));
    } catch (...) {  // no memory for the text
      return std::current_exception();
    }
  }

  [[nodiscard]] cudaEvent_t event_of(std::uint64_t ticket) const noexcept {
    return events_[static_cast<std::size_t>(ticket % events_.size())];
  }

  [[nodiscard]] CudaPoint ask(std::uint64_t ticket, cudaError_t& error) const noexcept {
    return ask_cuda_event(event_of(ticket), capturing() || cuda_captures_of_thread > 0, error);
  }
  [[nodiscard]] std::uint64_t marked() const noexcept { return marked_.load(std::memory_order_acquire); }

  void raise_completed(std::uint64_t ticket) noexcept {
    if (completed_.load(std::memory_order_relaxed) < ticket) completed_.store(ticket, std::memory_order_release);
  }

  void add_dependent(CudaStreamCore& other, std::uint64_t ticket) {
    for (Dependent& d : dependents_) {
      if (d.core != &other) continue;
      if (d.ticket < ticket) d.ticket = ticket;
      return;
    }
    std::erase_if(dependents_, [](Dependent const& d) {
      bool const gone = d.core->references_.load(std::memory_order_acquire) == 1;
      if (gone) d.core->remove_reference();
      return gone;
    });
    dependents_.push_back({&other, ticket});
    other.add_reference();
  }

  void fail_locked(std::exception_ptr const& cause) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    std::uint64_t good = completed_.load(std::memory_order_relaxed);
    if (!ended_) {
      std::uint64_t const last = marked();
      std::uint64_t const oldest = last > events_.size() ? last - events_.size() : 0;
      cudaError_t error = cudaSuccess;
      for (std::uint64_t ticket = last; ticket > good && ticket > oldest; --ticket) {
        if (ask(ticket, error) == CudaPoint::complete) good = ticket;
      }
    }
    good_ = good;
    cause_ = cause;
    usable_on_.store(-1, std::memory_order_release);  // First: who has seen that it failed must not find it usable.
    failed_.store(true, std::memory_order_release);
    // Holding the lock: whoever holds the lock of a dependent and waits for this one has marked the dependent as failed already.
    for (Dependent const& d : dependents_) {
      if (d.ticket > good) d.core->fail(cause);
    }
  }

  SpinLock recording_;  // before lock_: who records does so in one order
  SpinLock lock_;
  cudaStream_t native_;
  int device_;
  std::atomic<int> usable_on_;  // device_, and -1 after a failure: one look before each operation
  bool created_ = false;
  bool ended_ = false;
  std::vector<cudaEvent_t> events_;
  std::vector<cudaEvent_t> capture_events_;  // empty before the first capture
  std::vector<Dependent> dependents_;
  std::uint64_t recorded_ = 0;             // the last ticket
  std::atomic<std::uint64_t> marked_ = 0;  // the last ticket that has an event
  std::atomic<std::uint64_t> completed_ = 0;
  std::atomic<CudaCapture*> capture_ = nullptr;
  std::uint64_t captures_ = 0;   // so far
  std::uint64_t captured_ = 0;   // points in the capture
  bool before_capture_ = false;  // see is_before_capture()
  std::exception_ptr cause_;     // Written once, before failed_, as good_ is.
  std::uint64_t good_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint32_t> references_ = 1;
};

}  // namespace zero::detail
