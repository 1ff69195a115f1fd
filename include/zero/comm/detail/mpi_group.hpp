// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// One rank's side of a group of MPI processes: the order of its operations, and waiting for them without hanging.

#include <zero/comm/mpi_error.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/detail/fingerprint.hpp>
#include <zero/comm/detail/mpi_domain.hpp>
#include <zero/comm/detail/mpi_patience.hpp>
#include <zero/core/error.hpp>
#include <zero/device/host_stream_core.hpp>

namespace zero {

/// How an `MpiCommunicator` works.
struct MpiOptions {
  std::int64_t deadline_ms =
      600'000;  ///< How long one of MPI's may wait for the peers [milliseconds]; 0: for ever. Large operations are several.
  std::int64_t largest_count =
      2'147'483'647;  ///< What MPI is given at once at most, for all ranks of a collective [bytes; elements of a sum]. For tests.
};

namespace detail {

/// Something that MPI writes to. It is not destroyed until it is taken back: after a failure MPI may still write.
template <class T>
class LeftToMpi {
public:
  template <class... Arguments>
  explicit LeftToMpi(Arguments&&... arguments) : value_(std::make_unique<T>(std::forward<Arguments>(arguments)...)) {}
  LeftToMpi(LeftToMpi const&) = delete;
  LeftToMpi& operator=(LeftToMpi const&) = delete;
  ~LeftToMpi() {
    if (!taken_back_) static_cast<void>(value_.release());
  }

  [[nodiscard]] T* get() noexcept { return value_.get(); }
  void take_back() noexcept { taken_back_ = true; }

private:
  std::unique_ptr<T> value_;
  bool taken_back_ = false;
};

/// Waits for a request where there is no group yet that could fail.
/// @throws DeadlineError `what` was not done in time; the request is then left to MPI.
inline void complete_mpi(MPI_Request request, MpiOptions const& options, RankName rank, char const* what) {
  MpiPatience patience(options.deadline_ms);
  for (int done = 0;;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", rank);
    if (done != 0) return;
    if (!patience.pause() || !patience.overdue()) continue;
    mpi_has_failed() = true;
    throw DeadlineError(std::string(what) + " was not joined by all ranks within " + std::to_string(options.deadline_ms) + " ms", rank);
  }
}

/// A rank in a group. Handles and queued tasks own it together.
class MpiGroup {
public:
  /// @param comm    owned by the group from now on.
  /// @param members the ranks of this group, as numbered in the first group of the domain.
  MpiGroup(std::shared_ptr<MpiDomain> domain, MPI_Comm comm, int rank, std::vector<int> members, std::uint64_t id,
           MpiOptions const& options)
      : domain_(std::move(domain)),
        comm_(comm),
        own_name_(rank, members[static_cast<std::size_t>(rank)]),
        size_(static_cast<int>(members.size())),
        apart_(size_ < domain_->size()),
        members_(std::move(members)),
        id_(id),
        options_(options) {
    if (size() > 1) domain_->expect_farewell();
  }

  MpiGroup(MpiGroup const&) = delete;
  MpiGroup& operator=(MpiGroup const&) = delete;
  ~MpiGroup() {
    // A failed group may have an operation under way that MPI cannot give up.
    if (mpi_is_active() && !domain_->failed()) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] int rank() const noexcept { return own_name_.number; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int member(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] RankName name(int rank) const noexcept { return {rank, member(rank)}; }
  [[nodiscard]] RankName own_name() const noexcept { return own_name_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] MpiOptions const& options() const noexcept { return options_; }
  [[nodiscard]] MpiDomain& domain() noexcept { return *domain_; }
  [[nodiscard]] std::shared_ptr<MpiDomain> const& shared_domain() const noexcept { return domain_; }
  void throw_if_failed() {
    if (domain_->failed()) domain_->throw_failure(members_, rank());
  }

  /// Waits until this rank's earlier operations are done, whichever streams they are on.
  /// @param look  for what peers have told. Not needed where an operation cannot end before all ranks of the group have begun it: one that has
  /// failed does not begin it, so this rank comes to wait, and who waits looks.
  void wait_for_turn(std::uint32_t turn, bool look) {
    if (turn_.load(std::memory_order_acquire) != turn) wait_for_earlier(turn);
    if (look) domain_->poll();
    throw_if_failed();
    delay_point();
  }
  /// Only who has the turn calls it. In a group that is not the whole domain nobody waits for those who are not in it. It looks for what they
  /// have told here, not before an operation, where MPI would take in what peers have sent for it: libraries then receive first, and send
  /// what the peers wait for afterwards.
  /// @param look  as for `wait_for_turn`: once more, because MPI may find what has come only when it is asked again.
  void end_turn(std::uint32_t turn, bool look) {
    if (look || apart_) domain_->poll();
    turn_.store(turn + 1, std::memory_order_release);
    if (look) throw_if_failed();
  }

  /// Waits for an operation that has been started.
  /// @param requests  what MPI has given for it, `count` of them.
  /// @param call      says what it is: returns a `Fingerprint`.
  /// @throws PeerError, MismatchError, DeadlineError what kept it from ending.
  template <class Call>
  void complete(MPI_Request* requests, int count, Call const& call) {
    Started started{requests, requests + count};
    if (!test(started)) complete_later(started, call());
    delay_point();
  }

private:
  /// What is not known to be done yet.
  struct Started {
    MPI_Request* begin;
    MPI_Request* end;
  };

  /// One by one: from MPI_Testall it would take statuses to learn what has failed.
  bool test(Started& started) {
    for (; started.begin != started.end; ++started.begin) {
      int done = 0;
      int const code = MPI_Test(started.begin, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) fail_test(code);
      if (done == 0) return false;
    }
    return true;
  }

  [[noreturn, gnu::noinline]] void fail_test(int code) const {
    mpi_may_still_write() = true;  // For the other requests.
    throw_mpi_error(code, "MPI_Test", own_name());
  }

  [[gnu::noinline]] void wait_for_earlier(std::uint32_t turn) {
    MpiPatience patience(0);  // Each of the earlier operations has its own deadline.
    while (turn_.load(std::memory_order_acquire) != turn) {
      if (patience.pause()) domain_->poll();
      throw_if_failed();
    }
  }

  [[gnu::noinline]] void complete_later(Started& started, Fingerprint const& call) {
    std::uint32_t const turn = turn_.load(std::memory_order_relaxed);
    MpiPatience patience(options_.deadline_ms);
    while (!test(started)) {
      if (!patience.pause()) continue;
      domain_->poll();
      int const left = domain_->left_before(id_, turn);
      if (left >= 0) domain_->fail_by_return(left);
      if (domain_->failed()) {
        if (completes_soon(started)) return;
        mpi_may_still_write() = true;
        throw_if_failed();
      }
      if (patience.overdue()) {
        mpi_may_still_write() = true;
        throw DeadlineError(in_words(call) + " was not joined by all ranks within " + std::to_string(options_.deadline_ms) +
                                " ms; MPI does not tell who is missing",
                            own_name());
      }
    }
  }

  /// After a failure. What peers had sent before it shall arrive while the buffers are there: MPI cannot take a collective back.
  bool completes_soon(Started& started) {
    MpiPatience patience(20);
    while (!test(started)) {
      patience.pause();
      if (patience.overdue()) return false;
    }
    return true;
  }

  std::shared_ptr<MpiDomain> domain_;
  MPI_Comm comm_;
  RankName own_name_;
  int size_;
  bool apart_;  ///< There are ranks of the domain that are not in this group.
  std::vector<int> members_;
  std::uint64_t id_;
  MpiOptions options_;
  std::atomic<std::uint32_t> turn_ = 0;  ///< Operations done.
};

}  // namespace detail

}  // namespace zero
