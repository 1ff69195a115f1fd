// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A group of one rank on any device.

#include <atomic>
#include <exception>
#include <type_traits>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/alone.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/device.hpp>
#include <zero/device/host_device.hpp>

namespace zero {

/// The only rank of its group: the same loop without ranks, threads or a transport. Every collective is an alias or a local copy.
///
/// A copy is another group, which is aborted already if this one was.
///
/// @tparam D The device whose streams the copies run on.
/// @par Communication
/// None.
template <Device D>
class BasicSelfCommunicator {
public:
  using Device = D;

  BasicSelfCommunicator() = default;
  BasicSelfCommunicator(BasicSelfCommunicator const& other) : cause_(other.cause()), aborted_(cause_ != nullptr) {}
  BasicSelfCommunicator& operator=(BasicSelfCommunicator const& other) {
    std::exception_ptr cause = other.cause();
    detail::LockGuard const guard(lock_);
    aborted_.store(cause != nullptr, std::memory_order_relaxed);
    cause_.swap(cause);
    return *this;
  }
  ~BasicSelfCommunicator() = default;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  /// Copies where the result is not in place.
  /// @throws UsageError as every communicator does; the cause given to `abort`, if it was called.
  template <class Operation>
    requires(!std::is_same_v<Operation, Announce>) && requires(Operation const& o) { detail::check_arguments(o, 1, 0, SourceLocation()); }
  void enqueue(typename D::Stream stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    if (aborted_.load(std::memory_order_relaxed)) std::rethrow_exception(cause());
    detail::check_arguments(operation, 1, 0, where);
    detail::enqueue_alone<D>(stream, operation);
  }

  /// Calls body().
  template <class Body>
  void group(typename D::Stream, Body&& body) {
    std::forward<Body>(body)();
  }

  /// A group of this rank alone.
  /// @throws UsageError if the color is negative.
  [[nodiscard]] BasicSelfCommunicator split(int color, int = 0, SourceLocation where = SourceLocation::current()) {
    if (color < 0) throw UsageError("split: a negative color; every rank belongs to one group", where, 0);
    return *this;
  }

  /// Makes every later call throw the cause. Any thread may call it, at any time. The first cause is kept.
  void abort(std::exception_ptr cause) noexcept {
    if (cause == nullptr) {
      try {
        throw CommunicationError("the group was aborted", 0);
      } catch (...) {
        cause = std::current_exception();
      }
    }
    detail::LockGuard const guard(lock_);
    if (cause_ != nullptr) return;
    cause_ = std::move(cause);
    aborted_.store(true, std::memory_order_relaxed);
  }

private:
  [[nodiscard]] std::exception_ptr cause() const {
    detail::LockGuard const guard(lock_);
    return cause_;
  }

  mutable detail::SpinLock lock_;
  std::exception_ptr cause_;
  std::atomic<bool> aborted_ = false;  ///< All that a call looks at while nothing has failed.
};

/// The only rank of its group, on the host.
using SelfCommunicator = BasicSelfCommunicator<HostDevice>;

static_assert(check_communicator<SelfCommunicator>());

}  // namespace zero
