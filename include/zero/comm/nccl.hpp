// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Ranks with a GPU each, over NCCL: collectives that are NCCL's own calls, and a watchdog that ends what would hang.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/detail/nccl_calls.hpp>
#include <zero/comm/detail/nccl_domain.hpp>
#include <zero/comm/detail/nccl_family.hpp>
#include <zero/comm/detail/nccl_handle.hpp>
#include <zero/comm/nccl_error.hpp>
#include <zero/comm/nccl_options.hpp>
#include <zero/comm/nccl_types.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_stream.hpp>

namespace zero {

namespace detail {

struct NcclAccess;

}  // namespace detail

/// One rank's communicator over NCCL, on CUDA streams. It is made from a unique id, adopted from an `ncclComm_t`, or started as
/// nccl_start.hpp has it: from a launcher's environment, over another communicator, or for all devices of one process. Move-only; one that
/// was moved from is in no group: its size is 0, its rank and device -1, and calls throw `UsageError`.
///
/// - **Order.** All ranks enqueue the same operations in the same order. NCCL runs those of one communicator in the order of their calls,
///   whichever streams they use, so one communicator on one communication stream is the default everywhere; see `duplicate()` for two, of
///   which one is for gathers and one for reductions (`SeparateCommunicators`). One thread at a time may call.
/// - **Waiting.** The communicator is non-blocking: `enqueue` waits until NCCL has put the operation on the stream, not for it to run. The first
///   operations connect ranks, and wait for peers to do so too.
/// - **Failure.** A call that fails, an error that NCCL reports later, and an operation that is in flight longer than the deadline (a peer that
///   died, returned early, or never calls) fail the communicator and all that were split from the same first one: a watchdog thread first
///   fails the streams whose operations were not complete (`CudaStreamRef::fail`), then aborts the communicators, so that waits outside the
///   library, such as cudaStreamSynchronize, return too. Later calls throw the first cause. Ranks of other processes learn of it by their own
///   deadline.
/// - **Numerics.** Sums are formed in the order of NCCL's algorithm, by rings with a rounding of 16-bit elements at every hop: equal on all
///   ranks of a reduction, not equal to other transports. A factor other than 1 must be a power of two: NCCL multiplies the addends, exactly
///   unless a product is denormal. `Max` is for integers: NCCL's ignores NaN.
/// - **One rank** sends nothing and calls nothing of NCCL but to start and end: a copy where the result is not in place.
///
/// @par Communication
/// The formulas of the operations; NCCL's algorithms move about as much. A barrier is an all-reduce of 4 bytes.
/// @par Memory
/// 64 + 16 N bytes of page-locked host memory for barriers and splits, and a thread for all communicators split from one; what NCCL takes
/// itself is not counted by memory resources.
class NcclCommunicator {
public:
  using Device = CudaDevice;

  /// Joins the ranks that were given the same id. Collective; waits for the peers.
  /// @param id  From ncclGetUniqueId on one rank, brought to all others by the caller.
  /// @throws UsageError for a place that is none or an NCCL before 2.18; NcclError; DeadlineError where ranks are missing; DeviceError.
  NcclCommunicator(ncclUniqueId const& id, NcclPlace const& place, NcclOptions const& options = {},
                   SourceLocation where = SourceLocation::current())
      : NcclCommunicator(id, place, options, std::make_shared<detail::NcclDomain>(), where) {}

  /// Uses a communicator that stays its owner's, who must keep it until this object has ended. Nobody else may call it meanwhile.
  /// @throws UsageError for null or an NCCL before 2.18; NcclError; DeviceError. Then it is not aborted, whatever the options: its owner ends it.
  [[nodiscard]] static NcclCommunicator adopt(ncclComm_t comm, NcclAdoptOptions const& options = {},
                                              SourceLocation where = SourceLocation::current()) {
    if (comm == nullptr) throw UsageError("adopt: the ncclComm_t is null", where);
    detail::check_place({}, {.deadline_ms = options.deadline_ms}, where);
    int rank = 0;
    int device = 0;
    detail::check_nccl("ncclCommUserRank", ncclCommUserRank(comm, &rank));
    detail::check_nccl("ncclCommCuDevice", ncclCommCuDevice(comm, &device), rank);
    auto family = std::make_shared<detail::NcclFamily>(std::make_shared<detail::NcclDomain>(), rank, device, options.deadline_ms);
    auto handle =
        std::make_unique<detail::NcclHandle>(std::move(family), detail::NcclOwnership{.owned = false, .may_abort = options.may_abort});
    *handle->slot() = comm;
    handle->take("ncclCommGetAsyncError", ncclSuccess);
    return NcclCommunicator(std::move(handle));
  }

  NcclCommunicator(NcclCommunicator&& other) noexcept : handle_(std::move(other.handle_)), exceptions_(std::uncaught_exceptions()) {}
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept {
    if (this != &other) {
      leave();
      handle_ = std::move(other.handle_);
    }
    return *this;
  }
  /// Waits for this rank's operations in flight, at the longest until their deadline, then destroys the communicator. Where an exception is
  /// passing it is aborted instead, and waits for nothing. `finalize()` says what goes wrong at the end.
  ~NcclCommunicator() { leave(); }

  [[nodiscard]] int rank() const noexcept { return handle_ != nullptr ? handle_->rank() : -1; }
  [[nodiscard]] int size() const noexcept { return handle_ != nullptr ? handle_->size() : 0; }
  /// The number of this rank's CUDA device.
  [[nodiscard]] int device() const noexcept { return handle_ != nullptr ? handle_->device() : -1; }
  /// NCCL's own handle, for calls of the caller's. Null when the communicator was aborted, finalized or moved from.
  [[nodiscard]] ncclComm_t native() const noexcept { return handle_ != nullptr ? handle_->native() : nullptr; }
  /// True after a failure that ends in ncclCommAbort: NCCL's handle is gone, or will be when this object ends. Nobody may destroy it then.
  [[nodiscard]] bool aborted() const noexcept { return handle_ != nullptr && handle_->aborted(); }

  /// Enqueues a collective.
  /// @throws UsageError for wrong arguments, a factor that is no power of two, a stream of another device; NcclError; DeadlineError; what
  /// failed the stream or the communicator before.
  /// @par Stream order
  /// Behind everything enqueued to the stream, and behind the operations of this communicator on other streams.
  template <class Operation>
    requires detail::NcclOperation<Operation>
  void enqueue(CudaStreamRef stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    detail::NcclHandle* const handle = handle_.get();
    Operation const plain = operation;  // Nobody else knows this one, so that it is read once.
    bool locked = false;
    ncclComm_t comm = nullptr;
    if (handle == nullptr || !detail::plainly_right(plain, handle->size(), handle->rank()) || !handle->ready_plainly(stream) ||
        !handle->lock_plainly(locked, comm)) {
      return enqueue_with_care(stream, operation, where, locked);
    }
    {
      detail::LockGuard const guard(handle->plain_lock(), detail::LockGuard::held);
      detail::NcclCall(*handle, comm, stream).perform(plain);
    }
    handle->track_plainly(stream, Operation::name, plain.label, where);
  }

  /// Calls body(), whose operations, all on `stream`, become one of NCCL's groups.
  /// @throws UsageError inside, for operations of other communicators; what `body` throws; NcclError; DeadlineError.
  template <class Body>
  void group(CudaStreamRef stream, Body&& body, SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    if (size() == 1) return static_cast<void>(std::forward<Body>(body)());
    handle_->begin_group(where);
    try {
      std::forward<Body>(body)();
    } catch (...) {
      end_group_quietly(stream, where);
      throw;
    }
    handle_->end_group(stream, where);
  }

  /// See `WatchesLaunches`. The deadline is one for all that `launch` enqueues.
  /// @throws what failed the communicator before; what `launch` throws; UsageError for a stream of another device; DeviceError.
  template <class Launch>
  void watch(CudaStreamRef stream, Launch&& launch, SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    handle_->family().throw_if_failed();
    check_stream(stream, where);
    std::forward<Launch>(launch)();
    if (size() > 1) handle_->track(stream, "graph", {}, where);
  }

  /// See `Splits`. The new communicator belongs to the same family: they fail together.
  /// @throws UsageError on every rank if any rank's color is negative; the communicator stays usable. NcclError; DeadlineError.
  /// @par Communication
  /// Collective: an all-gather of 16 bytes a rank, and what NCCL needs. Waits until it is done.
  [[nodiscard]] NcclCommunicator split(int color, int key = 0, SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    detail::check_nccl_colors(*handle_, color, key, where);
    auto child = std::make_unique<detail::NcclHandle>(handle_->shared_family(), detail::NcclOwnership{});
    detail::split_nccl(*handle_, *child, color, key, where);
    return NcclCommunicator(std::move(child));
  }

  /// A second communicator of the same ranks, for collectives that should overlap with this one's, on a stream of their own: for training see
  /// `SeparateCommunicators`. Whatever uses either, the library or the caller, must be called in one order on all ranks.
  /// @throws UsageError where that is not safe: before NCCL 2.26, or unless NCCL_LAUNCH_ORDER_IMPLICIT=1 is set for all ranks.
  /// @par Communication
  /// As `split`.
  [[nodiscard]] NcclCommunicator duplicate(SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    if (int const version = nccl_version(); version < 22600) {
      throw UsageError("duplicate: two communicators at once may deadlock before NCCL 2.26; version " + detail::nccl_version_text(version) +
                           " runs here",
                       where, handle_->name());
    }
    char const* const implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (implicit == nullptr || std::string_view(implicit) != "1") {
      throw UsageError("duplicate: two communicators at once may deadlock unless NCCL_LAUNCH_ORDER_IMPLICIT=1 is set for all ranks", where,
                       handle_->name());
    }
    return split(0, rank(), where);
  }

  /// Fails this rank's communicator and all that were split from the same first one. Any thread may call it, at any time; it does not block:
  /// the watchdog aborts. The first cause is kept. Peers in other processes notice by their deadline.
  void abort(std::exception_ptr cause) noexcept {
    if (handle_ == nullptr) return;
    if (cause == nullptr) cause = std::make_exception_ptr(CommunicationError("the group was aborted", handle_->name()));
    handle_->family().fail(std::move(cause));
  }

  /// Ends the communicator where failures can still be said. Collective: all ranks' operations are complete when it returns. Nothing may be
  /// enqueued afterwards. What was adopted is only waited for.
  /// @throws NcclError; DeadlineError; the cause of an earlier failure.
  void finalize(SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    handle_->finalize(where);
  }

  /// Gives NCCL's handle to the caller, who destroys it. Waits for this rank's operations in flight. Nothing may be enqueued afterwards.
  /// @throws the cause of a failure.
  [[nodiscard]] ncclComm_t release(SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    return handle_->release(where);
  }

private:
  friend struct detail::NcclAccess;

  explicit NcclCommunicator(std::unique_ptr<detail::NcclHandle> handle) noexcept
      : handle_(std::move(handle)), exceptions_(std::uncaught_exceptions()) {}

  NcclCommunicator(ncclUniqueId const& id, NcclPlace place, NcclOptions const& options, std::shared_ptr<detail::NcclDomain> domain,
                   SourceLocation where)
      : exceptions_(std::uncaught_exceptions()) {
    handle_ = detail::make_nccl_handle(place, options, std::move(domain), where);
    detail::CudaDeviceGuard const guard(place.device, where);
    ncclConfig_t config = detail::nccl_config(options);
    handle_->take("ncclCommInitRankConfig", ncclCommInitRankConfig(handle_->slot(), place.ranks, id, place.rank, &config));
  }

  void check_in_group(SourceLocation where) const {
    if (handle_ == nullptr) throw UsageError("this communicator was moved from: it is in no group", where);
  }

  void check_stream(CudaStreamRef stream, SourceLocation where) {
    if (!stream.failed() && stream.device() == device()) return;
    handle_->family().throw_if_failed();
    if (std::exception_ptr const cause = stream.failure()) {
      // The peers would wait for an operation that does not come.
      handle_->family().fail(cause);
      std::rethrow_exception(cause);
    }
    throw UsageError(
        "the stream is on CUDA device " + std::to_string(stream.device()) + ", the communicator's is " + std::to_string(device()), where,
        handle_->name());
  }

  /// What `enqueue` does where a few instructions do not show that nothing is wrong or special.
  template <class Operation>
  [[gnu::noinline]] void enqueue_with_care(CudaStreamRef stream, Operation const& operation, SourceLocation where, bool locked) {
    if (locked) handle_->plain_lock().unlock();
    check_in_group(where);
    detail::check_arguments(operation, size(), handle_->name(), where);
    detail::check_nccl_factor(operation, size(), handle_->name(), where);
    check_stream(stream, where);
    if constexpr (requires { operation.count; }) {
      if (operation.count == 0) return handle_->family().throw_if_failed();
    }
    if (size() == 1) {
      handle_->family().throw_if_failed();
      return detail::enqueue_nccl_alone(stream, operation, where);
    }
    {
      detail::NcclUse const use(*handle_, where);
      detail::NcclCall(*handle_, stream).perform(operation);
    }
    handle_->track(stream, Operation::name, operation.label, where);
  }

  void end_group_quietly(CudaStreamRef stream, SourceLocation where) noexcept {
    try {
      handle_->end_group(stream, where);
    } catch (...) {  // Kept by the family.
    }
  }

  void leave() noexcept {
    if (handle_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_ && !handle_->family().failed()) {
      try {
        throw CommunicationError("an exception is leaving the code that uses the group", handle_->name());
      } catch (...) {
        handle_->family().fail(std::current_exception());
      }
    }
    handle_ = nullptr;
  }

  std::unique_ptr<detail::NcclHandle> handle_;
  int exceptions_;
};

namespace detail {

/// What the other headers of NCCL need of a communicator.
struct NcclAccess {
  [[nodiscard]] static NcclCommunicator make(std::unique_ptr<NcclHandle> handle) { return NcclCommunicator(std::move(handle)); }
  /// @throws UsageError where it was moved from
  [[nodiscard]] static NcclHandle& handle(NcclCommunicator& communicator, SourceLocation where) {
    communicator.check_in_group(where);
    return *communicator.handle_;
  }
};

}  // namespace detail

static_assert(check_communicator<NcclCommunicator>());

}  // namespace zero
