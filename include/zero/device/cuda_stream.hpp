// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Streams of a CUDA device: a view, an owner that makes a stream or adopts one of the caller's, and points in a stream.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_stream_core.hpp>

namespace zero {

class CudaStream;

namespace detail {
class CudaCaptureScope;
}

/// A point in a CUDA stream: complete when everything enqueued before it is. Trivially copyable; a default one is complete already.
/// An event may be used while the stream it was recorded on exists.
///
/// A stream has a ring of CUDA events. An event older than the ring, whose point was not complete when its place in the ring was needed
/// again, stands for the later point that took the place: waiting for it may take longer, and may throw what failed in between.
///
/// An event that was recorded while the stream was captured stands for a point in the graph: streams may wait for it in that capture, and join
/// it so; nobody else may.
class CudaEvent {
public:
  constexpr CudaEvent() noexcept = default;

  /// True if waiting for it would not block. It says nothing about success.
  [[nodiscard]] bool ready() const noexcept { return core_ == nullptr || core_->reached(ticket_); }

  /// Blocks the calling thread until the event is complete.
  /// @throws the cause with which the stream failed, if it failed at or before this point; DeviceError where CUDA reports one; UsageError
  /// for a point in a graph, and in a capture.
  void synchronize(SourceLocation where = SourceLocation::current()) const {
    if (core_ == nullptr) return;
    core_->wait_until(ticket_, where);
    if (std::exception_ptr const cause = core_->failure_at(ticket_)) std::rethrow_exception(cause);
  }

  friend bool operator==(CudaEvent, CudaEvent) noexcept = default;

private:
  friend class CudaStreamRef;
  CudaEvent(detail::CudaStreamCore* core, std::uint64_t ticket) noexcept : core_(core), ticket_(ticket) {}

  detail::CudaStreamCore* core_ = nullptr;
  std::uint64_t ticket_ = 0;
};

/// A view of a CUDA stream. It is a pointer, to be passed by value, and valid while its `CudaStream` lives.
///
/// A stream fails for good with the first call of CUDA on it that fails, or by `fail`. Then it refuses later work with the cause. Work that
/// is in CUDA's queue already is not taken back: what runs behind a failure may compute garbage, and no event behind it is a success.
class CudaStreamRef {
public:
  CudaStreamRef(CudaStreamRef const&) noexcept = default;
  CudaStreamRef& operator=(CudaStreamRef const&) noexcept = default;
  CudaStreamRef(CudaStream&&) = delete;  // a view of a stream that is about to end
  CudaStreamRef(std::nullptr_t) = delete;
  CudaStreamRef(int) = delete;

  /// The stream for calls of CUDA's own.
  [[nodiscard]] cudaStream_t native() const noexcept { return core_->native(); }
  /// The device that the stream is on.
  [[nodiscard]] int device() const noexcept { return core_->device(); }

  /// The point after everything enqueued so far. Never blocks or throws; on a failed stream the event carries the failure.
  [[nodiscard]] CudaEvent record() const noexcept { return {core_, core_->record()}; }

  /// Lets what is enqueued from now on start only when the event is complete. Returns at once. If the event's stream failed at or before
  /// the event, or fails before the event is complete, this stream fails with the same cause.
  /// @throws whatever failed this stream earlier; DeviceError; UsageError where one of the two is in a capture and the event not, unless it is
  /// complete.
  void wait(CudaEvent event, SourceLocation where = SourceLocation::current()) const {
    core_->throw_if_failed();
    if (event.core_ == nullptr || event.core_ == core_) return;
    if (event.core_->known_complete(event.ticket_) && event.core_->failure_at(event.ticket_) == nullptr) return;
    event.core_->let_wait(*core_, event.ticket_, where);
  }

  /// The same for an event of the caller's, who owns it and has recorded it by calls of CUDA's own. Failures of its stream do not come along.
  /// @throws whatever failed this stream earlier; DeviceError.
  void wait(cudaEvent_t event, SourceLocation where = SourceLocation::current()) const {
    enqueue("cudaStreamWaitEvent", where, [&] { return cudaStreamWaitEvent(native(), event, 0); });
  }

  /// Records an event of the caller's, who owns it, after everything enqueued so far: for calls of CUDA's own.
  /// @throws whatever failed this stream earlier; DeviceError.
  void record(cudaEvent_t event, SourceLocation where = SourceLocation::current()) const {
    enqueue("cudaEventRecord", where, [&] { return cudaEventRecord(event, native()); });
  }

  /// Blocks the calling thread until everything enqueued so far is done, also on a failed stream.
  /// @throws the cause if the stream has failed; DeviceError where CUDA reports an error; UsageError in a capture.
  void synchronize(SourceLocation where = SourceLocation::current()) const {
    core_->wait_until_idle(where);
    core_->throw_if_failed();
  }

  /// Fails the stream, and the streams that wait for what is not complete now. The first cause is kept. Any thread may call it. To be
  /// called before the failed operation is aborted: what is complete by then is a success.
  /// @param cause  null counts as an error without a text of its own.
  void fail(std::exception_ptr cause) const noexcept {
    if (cause == nullptr) cause = std::make_exception_ptr(Error("the stream was made to fail"));
    core_->fail(cause);
  }

  /// Whether the stream is on that device, and nothing has failed it.
  [[nodiscard]] bool usable_on(int device) const noexcept { return core_->usable_on(device); }
  /// Whether something has failed the stream.
  [[nodiscard]] bool failed() const noexcept { return core_->failed(); }
  /// What failed the stream, null if nothing did so far.
  [[nodiscard]] std::exception_ptr failure() const noexcept { return core_->failure(); }
  /// @throws what failed the stream.
  void throw_if_failed() const { core_->throw_if_failed(); }

  /// Calls `call()`, which enqueues to `native()` and returns a cudaError_t, with the stream's device current.
  /// @param name  of the function that is called, for the error.
  /// @throws whatever failed the stream earlier; DeviceError where the call fails, and the stream has failed then.
  template <class Call>
  void enqueue(char const* name, SourceLocation where, Call&& call) const {
    core_->throw_if_failed();
    detail::CudaDeviceGuard const guard(core_->device(), where);
    if (cudaError_t const error = call(); error != cudaSuccess) core_->fail_and_throw(name, error, where);
  }

  /// Whether the library is capturing the stream, so that what is enqueued now goes into a graph: see `CudaDevice::capture`.
  [[nodiscard]] bool capturing() const noexcept { return core_->capturing(); }
  /// The same, also where the caller captures it by calls of CUDA's own; asks CUDA.
  [[nodiscard]] bool natively_capturing() const noexcept { return core_->natively_capturing(); }

  /// True for views of the same stream: then nothing enqueued to one overlaps with what is enqueued to the other.
  friend bool operator==(CudaStreamRef a, CudaStreamRef b) noexcept { return a.core_ == b.core_ || a.native() == b.native(); }

protected:
  friend class detail::CudaCaptureScope;
  explicit CudaStreamRef(detail::CudaStreamCore* core) noexcept : core_(core) {}

  detail::CudaStreamCore* core_;
};

/// How a `CudaStream` is made.
struct CudaStreamOptions {
  int device = -1;   ///< Number of the CUDA device; -1: the one that is current for the calling thread.
  int priority = 0;  ///< As for `cudaStreamCreateWithPriority`: smaller numbers come first. Of no effect on an adopted stream.
  int events = 64;   ///< How many recorded points stay exact, see `CudaEvent`.
};

/// Owns a stream of a CUDA device, or what the library needs for one that the caller owns. It is a view of itself: pass it where a
/// `CudaStreamRef` is asked for.
///
/// The destructor neither waits nor throws: CUDA runs what is queued to its end. Memory that queued work uses must live until then.
///
/// @par Memory
/// `events` CUDA events without timing; as many more from the first capture on. Nothing else is allocated after construction, but for a few
/// bytes when a stream waits for another one for the first time.
class CudaStream : public CudaStreamRef {
public:
  /// Makes a stream that does not synchronise with the default stream.
  /// @throws DeviceError without a driver or a device, or where CUDA refuses.
  /// @throws UsageError where there is no device of that number, or for fewer than one event.
  explicit CudaStream(CudaStreamOptions options = {}, SourceLocation where = SourceLocation::current())
      : CudaStreamRef(make(nullptr, options, where)) {}
  CudaStream(int) = delete;
  CudaStream(std::nullptr_t) = delete;

  /// Uses a stream that stays the caller's: it must outlive this object, and is not destroyed by it. Its device is asked for where CUDA can
  /// tell (12.8 and later); before that, give it in the options unless it is current.
  /// @throws UsageError for a default stream (the library uses none: they wait for other streams behind the caller's back); DeviceError
  [[nodiscard]] static CudaStream adopt(cudaStream_t stream, CudaStreamOptions options = {},
                                        SourceLocation where = SourceLocation::current()) {
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
      throw UsageError("adopt: a default stream waits for other streams; make one with cudaStreamNonBlocking", where);
    }
#if CUDART_VERSION >= 12080
    if (options.device == -1) {
      static_cast<void>(detail::require_cuda_device(-1, where));
      detail::check_cuda("cudaStreamGetDevice", cudaStreamGetDevice(stream, &options.device), where);
    }
#endif
    return CudaStream(make(stream, options, where));
  }

  /// The source can be destroyed and assigned to. Views of it stay views of this stream.
  CudaStream(CudaStream&& other) noexcept : CudaStreamRef(std::exchange(other.core_, nullptr)) {}

  CudaStream& operator=(CudaStream&& other) noexcept {
    if (this != &other) {
      end();
      core_ = std::exchange(other.core_, nullptr);
    }
    return *this;
  }

  ~CudaStream() { end(); }

private:
  explicit CudaStream(detail::CudaStreamCore* core) noexcept : CudaStreamRef(core) {}

  static detail::CudaStreamCore* make(cudaStream_t native, CudaStreamOptions const& options, SourceLocation where) {
    if (options.events < 1) throw UsageError("a CUDA stream with " + std::to_string(options.events) + " events", where);
    int const device = detail::require_cuda_device(options.device, where);
    return detail::CudaStreamCore::make(native, device, options.priority, options.events, where);
  }

  void end() noexcept {
    if (core_ == nullptr) return;
    core_->end();
    core_->remove_reference();
  }
};

}  // namespace zero
