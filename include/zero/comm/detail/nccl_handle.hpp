// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// One `ncclComm_t`: who may call it when, what it has in flight, and how it ends.

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <zero/comm/detail/nccl_ending.hpp>
#include <zero/comm/detail/nccl_family.hpp>
#include <zero/comm/detail/nccl_flight.hpp>
#include <zero/comm/detail/nccl_reductions.hpp>
#include <zero/comm/detail/nccl_scratch.hpp>
#include <zero/comm/nccl_error.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_stream.hpp>

namespace zero::detail {

/// How a handle treats its `ncclComm_t`.
struct NcclOwnership {
  bool owned = true;      ///< It is destroyed at the end.
  bool may_abort = true;  ///< A failure may abort, and so free, it.
};

class NcclHandle;

/// Whose group this thread is in.
inline thread_local NcclHandle const* nccl_group_of_thread = nullptr;

/// A communicator and what the library needs around it. Its address is stable: NCCL and the watchdog keep it.
///
/// Calls of NCCL are made by the thread that uses the communicator, in an `NcclUse`; the watchdog calls only while there is none, because an
/// abort frees what a call would be using.
class NcclHandle final : public NcclWatched {
public:
  NcclHandle(std::shared_ptr<NcclFamily> family, NcclOwnership ownership)
      : family_(std::move(family)), failure_(family_->failure()), ownership_(ownership), rank_(family_->rank()) {
    family_->add(*this);
  }
  NcclHandle(NcclHandle const&) = delete;
  NcclHandle& operator=(NcclHandle const&) = delete;
  ~NcclHandle() { end(); }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// The rank in messages.
  [[nodiscard]] RankName name() const noexcept { return {rank_, family_->rank()}; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] ncclComm_t native() const noexcept { return comm_.load(std::memory_order_acquire); }
  /// NCCL's handle is gone, or will be before this ends.
  [[nodiscard]] bool aborted() const noexcept { return ownership_.may_abort && family_->failed(); }
  [[nodiscard]] bool owned() const noexcept { return ownership_.owned; }
  [[nodiscard]] NcclFamily& family() const noexcept { return *family_; }
  [[nodiscard]] std::shared_ptr<NcclFamily> const& shared_family() const noexcept { return family_; }
  /// Memory that host and device can use: `scratch_bytes` and 16 bytes a rank.
  [[nodiscard]] std::byte* scratch() noexcept { return scratch_.data(); }
  static constexpr std::int64_t scratch_bytes = 64;

  /// Where a call that makes a communicator puts it, perhaps after it has returned.
  [[nodiscard]] ncclComm_t* slot() noexcept { return slot_.get(); }
  /// Leaves the slot to NCCL.
  void abandon_slot() noexcept { static_cast<void>(slot_.release()); }

  /// Takes what a call has put into the slot: waits until it is ready, then asks it who it is.
  /// @throws NcclError, DeadlineError, DeviceError
  void take(char const* call, ncclResult_t result) {
    ncclComm_t const comm = std::atomic_ref<ncclComm_t>(*slot_).load(std::memory_order_acquire);
    comm_.store(comm, std::memory_order_release);
    {
      LockGuard const guard(lock_);
      check(call, result);
      if (comm == nullptr) check(call, ncclInternalError);
      settle(call, result);
      check("ncclCommCount", ncclCommCount(comm, &size_));
      check("ncclCommUserRank", ncclCommUserRank(comm, &rank_));
      check("ncclCommCuDevice", ncclCommCuDevice(comm, &device_));
    }
    if (nccl_version() >= 22800) believed_ = ncclSuccess;
    CudaDeviceGuard const guard(device_, SourceLocation::current());
    scratch_ = NcclScratch(scratch_bytes + std::int64_t{16} * size_);
    if (size_ > 1) flight_.prepare(SourceLocation::current());
    taken_.store(true, std::memory_order_release);
    LockGuard const lock(lock_);
    if (ownership_.owned && size_ > 1) plain_comm_.store(native(), std::memory_order_relaxed);  // Null if it was aborted meanwhile.
  }

  /// For who calls NCCL: nobody else does until `unlock`.
  void lock(SourceLocation where) {
    family_->throw_if_failed();
    if (depth_ > 0) return;  // Inside a group the lock is held.
    if (nccl_group_of_thread != nullptr) refuse_inside_group(where);
    lock_.lock();
    if (native() == nullptr) unlock_and_throw(where);  // What fails from now on aborts only when this is unlocked.
    if (!ownership_.owned) watch_this_call();
  }
  void unlock() noexcept {
    if (depth_ > 0) return;
    call_since_ms_.store(0, std::memory_order_release);
    lock_.unlock();
  }

  // The same for a collective where nothing else has to be thought of: if `ready_plainly`, then `lock_plainly`, to the unlocking of `plain_lock`.

  [[nodiscard, gnu::always_inline]] bool ready_plainly(CudaStreamRef stream) const noexcept {
    return stream.usable_on(device_) && nccl_group_of_thread == nullptr && !failure_.load() && flight_.takes_plainly(stream);
  }
  /// False where the watchdog is looking, or, and it is locked, where the communicator has ended, was adopted, or has one rank.
  [[nodiscard, gnu::always_inline]] bool lock_plainly(bool& locked, ncclComm_t& comm) noexcept {
    locked = lock_.try_lock();
    if (!locked) return false;
    comm = plain_comm_.load(std::memory_order_relaxed);
    return comm != nullptr;
  }
  [[nodiscard]] SpinLock& plain_lock() noexcept { return lock_; }

  /// A failure of NCCL fails the family.
  /// @throws NcclError
  void check(char const* call, ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) fail(call, result);
  }

  /// Waits until a call has done its work: until then nothing may be enqueued behind it. Also where it says that it has: some versions of NCCL
  /// have lost what a call wanted to say, which is in progress, on the way out.
  /// @throws NcclError, DeadlineError; the first cause of a failure.
  [[gnu::noinline]] void settle(char const* call, ncclResult_t result) {
    check(call, result);
    if (depth_ > 0) return;
    ncclResult_t state = ncclSuccess;
    check("ncclCommGetAsyncError", ncclCommGetAsyncError(native(), &state));
    if (state != ncclSuccess) settle_later(call, state);
  }

  /// The same for one collective, which NCCL ends by asking for that state itself. It is lost in 2.22, for one, and not any more in 2.28.
  void finish(char const* call, ncclResult_t result) {
    if (result != believed_) settle(call, result);
  }

  /// The operation just called is in flight on the stream.
  void track(CudaStreamRef stream, char const* operation, Label label, SourceLocation where) {
    if (depth_ > 0) {
      ++grouped_;
      return;
    }
    // What is captured has not begun, and nobody can ask for a point in a graph.
    if (stream.natively_capturing()) return family_->throw_if_failed();
    look_after(stream, flight_.add(stream, operation, label, where));
  }
  /// The same behind `ready_plainly`.
  [[gnu::always_inline]] void track_plainly(CudaStreamRef stream, char const* operation, Label label, SourceLocation where) {
    if (stream.natively_capturing()) return family_->throw_if_failed();
    look_after(stream, flight_.add_plainly(stream, operation, label, where));
  }

  /// @throws UsageError for what waits for NCCL, which does nothing before a group has ended
  void check_outside_group(char const* call, SourceLocation where) const {
    if (depth_ > 0) throw UsageError(std::string(call) + ": inside group() nothing can be waited for", where, name());
  }

  void begin_group(SourceLocation where) {
    lock(where);
    try {
      check("ncclGroupStart", ncclGroupStart());
    } catch (...) {
      unlock();
      throw;
    }
    ++depth_;
    nccl_group_of_thread = this;
  }
  /// Ends it also where something in it has thrown: what was called in it is started.
  void end_group(CudaStreamRef stream, SourceLocation where) {
    ncclResult_t const result = ncclGroupEnd();
    --depth_;
    if (depth_ > 0) return check("ncclGroupEnd", result);
    nccl_group_of_thread = nullptr;
    std::int64_t const grouped = std::exchange(grouped_, 0);
    {
      UnlockAtEnd const end(*this);
      settle("ncclGroupEnd", result);
    }
    if (grouped > 0) track(stream, "group", {}, where);
  }

  /// Waits until all that was enqueued is done.
  /// @throws the cause of a failure; by the deadline there is one.
  void wait_in_flight() {
    for (Backoff backoff; flight_.update(family_->clock_ms()); backoff.pause()) family_->throw_if_failed();
    family_->throw_if_failed();
  }

  /// After a failure: returns when NCCL writes to nothing any more that its calls were given, at the latest after ten seconds.
  /// @return false if that took too long.
  [[nodiscard]] bool wait_for_abort() noexcept {
    if (!family_->failed()) return true;  // NCCL was not called.
    Backoff backoff;
    for (std::int64_t const end_ms = steady_ms() + 10'000; native() != nullptr; backoff.pause()) {
      if (steady_ms() > end_ms) return false;
    }
    return true;
  }

  /// Collective: waits for all ranks' operations, then destroys the communicator.
  void finalize(SourceLocation where) {
    check_outside_group("finalize", where);
    wait_in_flight();
    lock(where);
    UnlockAtEnd const end(*this);
    if (ownership_.owned) {
      settle("ncclCommFinalize", ncclCommFinalize(native()));
      // What failed is not to be destroyed again.
      check("ncclCommDestroy", ncclCommDestroy(give_up_comm()));
    } else {
      settle("ncclCommGetAsyncError", ncclSuccess);
      reductions_.forget(native());
      static_cast<void>(give_up_comm());
    }
  }

  /// Gives the communicator away.
  [[nodiscard]] ncclComm_t release(SourceLocation where) {
    check_outside_group("release", where);
    wait_in_flight();
    lock(where);
    UnlockAtEnd const end(*this);
    reductions_.forget(native());
    return give_up_comm();
  }

  /// The sum that multiplies its addends with a factor; made once for each type and factor.
  /// @throws NcclError
  template <class T>
  ncclRedOp_t multiplying_sum(ncclDataType_t type, T factor, float key) {
    ncclRedOp_t op = ncclSum;
    check("ncclRedOpCreatePreMulSum", reductions_.find(native(), type, factor, key, op));
    return op;
  }

  [[noreturn]] void fail_overdue(std::string const& text) {
    family_->fail(std::make_exception_ptr(DeadlineError(text, name())));
    family_->throw_if_failed();
    throw DeadlineError(text, name());
  }

  bool look(std::int64_t now_ms, std::exception_ptr& cause) override {
    std::string overdue;
    std::int64_t const call_since_ms = call_since_ms_.load(std::memory_order_acquire);
    if (!flight_.update(now_ms, family_->deadline_ms(), &overdue, &cause) && call_since_ms == 0) return false;
    if (call_since_ms != 0 && now_ms - call_since_ms > family_->deadline_ms()) {
      overdue = "a call of NCCL did not return within " + std::to_string(family_->deadline_ms()) + " ms: it waits for peers";
    }
    if (!overdue.empty() && cause == nullptr) cause = std::make_exception_ptr(DeadlineError(overdue, name()));
    if (cause == nullptr && lock_.try_lock()) {
      LockGuard const guard(lock_, LockGuard::held);
      look_for_errors(cause);
    }
    return true;
  }

  void fail_streams(std::exception_ptr const& cause) noexcept override { flight_.fail_streams(cause); }

  bool abort_now() noexcept override {
    bool const locked = lock_.try_lock();
    if (!locked) {
      // A blocking communicator may hang inside a call for ever, and aborting is what ends that. One of the library's own looks up by itself.
      if (patience_ms_ == 0) patience_ms_ = steady_ms() + 100;
      if (ownership_.owned || steady_ms() < patience_ms_) return false;
    }
    if (ncclComm_t const comm = give_up_comm(); comm != nullptr) abort(comm);
    if (locked) lock_.unlock();
    return true;
  }

private:
  struct UnlockAtEnd {
    explicit UnlockAtEnd(NcclHandle& of) noexcept : handle(of) {}
    ~UnlockAtEnd() { handle.unlock(); }
    NcclHandle& handle;
  };

  /// Nothing is enqueued from now on.
  [[nodiscard]] ncclComm_t give_up_comm() noexcept {
    plain_comm_.store(nullptr, std::memory_order_relaxed);
    return comm_.exchange(nullptr, std::memory_order_acq_rel);
  }

  // The other group's end would start the operation, when this communicator may have been aborted.
  [[noreturn, gnu::noinline]] void refuse_inside_group(SourceLocation where) {
    throw UsageError("inside group() of one NCCL communicator nothing can be enqueued to another one", where, name());
  }

  [[gnu::noinline]] void unlock_and_throw(SourceLocation where) {
    lock_.unlock();
    family_->throw_if_failed();
    throw UsageError("the NCCL communicator was finalized or released", where, name());
  }

  /// It may block inside calls, which the watchdog ends.
  [[gnu::noinline]] void watch_this_call() noexcept {
    call_since_ms_.store(family_->clock_ms(), std::memory_order_release);
    family_->wake();
  }

  [[gnu::noinline]] void fail(char const* call, ncclResult_t result) {
    family_->fail(std::make_exception_ptr(nccl_error(call, result, native(), name())));
    family_->throw_if_failed();
  }

  [[gnu::noinline]] void settle_later(char const* call, ncclResult_t state) {
    std::int64_t const start_ms = steady_ms();
    for (Backoff backoff; true; backoff.pause()) {
      check(call, state);
      if (state == ncclSuccess) return;
      family_->throw_if_failed();
      if (steady_ms() - start_ms > family_->deadline_ms()) {
        fail_overdue(std::string(call) + " was not done after " + std::to_string(family_->deadline_ms()) +
                     " ms: it waits for peers, which have not called it or are gone");
      }
      check("ncclCommGetAsyncError", ncclCommGetAsyncError(native(), &state));
    }
  }

  [[gnu::always_inline]] void look_after(CudaStreamRef stream, bool sleeps) {
    if (sleeps) family_->wake();
    if (failure_.load()) fail_what_was_missed(stream);
  }

  /// A failure that came before the operation was in flight has not seen it; an abort may have ended it already.
  [[gnu::noinline]] void fail_what_was_missed(CudaStreamRef stream) {
    stream.fail(family_->cause());
    flight_.fail_streams(family_->cause());
    family_->throw_if_failed();
  }

  void look_for_errors(std::exception_ptr& cause) {
    ncclComm_t const comm = native();
    if (comm == nullptr) return;
    ncclResult_t state = ncclSuccess;
    ncclResult_t const result = ncclCommGetAsyncError(comm, &state);
    if (result != ncclSuccess) state = result;
    if (state != ncclSuccess && state != ncclInProgress) {
      cause = std::make_exception_ptr(nccl_error("ncclCommGetAsyncError", state, comm, name()));
    }
  }

  void abort(ncclComm_t comm) noexcept {
    abort_nccl(comm, ownership_.may_abort && (ownership_.owned || taken_.load(std::memory_order_acquire)));
  }

  /// Never throws, and waits no longer than the deadline.
  void end() noexcept {
    try {
      if (!family_->failed()) wait_in_flight();
    } catch (...) {  // The watchdog aborts, or this does.
    }
    family_->remove(*this);
    ncclComm_t const comm = native();
    if (comm == nullptr) return;
    if (family_->failed()) return abort(comm);
    if (!ownership_.owned) return reductions_.forget(comm);
    if (finalize_nccl_in_time(comm, *family_)) static_cast<void>(ncclCommDestroy(comm));
    else static_cast<void>(ncclCommAbort(comm));
  }

  std::shared_ptr<NcclFamily> family_;
  std::atomic<bool> const& failure_;
  NcclOwnership ownership_;
  std::atomic<bool> taken_ = false;  // until then what is adopted is its owner's to end
  std::unique_ptr<ncclComm_t> slot_ = std::make_unique<ncclComm_t>(nullptr);
  std::atomic<ncclComm_t> comm_ = nullptr;
  int rank_;
  int size_ = 1;
  int device_ = 0;
  ncclResult_t believed_ = ncclNumResults;        // see finish(); this one no call says
  std::atomic<ncclComm_t> plain_comm_ = nullptr;  // written inside lock_
  SpinLock lock_;
  int depth_ = 0;             // of groups
  std::int64_t grouped_ = 0;  // operations in the group
  std::int64_t patience_ms_ = 0;
  std::atomic<std::int64_t> call_since_ms_ = 0;  // when the call that somebody is inside began, 0 outside
  NcclFlight flight_;
  NcclReductions reductions_;
  NcclScratch scratch_;
};

}  // namespace zero::detail
