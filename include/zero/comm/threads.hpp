// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Ranks as threads of one process: collectives that read and write the peers' memory, compare what the ranks call, and never hang on a
/// failure.

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/alone.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/detail/rendezvous.hpp>
#include <zero/comm/detail/split_order.hpp>
#include <zero/comm/detail/thread_collectives.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/host_stream.hpp>

namespace zero {

namespace detail {

/// A collective in the queue of a stream. Destroyed without having run, because the stream failed before, it takes the group with it: the
/// peers would wait for this rank for ever. One that the stream refused was not called.
template <class Operation>
class ThreadTask {
public:
  ThreadTask(std::shared_ptr<Rendezvous> group, int rank, std::uint32_t turn, StreamClaim claim, Operation const& operation) noexcept
      : group_(std::move(group)), claim_(std::move(claim)), operation_(operation), turn_(turn), rank_(rank) {}
  ThreadTask(ThreadTask&& other) noexcept
      : group_(std::move(other.group_)),
        claim_(std::move(other.claim_)),
        operation_(other.operation_),
        turn_(other.turn_),
        rank_(other.rank_) {}
  ThreadTask& operator=(ThreadTask&&) = delete;
  ~ThreadTask() {
    if (group_ == nullptr) return;
    if (std::exception_ptr cause = claim_.stream().failure()) group_->fail(rank_, std::move(cause));
  }

  void operator()() {
    std::shared_ptr<Rendezvous> const group = std::move(group_);
    group->wait_for_turn(rank_, turn_);
    ThreadCall(*group, rank_).perform(operation_);
    group->end_turn(rank_);
  }

private:
  std::shared_ptr<Rendezvous> group_;
  StreamClaim claim_;
  Operation operation_;
  std::uint32_t turn_;
  int rank_;
};

template <class Operation>
concept ThreadOperation = requires(ThreadCall call, Operation const& operation) { check_arguments(operation, 1, 0, SourceLocation()); } &&
                          !std::is_same_v<Operation, Announce>;

struct RankLauncher;

}  // namespace detail

/// One rank's handle of a group of threads. `run_ranks` makes the first group, `split` makes more. Move-only; one that was moved from
/// is in no group: its size is 0, its rank -1, and calls throw `UsageError`.
///
/// - **Where.** Collectives run as tasks of the stream they are enqueued to: on its worker thread or on the calling thread. Those of one
///   communicator run in the order of their enqueue calls, also on different streams. A stream with a worker is for the collectives of one
///   rank: two ranks that share one would wait for each other for ever. One thread at a time may call.
/// - **Checks.** Ranks always compare what they call: kind, element type, count, reduction, factor, root and label. On a mismatch every
///   rank throws a `MismatchError` that names both sides, before anything is moved.
/// - **Failure.** After a rank has thrown, aborted, or dropped a collective because its stream had failed, all waits and all later calls in
///   this group and all groups split from the same first group throw: `PeerError` with the rank and its message, or the first cause where
///   it happened. A rank that returns (destroys its handle) makes peers that still wait for it in this group throw `PeerError`. A handle
///   that an exception destroys counts as failed.
/// - **Numerics.** Sums are formed in a fixed binary tree over ranks, tree(lo, n) = tree(lo, p) + tree(lo + p, n - p) with p the largest
///   power of two below n; 16-bit elements are added in fp32, multiplied by the factor, and rounded once. Results do not depend on streams
///   or timing.
/// - **Ranks in errors** are those of this group; texts add the number in the first group where it is another one. What has failed
///   in another group is told with the numbers that it has there, and `PeerError::peer()` is -1 where that rank is not in this group.
///
/// @par Communication
/// The formulas of the operations, exactly: `bytes_copied()` counts what was really moved. One rank: nothing; a local copy where the result
/// is not in place.
/// @par Memory
/// A few hundred bytes a rank and group. No collective allocates.
class ThreadCommunicator {
public:
  using Device = HostDevice;

  ThreadCommunicator(ThreadCommunicator&& other) noexcept
      : group_(std::move(other.group_)),
        rank_(std::exchange(other.rank_, -1)),
        turns_(other.turns_),
        exceptions_(std::uncaught_exceptions()) {}
  ThreadCommunicator& operator=(ThreadCommunicator&& other) noexcept {
    if (this != &other) {
      leave();
      group_ = std::move(other.group_);
      rank_ = std::exchange(other.rank_, -1);
      turns_ = other.turns_;
    }
    return *this;
  }
  ~ThreadCommunicator() { leave(); }

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// The number of ranks in the group.
  [[nodiscard]] int size() const noexcept { return group_ != nullptr ? group_->size() : 0; }

  /// Bytes that were really moved from the peers' memory into this rank's, by the collectives that have completed.
  [[nodiscard]] std::int64_t bytes_copied() const noexcept {
    return group_ != nullptr ? group_->slot(rank_).copied_bytes.load(std::memory_order_relaxed) : 0;
  }

  /// Puts a collective on a stream: AllGather, ReduceScatter, AllReduce, Broadcast, AllToAll or Barrier.
  /// @throws UsageError for a negative count, a null pointer, an overlap that the operation does not allow, a wrong root or factor, or
  /// inside a task of the stream. Nothing is enqueued then.
  /// @throws UsageError on every rank, and fails the group, where a stream with a worker holds collectives of another rank.
  /// @throws what failed the group or the stream before. With a stream that is the calling thread, also what fails this collective.
  /// @par Stream order
  /// Runs behind what is on the stream, and behind what this communicator has been given before on any stream.
  template <detail::ThreadOperation Operation>
  void enqueue(HostStreamRef stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    detail::check_arguments(operation, size(), group_->name(rank_), where);
    group_->throw_if_broken(rank_);
    if (size() == 1) return detail::enqueue_alone<HostDevice>(stream, operation);
    detail::StreamClaim claim = group_->claim(stream, rank_, where);
    stream.enqueue(detail::ThreadTask<Operation>(group_, rank_, turns_, std::move(claim), operation), where);
    ++turns_;
  }

  /// Calls body(): between threads there is nothing to gain from starting several collectives as one.
  template <class Body>
  void group(HostStreamRef, Body&& body) {
    std::forward<Body>(body)();
  }

  /// Collective: the ranks with the same color form a new group, ordered by key, then by rank.
  ///
  /// Blocks the calling thread until this communicator's earlier operations are done and all ranks have come.
  /// @param color which group, at least 0; every rank belongs to exactly one: who needs none still names a color of its own.
  /// @throws UsageError on every rank if any rank's color is negative; the groups stay usable.
  [[nodiscard]] ThreadCommunicator split(int color, int key = 0, SourceLocation where = SourceLocation::current());

  /// Fails all groups split from the same first group: peers that wait, or call later, throw `PeerError` with the cause's text. Any thread
  /// may call it, at any time; it does not block. The first cause is kept. Called by a destructor because an exception passes through,
  /// peers are told that exception instead, if it leaves the body of the rank soon.
  void abort(std::exception_ptr cause) noexcept {
    if (group_ != nullptr) group_->fail(rank_, std::move(cause), unwinding());
  }

private:
  friend struct detail::RankLauncher;

  ThreadCommunicator(std::shared_ptr<detail::Rendezvous> group, int rank) noexcept
      : group_(std::move(group)), rank_(rank), exceptions_(std::uncaught_exceptions()) {}

  void check_in_group(SourceLocation where) const {
    if (group_ == nullptr) throw UsageError("this communicator was moved from: it is in no group", where);
  }

  [[nodiscard]] bool unwinding() const noexcept { return std::uncaught_exceptions() > exceptions_; }

  void leave() noexcept {
    if (group_ == nullptr) return;
    if (unwinding()) {
      try {
        throw CommunicationError("an exception is leaving the code that uses the group", group_->name(rank_));
      } catch (...) {
        group_->fail(rank_, std::current_exception(), true);
      }
    } else {
      group_->close(rank_, turns_);
    }
    group_ = nullptr;
  }

  std::shared_ptr<detail::Rendezvous> group_;
  int rank_;
  std::uint32_t turns_ = 0;  ///< Operations given to streams so far.
  int exceptions_;
};

inline ThreadCommunicator ThreadCommunicator::split(int color, int key, SourceLocation where) {
  using detail::Rendezvous;
  check_in_group(where);
  group_->throw_if_broken(rank_);
  std::uint32_t const turn = turns_++;
  group_->wait_for_turn(rank_, turn);
  Rendezvous::Slot& own = group_->slot(rank_);
  own.call = {};
  own.call.kind = OperationKind::split;
  own.color = color;
  own.key = key;
  own.child = nullptr;
  group_->meet(rank_);

  int refused = -1;
  detail::PlainArray<int> ranks;  // of this group, in the order of the new one
  for (int peer = size() - 1; peer >= 0; --peer) {
    if (group_->slot(peer).color < 0) refused = peer;
  }
  std::exception_ptr failure;  // No memory: said after parting, where the peers wait for this rank.
  try {
    if (refused < 0) {
      ranks = detail::ranks_of_color(size(), color, [&](int peer) -> Rendezvous::Slot const& { return group_->slot(peer); });
    }
    if (refused < 0 && ranks[0] == rank_) {
      detail::PlainArray<int> members;
      for (int peer : ranks) members.push_back(group_->member(peer));
      own.child = std::make_shared<Rendezvous>(group_->domain(), std::move(members));
    }
  } catch (...) {
    failure = std::current_exception();
    group_->fail(rank_, failure);
  }
  group_->part(rank_);  // All groups are made.
  int const refused_color = refused < 0 ? 0 : group_->slot(refused).color;
  std::shared_ptr<Rendezvous> child = failure == nullptr && refused < 0 ? group_->slot(ranks[0]).child : nullptr;
  group_->part(rank_);  // All ranks have their group.
  own.child = nullptr;
  group_->end_turn(rank_);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (refused >= 0) {
    throw UsageError("split: " + group_->name(refused).text() + " gives the color " + std::to_string(refused_color) +
                         "; colors are not negative, every rank belongs to one group",
                     where, group_->name(rank_));
  }
  if (child == nullptr) group_->throw_if_broken(rank_);  // The rank that makes the groups of this color could not.
  int rank = 0;
  while (ranks[static_cast<std::size_t>(rank)] != rank_) ++rank;
  return ThreadCommunicator(std::move(child), rank);
}

static_assert(check_communicator<ThreadCommunicator>());

}  // namespace zero
