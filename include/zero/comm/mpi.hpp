// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Ranks as processes of an MPI job. Needs the CMake target zero::mpi.

#include <zero/comm/mpi_error.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/alone.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/detail/mpi_collectives.hpp>
#include <zero/comm/detail/mpi_domain.hpp>
#include <zero/comm/detail/mpi_group.hpp>
#include <zero/comm/detail/mpi_types.hpp>
#include <zero/comm/detail/split_order.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/host_stream.hpp>

namespace zero {

namespace detail {

/// Performs a collective when its turn has come. What fails it fails the group.
template <class Operation>
[[gnu::always_inline]] inline void perform_in_turn(MpiGroup& group, std::uint32_t turn, Operation const& operation) {
  bool const look = MpiCall::may_end_alone(operation);
  group.wait_for_turn(turn, look);
  try {
    MpiCall(group).perform(operation);
  } catch (...) {
    group.domain().fail(std::current_exception());
    group.domain().push_out();
    throw;
  }
  group.end_turn(turn, look);
}

/// A collective in the queue of a stream. Destroyed without having run, because the stream failed before, it takes the group with it: the
/// peers would wait for this rank. One that the stream refused was not called.
template <class Operation>
class MpiTask {
public:
  MpiTask(std::shared_ptr<MpiGroup> group, std::uint32_t turn, HostStreamRef stream, Operation const& operation) noexcept
      : group_(std::move(group)), stream_(stream), operation_(operation), turn_(turn) {}
  MpiTask(MpiTask&& other) noexcept
      : group_(std::move(other.group_)), stream_(other.stream_), operation_(other.operation_), turn_(other.turn_) {}
  MpiTask& operator=(MpiTask&&) = delete;
  ~MpiTask() {
    if (group_ == nullptr) return;
    if (std::exception_ptr cause = stream_.failure()) group_->domain().fail(std::move(cause));
  }

  void operator()() {
    std::shared_ptr<MpiGroup> const group = std::move(group_);
    perform_in_turn(*group, turn_, operation_);
  }

private:
  std::shared_ptr<MpiGroup> group_;
  HostStreamRef stream_;
  Operation operation_;
  std::uint32_t turn_;
};

/// A sum that MPI does not form as `Sum` says: of bf16 or half.
template <class Operation>
concept SumThatMpiRounds = requires {
  requires std::is_same_v<typename Operation::reduction, Sum>;
  requires !MpiAdds<typename Operation::element>;
};

/// What MPI performs as the operations say. The other sums `Ordered<MpiCommunicator>` forms, in fp32 and with one rounding.
template <class Operation>
concept MpiOperation = requires(MpiCall call, Operation const& operation) {
  check_arguments(operation, 1, 0, SourceLocation());
  call.perform(operation);
} && !SumThatMpiRounds<Operation>;

}  // namespace detail

/// One rank's handle of a group of MPI processes, on host streams. Move-only; one that was moved from is in no group: its size is 0, its
/// rank -1, and calls throw `UsageError`.
///
/// - **Where.** Collectives run as tasks of the stream they are enqueued to. A task starts one of MPI's nonblocking collectives, for
///   an all-to-all messages between every two ranks, and asks for its progress until it is done, so a stream with a worker communicates while
///   others compute. Operations of one communicator run
///   in the order of their enqueue calls, also on different streams.
/// - **Numerics.** Sums are MPI's: their order, and with it their last bits, is MPI's choice. `Ordered` around it gives the bits of the
///   threads, and sums of bf16 and half, which MPI does not have. A factor is applied to the sum.
/// - **Checks.** MPI does not compare what ranks call; `Checked` around it does.
/// - **Failure.** After a rank has thrown, aborted, dropped a collective because its stream had failed, or waited longer than the deadline,
///   its peers throw at their next operation that it has not begun, in a group without it at the latest at the one behind that, or while
///   they wait: `PeerError` with the rank and its message, `DeadlineError` or `MismatchError`. So they do when a rank has returned
///   (destroyed its handle) while they wait for it. A handle that an exception destroys counts as failed. A process that is killed cannot
///   tell anybody: that is seen by the launcher, which ends the job, or at the deadline. All groups split from one first group fail
///   together. MPI cannot take back a collective that has begun, nor end in order then: after a failure its buffers may still be written
///   to while MPI is called, and the job is to be ended, as `MpiEnvironment` does.
/// - **Ranks in errors** are those of this group; texts add the number in the first group where it is another one.
///
/// @par Communication
/// What the operations say, if MPI's algorithms move no more. One rank: nothing.
/// @par Memory
/// Some KiB a group, and what MPI takes. A reduce-scatter in place by MPI's own sums takes memory for its result while it runs, one of more than
/// 2^31 elements 64 MiB.
class MpiCommunicator {
public:
  using Device = HostDevice;

  /// Collective over `parent`: a copy of it, so that no message of this group meets one of the caller's.
  /// @throws UsageError where MPI is not initialised, or not for several threads, which every worker stream is; for MPI_COMM_NULL, an
  /// intercommunicator, or options without sense.
  /// @throws DeadlineError where not all ranks come.
  explicit MpiCommunicator(MPI_Comm parent, MpiOptions options = {}, SourceLocation where = SourceLocation::current());

  MpiCommunicator(MpiCommunicator&& other) noexcept
      : group_(std::move(other.group_)), turns_(other.turns_), exceptions_(std::uncaught_exceptions()) {}
  MpiCommunicator& operator=(MpiCommunicator&& other) noexcept {
    if (this != &other) {
      leave();
      group_ = std::move(other.group_);
      turns_ = other.turns_;
    }
    return *this;
  }
  ~MpiCommunicator() { leave(); }

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return group_ != nullptr ? group_->rank() : -1; }
  /// The number of ranks in the group.
  [[nodiscard]] int size() const noexcept { return group_ != nullptr ? group_->size() : 0; }
  /// The communicator that this group's operations use, some of them as messages: the caller's own messages do not belong on it.
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return group_ != nullptr ? group_->comm() : MPI_COMM_NULL; }

  /// Puts a collective on a stream: AllGather, AllToAll, Broadcast, Barrier, and reductions but sums of bf16 and half.
  /// @throws UsageError for wrong arguments; nothing is enqueued then.
  /// @throws what failed the group or the stream before. With a stream that is the calling thread, also what fails this collective.
  /// @par Stream order
  /// Runs behind what is on the stream, and behind what this communicator has been given before on any stream.
  template <detail::MpiOperation Operation>
  void enqueue(HostStreamRef stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    check_in_group(where);
    detail::check_arguments(operation, group_->size(), group_->own_name(), where);
    if (group_->size() == 1 || stream != HostStreamRef::calling_thread()) return enqueue_task(stream, operation, where);
    detail::perform_in_turn(*group_, turns_, operation);  // This handle owns the group meanwhile.
    ++turns_;
  }

  /// Calls body(): its operations run in order.
  template <class Body>
  void group(HostStreamRef, Body&& body) {
    std::forward<Body>(body)();
  }

  /// Collective: the ranks with the same color form a new group, ordered by key, then by rank. Blocks the calling thread until this
  /// communicator's earlier operations are done and all ranks have come.
  /// @param color which group, at least 0; every rank belongs to exactly one.
  /// @throws UsageError on every rank if any rank's color is negative; the groups stay usable.
  [[nodiscard]] MpiCommunicator split(int color, int key = 0, SourceLocation where = SourceLocation::current());

  /// Fails all groups split from the same first group. Any thread may call it, at any time; it does not block. The first cause is kept.
  /// Called by a destructor because an exception passes through, peers are told that exception instead if a second call gives it soon, as
  /// `run_mpi` does.
  void abort(std::exception_ptr cause) noexcept {
    if (group_ != nullptr) group_->domain().fail(std::move(cause), unwinding());
  }

private:
  explicit MpiCommunicator(std::shared_ptr<detail::MpiGroup> group) noexcept
      : group_(std::move(group)), exceptions_(std::uncaught_exceptions()) {}

  void check_in_group(SourceLocation where) const {
    if (group_ == nullptr) refuse_moved_from(where);
  }
  [[noreturn, gnu::noinline]] static void refuse_moved_from(SourceLocation where) {
    throw UsageError("this communicator was moved from: it is in no group", where);
  }

  template <class Operation>
  [[gnu::noinline]] void enqueue_task(HostStreamRef stream, Operation const& operation, SourceLocation where) {
    group_->throw_if_failed();
    if (group_->size() == 1) return detail::enqueue_alone<HostDevice>(stream, operation);
    stream.enqueue(detail::MpiTask<Operation>(group_, turns_, stream, operation), where);
    ++turns_;
  }

  [[nodiscard]] bool unwinding() const noexcept { return std::uncaught_exceptions() > exceptions_; }

  static void check_state(MPI_Comm parent, MpiOptions const& options, SourceLocation where);

  void leave() noexcept {
    if (group_ == nullptr) return;
    if (size() > 1 && detail::mpi_is_active()) {
      if (unwinding()) {
        try {
          throw CommunicationError("an exception is leaving the code that uses the group", group_->own_name());
        } catch (...) {
          group_->domain().fail(std::current_exception(), true);
        }
      } else {
        group_->domain().leave(group_->id(), turns_, group_->member((rank() + 1) % size()));
      }
    }
    group_ = nullptr;
  }

  std::shared_ptr<detail::MpiGroup> group_;
  std::uint32_t turns_ = 0;  ///< Operations given to streams so far.
  int exceptions_;
};

inline void MpiCommunicator::check_state(MPI_Comm parent, MpiOptions const& options, SourceLocation where) {
  if (!detail::mpi_is_active()) {
    throw UsageError("MpiCommunicator: MPI is not initialised, or ended; a zero::MpiEnvironment at the start of main does both", where);
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_MULTIPLE) {
    throw UsageError(
        "MpiCommunicator: MPI was not initialised for several threads; call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) "
        "instead of MPI_Init, or use zero::MpiEnvironment",
        where);
  }
  if (parent == MPI_COMM_NULL) throw UsageError("MpiCommunicator: MPI_COMM_NULL", where);
  int inter = 0;
  MPI_Comm_test_inter(parent, &inter);
  if (inter != 0) throw UsageError("MpiCommunicator: an intercommunicator has two groups", where);
  if (options.deadline_ms < 0) throw UsageError("MpiCommunicator: a deadline of " + std::to_string(options.deadline_ms) + " ms", where);
  if (options.largest_count < 1 || options.largest_count > MpiOptions().largest_count) {
    throw UsageError("MpiCommunicator: a largest count of " + std::to_string(options.largest_count), where);
  }
}

inline MpiCommunicator::MpiCommunicator(MPI_Comm parent, MpiOptions options, SourceLocation where)
    : exceptions_(std::uncaught_exceptions()) {
  check_state(parent, options, where);
  int rank = 0;
  int size = 0;
  detail::check_mpi(MPI_Comm_rank(parent, &rank), "MPI_Comm_rank", -1);
  detail::check_mpi(MPI_Comm_size(parent, &size), "MPI_Comm_size", rank);
  auto const copy = [&](MPI_Comm from) {
    detail::LeftToMpi<MPI_Comm> comm(MPI_COMM_NULL);
    MPI_Request request = MPI_REQUEST_NULL;
    detail::check_mpi(MPI_Comm_idup(from, comm.get(), &request), "MPI_Comm_idup", rank);
    detail::complete_mpi(request, options, rank, "the making of an MpiCommunicator");
    comm.take_back();
    detail::check_mpi(MPI_Comm_set_errhandler(*comm.get(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", rank);
    return *comm.get();
  };
  MPI_Comm const data = copy(parent);
  MPI_Comm const control = copy(data);
  std::vector<int> members;
  for (int member = 0; member < size; ++member) members.push_back(member);
  detail::end_domains();
  std::shared_ptr<detail::MpiDomain> domain(new detail::MpiDomain(control, rank, size), detail::MpiDomainDeleter{});
  group_ = std::make_shared<detail::MpiGroup>(std::move(domain), data, rank, std::move(members), 0, options);
}

inline MpiCommunicator MpiCommunicator::split(int color, int key, SourceLocation where) {
  struct Choice {
    std::int32_t color, key;
  };
  check_in_group(where);
  group_->throw_if_failed();
  detail::LeftToMpi<std::vector<Choice>> received(static_cast<std::size_t>(size()) + 1);  // This rank's choice comes last.
  std::vector<Choice>& choices = *received.get();
  std::uint32_t const turn = turns_++;
  choices.back() = {color, key};
  MPI_Comm comm = MPI_COMM_NULL;
  int refused = -1;
  group_->wait_for_turn(turn, true);
  try {
    // Without a time limit only once everybody is known to be here.
    auto const call = [] {
      detail::Fingerprint what;
      what.kind = OperationKind::split;
      return what;
    };
    MPI_Request request = MPI_REQUEST_NULL;
    detail::check_mpi(
        MPI_Iallgather(&choices.back(), sizeof(Choice), MPI_BYTE, choices.data(), sizeof(Choice), MPI_BYTE, group_->comm(), &request),
        "MPI_Iallgather", group_->own_name());
    group_->complete(&request, 1, call);
    received.take_back();
    for (int peer = size() - 1; peer >= 0; --peer) {
      if (choices[static_cast<std::size_t>(peer)].color < 0) refused = peer;
    }
    if (refused < 0) {
      detail::check_mpi(MPI_Comm_split(group_->comm(), color, key, &comm), "MPI_Comm_split", group_->own_name());
      detail::check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", group_->own_name());
    }
  } catch (...) {
    group_->domain().fail(std::current_exception());
    throw;
  }
  group_->end_turn(turn, false);
  if (refused >= 0) {
    throw UsageError("split: " + group_->name(refused).text() + " gives the color " +
                         std::to_string(choices[static_cast<std::size_t>(refused)].color) +
                         "; colors are not negative, every rank belongs to one group",
                     where, group_->own_name());
  }
  // Of this group, in the order of the new one.
  auto const order = detail::ranks_of_color(size(), color, [&](int peer) { return choices[static_cast<std::size_t>(peer)]; });
  std::vector<int> members;
  int rank = 0;
  for (int peer : order) {
    if (peer == group_->rank()) rank = static_cast<int>(members.size());
    members.push_back(group_->member(peer));
  }
  std::uint64_t const id = Hasher().add(group_->id()).add(turn).add(static_cast<std::uint64_t>(color)).value();
  return MpiCommunicator(
      std::make_shared<detail::MpiGroup>(group_->shared_domain(), comm, rank, std::move(members), id, group_->options()));
}

static_assert(check_communicator<MpiCommunicator>());

}  // namespace zero
