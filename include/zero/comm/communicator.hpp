// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What the library asks of a communicator: one concept per ability, what training needs of it, and sentences for what is missing.

#include <concepts>
#include <cstdint>
#include <exception>
#include <utility>

#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/device.hpp>

namespace zero {

/// A rank's place in a group of ranks. One object is one rank's handle.
///
/// What the syntax cannot say:
/// - rank() is in [0, size()) and both never change;
/// - `abort(cause)` may be called by any thread at any time. It never blocks: peers that wait in the group, or call it later, throw a
///   `PeerError` with the cause's text; the first cause is kept;
/// - a model is movable; moving it while its operations are in flight is allowed. What was moved from is in no group.
template <class C>
concept RankGroup = requires(C& group, C const& view, std::exception_ptr cause) {
  typename C::Device;
  typename C::Device::Stream;
  { view.rank() } noexcept -> std::same_as<int>;
  { view.size() } noexcept -> std::same_as<int>;
  { group.abort(cause) } noexcept -> std::same_as<void>;
};

/// The type of the streams on which a communicator works.
template <class C>
using StreamOf = typename C::Device::Stream;

/// C performs Operation: `enqueue(stream, operation)` puts it on the stream and returns without waiting for peers (a stream that is the
/// calling thread runs it at once).
///
/// What the syntax cannot say:
/// - all ranks of the group enqueue the same operations in the same order, whichever streams they use. Operations of one communicator
///   start in the order of these calls. In a group of one rank nothing is communicated and streams are not ordered: a copy is enqueued where the
///   result lies elsewhere;
/// - the buffers must stay as they are, and untouched by others, until the stream has passed the operation;
/// - failures on the way arrive at the stream: its later work does not run, and its next call or wait throws. Wrong arguments throw
///   `UsageError` in the call and enqueue nothing.
template <class C, class Operation>
concept Performs = RankGroup<C> && requires(C& group, StreamOf<C> stream, Operation const& operation) { group.enqueue(stream, operation); };

/// C performs all-gathers of elements of type T.
template <class C, class T>
concept GathersAll = Performs<C, AllGather<T>>;

/// C performs reduce-scatters that sum elements of type T.
template <class C, class T>
concept ReduceScatters = Performs<C, ReduceScatter<T, Sum>>;

/// C performs all-reduces of elements of type T with the reduction Op, `Sum` or `Max`.
template <class C, class T, class Op>
concept AllReduces = Performs<C, AllReduce<T, Op>>;

/// C performs broadcasts of elements of type T.
template <class C, class T>
concept Broadcasts = Performs<C, Broadcast<T>>;

/// C performs all-to-alls of elements of type T, whatever their stride, with and without own parts.
template <class C, class T>
concept AllToAlls = Performs<C, AllToAll<T>>;

/// C performs barriers.
template <class C>
concept Synchronizes = Performs<C, Barrier>;

/// `group(stream, body)` calls `body()`, whose enqueue calls, all on `stream`, may then run as one: none of them is sure to have started
/// before the group ends, and they do not depend on each other.
template <class C>
concept Groups = RankGroup<C> && requires(C& group, StreamOf<C> stream, void (&body)()) { group.group(stream, body); };

/// `split(color, key)` is collective: ranks with the same color form a new group, ordered by key, then by rank. Colors are not negative.
/// It waits for the operations enqueued before it and for the peers.
template <class C>
concept Splits = RankGroup<C> && requires(C& group) {
  { group.split(0, 0) } -> RankGroup;
};

/// `watch(stream, launch)` calls `launch()`, which puts operations of this communicator on the stream without `enqueue`: a graph that they were
/// captured in. They fail, and are given up at the deadline, like others. Throws what failed the group before.
template <class C>
concept WatchesLaunches = RankGroup<C> && requires(C& group, StreamOf<C> stream, void (&launch)()) { group.watch(stream, launch); };

/// What training asks for: `check_communicator<C>()` says in a sentence what is missing.
template <class C>
concept Communicator = RankGroup<C> && Device<typename C::Device> && GathersAll<C, float> && ReduceScatters<C, float> &&
                       AllReduces<C, float, Sum> && AllReduces<C, std::int64_t, Sum> && AllReduces<C, std::int64_t, Max> &&
                       Broadcasts<C, float> && AllToAlls<C, float> && Synchronizes<C> && Groups<C> && Splits<C>;

/// One sentence for each requirement of `Communicator` that C lacks: `static_assert(zero::check_communicator<MyCommunicator>());`
template <class C>
consteval bool check_communicator() {
  static_assert(
      requires {
        typename C::Device;
        requires Device<typename C::Device>;
      }, "zero: a communicator needs a member type Device that models zero::Device: it says on which streams the operations run");
  static_assert(
      requires(C const& c) {
        { c.rank() } noexcept -> std::same_as<int>;
        { c.size() } noexcept -> std::same_as<int>;
      }, "zero: a communicator needs int rank() const noexcept and int size() const noexcept");
  static_assert(
      requires(C& c, std::exception_ptr cause) {
        { c.abort(cause) } noexcept -> std::same_as<void>;
      }, "zero: a communicator needs void abort(std::exception_ptr) noexcept: it makes the peers that wait throw");
  if constexpr (RankGroup<C>) {
    static_assert(GathersAll<C, float>,
                  "zero: a communicator for training needs enqueue(stream, zero::AllGather<T> const&): "
                  "it turns sharded parameters into whole ones");
    static_assert(ReduceScatters<C, float>,
                  "zero: a communicator for training needs enqueue(stream, zero::ReduceScatter<T> const&): "
                  "it turns gradients into their sum, sharded");
    static_assert(AllReduces<C, float, Sum>,
                  "zero: a communicator for training needs enqueue(stream, zero::AllReduce<T> const&): "
                  "it turns gradients into their sum on every rank");
    static_assert(AllReduces<C, std::int64_t, Sum> && AllReduces<C, std::int64_t, Max>,
                  "zero: a communicator for training needs enqueue for zero::AllReduce<std::int64_t, zero::Sum> and zero::Max: "
                  "norms and flags are summed exactly");
    static_assert(Broadcasts<C, float>, "zero: a communicator for training needs enqueue(stream, zero::Broadcast<T> const&)");
    static_assert(AllToAlls<C, float>, "zero: a communicator for training needs enqueue(stream, zero::AllToAll<T> const&)");
    static_assert(Synchronizes<C>, "zero: a communicator for training needs enqueue(stream, zero::Barrier const&)");
    static_assert(Groups<C>, "zero: a communicator for training needs group(stream, body): the operations of one unit go out together");
    static_assert(Splits<C>, "zero: a communicator for training needs split(color, key), which returns a communicator of the subgroup");
  }
  return Communicator<C>;
}

namespace detail {

/// Enqueues with the user's file and line where the communicator wants them.
template <class C, class Operation>
void enqueue_at(C& group, StreamOf<C> stream, Operation const& operation, SourceLocation where) {
  if constexpr (requires { group.enqueue(stream, operation, where); }) {
    group.enqueue(stream, operation, where);
  } else {
    group.enqueue(stream, operation);
  }
}

/// Calls launch(), watched where the communicator can.
template <class C, class Launch>
void watch_at(C& group, StreamOf<C> stream, Launch&& launch, SourceLocation where) {
  if constexpr (WatchesLaunches<C>) {
    group.watch(stream, std::forward<Launch>(launch), where);
  } else {
    std::forward<Launch>(launch)();
  }
}

/// `split` with the user's file and line.
template <class C>
[[nodiscard]] auto split_at(C& group, int color, int key, SourceLocation where) {
  if constexpr (requires { group.split(color, key, where); }) {
    return group.split(color, key, where);
  } else {
    return group.split(color, key);
  }
}

}  // namespace detail

/// A communicator by reference, for adaptors, which keep what they adapt by value:
/// `Counting counting{Borrowed{communicator}, traffic};`. The communicator must outlive it.
template <RankGroup C>
class Borrowed {
public:
  using Device = typename C::Device;

  explicit Borrowed(C& inner) noexcept : inner_(&inner) {}

  [[nodiscard]] int rank() const noexcept { return inner_->rank(); }
  [[nodiscard]] int size() const noexcept { return inner_->size(); }
  void abort(std::exception_ptr cause) noexcept { inner_->abort(std::move(cause)); }

  /// Forwards to the borrowed communicator.
  template <class Operation>
    requires Performs<C, Operation>
  void enqueue(StreamOf<C> stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    detail::enqueue_at(*inner_, stream, operation, where);
  }

  /// Forwards to the borrowed communicator.
  template <class Body>
    requires Groups<C>
  void group(StreamOf<C> stream, Body&& body) {
    inner_->group(stream, std::forward<Body>(body));
  }

  /// Forwards to the borrowed communicator.
  template <class Launch>
    requires WatchesLaunches<C>
  void watch(StreamOf<C> stream, Launch&& launch, SourceLocation where = SourceLocation::current()) {
    inner_->watch(stream, std::forward<Launch>(launch), where);
  }

  /// A new communicator that the caller owns.
  [[nodiscard]] auto split(int color, int key = 0, SourceLocation where = SourceLocation::current())
    requires Splits<C>
  {
    return detail::split_at(*inner_, color, key, where);
  }

private:
  C* inner_;
};

}  // namespace zero
