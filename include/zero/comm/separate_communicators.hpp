// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// `SeparateCommunicators`: an adaptor that makes one group of two communicators, so that gathers pass reductions that are still under way.

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>

namespace zero {

namespace detail {

/// Whether an operation only hands out what some rank has.
template <class Operation>
inline constexpr bool is_gather = false;
template <class T>
inline constexpr bool is_gather<AllGather<T>> = true;
template <class T>
inline constexpr bool is_gather<Broadcast<T>> = true;

/// Whether `Gathers` is the one of two communicators that performs an operation. An announcement is made once, where it is compared.
template <class Gathers, class Operation>
inline constexpr bool goes_to_gathers = is_gather<Operation> || (std::is_same_v<Operation, Announce> && Performs<Gathers, Operation>);

/// An operation that is enqueued later.
template <class C>
class Postponed {
public:
  Postponed() = default;
  Postponed(Postponed const&) = delete;
  Postponed& operator=(Postponed const&) = delete;
  virtual ~Postponed() = default;
  virtual void enqueue(C& group) const = 0;
};

template <class C, class Operation>
class PostponedOperation final : public Postponed<C> {
public:
  PostponedOperation(StreamOf<C> stream, Operation const& operation, SourceLocation where) noexcept
      : stream_(stream), operation_(operation), where_(where) {}
  void enqueue(C& group) const override { enqueue_at(group, stream_, operation_, where_); }

private:
  StreamOf<C> stream_;
  Operation operation_;
  SourceLocation where_;
};

}  // namespace detail

/// Two communicators of the same ranks as one group: all-gathers and broadcasts go to the first, everything else to the second. One communicator
/// starts its operations in the order of the calls; with two, on a stream each, a gather need not wait for reductions that were called before.
///
/// @code
/// zero::NcclCommunicator second = comm.duplicate();
/// zero::SeparateCommunicators group{zero::Borrowed{comm}, zero::Borrowed{second}};
/// auto parameters = zero::shard_parameters<Stage, Precision>(layout, group, {compute, communication, reductions}, memory);
/// @endcode
/// All ranks call everything in one order, whichever of the two it goes to. Over threads and MPI the second one is `comm.split(0, comm.rank())`.
///
/// `Ordered` belongs around the second one alone: around both, its all-reduces would gather through the first. `Checked` belongs around both, as
/// only then a gather on one rank is compared with a reduction on another; without it such ranks end at the deadline. `Counting` belongs where it
/// is to count.
///
/// @par Communication
/// What is called. `split` splits both.
/// @par Memory
/// None, but for reductions inside `group`.
/// @par Stream order
/// Each communicator keeps the order of its own operations; nothing orders those of one behind those of the other but the streams.
template <RankGroup Gathers, RankGroup Reductions>
class SeparateCommunicators {
public:
  using Device = typename Gathers::Device;
  static_assert(std::is_same_v<Device, typename Reductions::Device>,
                "zero: SeparateCommunicators works on the streams of one device: both communicators need the same member type Device");

  /// @param gathers, reductions  kept by value; `Borrowed{communicator}` for those that somebody else owns.
  /// @throws UsageError if this rank is not the same in both.
  SeparateCommunicators(Gathers gathers, Reductions reductions, SourceLocation where = SourceLocation::current())
      : gathers_(std::move(gathers)), reductions_(std::move(reductions)) {
    if (gathers_.rank() == reductions_.rank() && gathers_.size() == reductions_.size()) return;
    throw UsageError("SeparateCommunicators: " + place(gathers_) + " for gathers and " + place(reductions_) + " for reductions", where,
                     gathers_.rank());
  }

  [[nodiscard]] int rank() const noexcept { return gathers_.rank(); }
  [[nodiscard]] int size() const noexcept { return gathers_.size(); }
  void abort(std::exception_ptr cause) noexcept {
    gathers_.abort(cause);
    reductions_.abort(std::move(cause));
  }

  /// Enqueues to one of the two. An announcement goes to the first one that compares.
  template <class Operation>
    requires(detail::goes_to_gathers<Gathers, Operation> ? Performs<Gathers, Operation> : Performs<Reductions, Operation>)
  void enqueue(StreamOf<Gathers> stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    if constexpr (detail::goes_to_gathers<Gathers, Operation>) {
      detail::enqueue_at(gathers_, stream, operation, where);
    } else if (groups_ > 0) {
      postpone(stream, operation, where);
    } else {
      detail::enqueue_at(reductions_, stream, operation, where);
    }
  }

  /// See `Groups`. Calls body() in a group of the first communicator; reductions inside follow at its end, in a group of the second.
  template <class Body>
    requires(Groups<Gathers> && Groups<Reductions>)
  void group(StreamOf<Gathers> stream, Body&& body) {
    ++groups_;
    try {
      gathers_.group(stream, std::forward<Body>(body));
    } catch (...) {
      end_group_quietly(stream);
      throw;
    }
    end_group(stream);
  }

  /// Watched by both, or by the one that can.
  template <class Launch>
    requires(WatchesLaunches<Gathers> || WatchesLaunches<Reductions>)
  void watch(StreamOf<Gathers> stream, Launch&& launch, SourceLocation where = SourceLocation::current()) {
    detail::watch_at(
        gathers_, stream, [&] { detail::watch_at(reductions_, stream, std::forward<Launch>(launch), where); }, where);
  }

  /// See `Splits`. The new group has two communicators too.
  [[nodiscard]] auto split(int color, int key = 0, SourceLocation where = SourceLocation::current())
    requires(Splits<Gathers> && Splits<Reductions>)
  {
    auto gathers = detail::split_at(gathers_, color, key, where);
    auto reductions = detail::split_at(reductions_, color, key, where);
    return SeparateCommunicators<decltype(gathers), decltype(reductions)>(std::move(gathers), std::move(reductions), where);
  }

private:
  template <class C>
  [[nodiscard]] static std::string place(C const& group) {
    return "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size());
  }

  template <class Operation>
  void postpone(StreamOf<Gathers> stream, Operation const& operation, SourceLocation where) {
    // What is wrong is said in the call.
    if constexpr (requires { detail::check_arguments(operation, 1, 0, where); }) {
      if (size() > 0) detail::check_arguments(operation, size(), rank(), where);
    }
    postponed_.push_back(std::make_unique<detail::PostponedOperation<Reductions, Operation>>(stream, operation, where));
  }

  void end_group(StreamOf<Gathers> stream) {
    if (--groups_ > 0 || postponed_.empty()) return;
    auto const postponed = std::exchange(postponed_, {});
    reductions_.group(stream, [&] {
      for (auto const& operation : postponed) operation->enqueue(reductions_);
    });
  }
  void end_group_quietly(StreamOf<Gathers> stream) noexcept {
    try {
      end_group(stream);
    } catch (...) {  // What the group's body has thrown comes first.
    }
  }

  Gathers gathers_;
  Reductions reductions_;
  int groups_ = 0;  // under way
  std::vector<std::unique_ptr<detail::Postponed<Reductions>>> postponed_;
};

}  // namespace zero
