// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A group of one rank on any device.

#include <exception>
#include <type_traits>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/alone.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/device.hpp>
#include <zero/device/host_device.hpp>

namespace zero {

/// The only rank of its group: the same loop without ranks, threads or a transport. Every collective is an alias or a local copy.
///
/// @tparam D The device whose streams the copies run on.
/// @par Communication
/// None.
template <Device D>
class BasicSelfCommunicator {
public:
  using Device = D;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  /// Copies where the result is not in place.
  /// @throws UsageError as every communicator does; the cause given to `abort`, if it was called.
  template <class Operation>
    requires(!std::is_same_v<Operation, Announce>) && requires(Operation const& o) { detail::check_arguments(o, 1, 0, SourceLocation()); }
  void enqueue(typename D::Stream stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    if (cause_ != nullptr) std::rethrow_exception(cause_);
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

  /// Makes every later call throw the cause. Unlike with other groups, only the thread that uses the communicator may call it.
  void abort(std::exception_ptr cause) noexcept {
    if (cause_ != nullptr) return;
    cause_ = cause != nullptr ? std::move(cause) : std::make_exception_ptr(CommunicationError("the group was aborted", 0));
  }

private:
  std::exception_ptr cause_;
};

/// The only rank of its group, on the host.
using SelfCommunicator = BasicSelfCommunicator<HostDevice>;

static_assert(check_communicator<SelfCommunicator>());

}  // namespace zero
