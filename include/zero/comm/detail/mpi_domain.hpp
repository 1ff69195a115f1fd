// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// MPI groups that fail together: notices between the ranks, beside the collectives, that say who has failed or left.

#include <zero/comm/mpi_error.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/detail/failure_domain.hpp>
#include <zero/comm/detail/mpi_patience.hpp>
#include <zero/core/error.hpp>

namespace zero::detail {

/// True once a group of this process has failed: collectives may be under way that nobody can take back, so MPI cannot be ended in order.
inline std::atomic<bool>& mpi_has_failed() noexcept {
  static std::atomic<bool> failed = false;
  return failed;
}

/// True once MPI was left with an operation that did not end: it may write to that operation's buffers whenever it is called.
inline std::atomic<bool>& mpi_may_still_write() noexcept {
  static std::atomic<bool> may = false;
  return may;
}

/// What ranks tell each other. Small enough to be sent at once by every implementation.
struct MpiNotice {
  enum Kind : std::int32_t { failure, mismatch, deadline, returned, left };

  std::int32_t kind = failure;
  std::int32_t rank = -1;            ///< Whom it is about, in the first group.
  std::uint64_t group = 0;           ///< left: which group.
  std::uint32_t turns = 0;           ///< left: after how many operations.
  std::uint32_t reason_follows = 0;  ///< failure: not 0 if the rank is about to send its exception, which could not be looked at yet.
  char text[1000] = {};
};

/// All groups split from one first group. Ranks in messages are those of the first group.
///
/// Notices travel on a communicator of their own. They are looked for where a rank waits, and where an operation may end although another
/// rank has failed, see `MpiGroup`; nobody waits for them, and who sends them does not wait either. But a communicator that ends with a
/// message on its way leaves it to the next one that MPI gives the same number: a domain without owners ends only when the notices that
/// are due have come, see `end_domains`.
class MpiDomain {
public:
  /// @param control a communicator of the first group, owned by the domain from now on.
  MpiDomain(MPI_Comm control, int rank, int size)
      : control_(control), rank_(rank), size_(size), alarm_(std::make_unique<Outgoing>(size)), reason_(std::make_unique<Outgoing>(size)) {}

  MpiDomain(MpiDomain const&) = delete;
  MpiDomain& operator=(MpiDomain const&) = delete;
  ~MpiDomain() {
    if (mpi_is_active() && !failed()) {
      MPI_Comm_free(&control_);
      return;
    }
    static_cast<void>(alarm_.release());  // MPI may still read them.
    static_cast<void>(reason_.release());
    for (auto& farewell : farewells_) static_cast<void>(farewell.release());
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// Keeps the first cause and tells the peers. Any thread, never blocks.
  /// @param reason_follows an exception is on its way out of the rank's code, and nobody can look at it before it is caught. Who catches it
  /// calls again; until then peers wait, for 0.3 s, so that they can say it.
  void fail(std::exception_ptr cause, bool reason_follows = false) noexcept {
    MpiNotice notice;
    if (is_a<MismatchError>(cause)) notice.kind = MpiNotice::mismatch;
    if (is_a<DeadlineError>(cause)) notice.kind = MpiNotice::deadline;
    notice.rank = rank_;
    notice.reason_follows = reason_follows ? 1 : 0;
    try {
      set_text(notice, cause == nullptr ? "the group was aborted" : text_of(cause));
      if (cause == nullptr) cause = std::make_exception_ptr(CommunicationError("the group was aborted", rank_));
    } catch (...) {  // No memory for the text: the failure itself still counts.
    }
    if (keep(notice, cause)) {
      tell_all(notice, *alarm_);
    } else if (!reason_follows && keep_reason(notice, std::move(cause))) {
      tell_all(notice, *reason_);
    }
  }

  /// Lets MPI send what this rank has said of its failure: to be called while the buffers of what did not end are there.
  void push_out() noexcept {
    if (!mpi_is_active()) return;
    for (MpiPatience patience(50); !all_sent() && !patience.overdue();) patience.pause();
  }

  /// A peer has left a group in which this rank waits for it.
  void fail_by_return(int peer) noexcept {
    MpiNotice notice;
    notice.kind = MpiNotice::returned;
    notice.rank = peer;
    if (keep(notice, nullptr)) tell_all(notice, *alarm_);
  }

  /// Throws the cause as a rank of one of the groups sees it, after a failure.
  /// @param members the ranks of that group.
  [[gnu::noinline]] void throw_failure(std::vector<int> const& members, int rank) {
    RankName const own(rank, members[static_cast<std::size_t>(rank)]);
    for (MpiPatience patience(300); reason_follows() && !patience.overdue(); patience.pause()) poll();
    MpiNotice notice;
    std::exception_ptr cause;
    {
      LockGuard const guard(lock_);
      notice = notice_;
      cause = cause_;
    }
    if (cause != nullptr) std::rethrow_exception(cause);
    RankName peer(-1, notice.rank);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == notice.rank) peer.number = static_cast<int>(i);
    }
    switch (notice.kind) {
      case MpiNotice::mismatch: throw MismatchError(peer.text() + " says: " + notice.text, own);
      case MpiNotice::deadline: throw DeadlineError(peer.text() + " says: " + notice.text, own);
      case MpiNotice::returned: throw PeerError(peer.text() + " has returned", own, peer);
      default: throw PeerError(peer.text() + " failed first: " + notice.text, own, peer);
    }
  }

  /// Takes in what peers have sent.
  [[gnu::noinline]] void poll() noexcept {
    while (true) {
      int found = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      if (MPI_Improbe(MPI_ANY_SOURCE, tag, control_, &found, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS || found == 0) return;
      if (!take_in(message)) return;
    }
  }

  /// This rank calls nothing more in a group after so many operations. One peer is told, its neighbour: if ranks are still waiting, some
  /// neighbour of one that has left is among them, and tells the others.
  void leave(std::uint64_t group, std::uint32_t turns, int neighbour) noexcept {
    if (failed()) return;
    try {
      auto farewell = std::make_unique<Outgoing>(1);
      farewell->notice.kind = MpiNotice::left;
      farewell->notice.rank = rank_;
      farewell->notice.group = group;
      farewell->notice.turns = turns;
      LockGuard const guard(lock_);
      std::erase_if(farewells_, [](auto const& earlier) { return earlier->sent(); });
      farewells_.push_back(std::move(farewell));
      farewells_.back()->send(neighbour, control_);
    } catch (...) {  // No memory: the deadline will tell.
    }
  }

  /// This rank is in one more group: one more neighbour will leave.
  void expect_farewell() noexcept { expected_.fetch_add(1, std::memory_order_relaxed); }

  /// True once all neighbours have left and all notices are sent. Only without owners.
  [[nodiscard]] bool ended() noexcept {
    poll();
    if (static_cast<std::int64_t>(left_.size()) < expected_.load(std::memory_order_relaxed)) return false;
    for (auto& farewell : farewells_) {
      if (!farewell->sent()) return false;
    }
    return true;
  }

  /// The rank that has left the group before its operation number `turn`, -1 if none is known to.
  [[nodiscard]] int left_before(std::uint64_t group, std::uint32_t turn) noexcept {
    LockGuard const guard(lock_);
    for (Left const& left : left_) {
      if (left.group == group && static_cast<std::int32_t>(turn - left.turns) >= 0) return left.rank;
    }
    return -1;
  }

private:
  static constexpr int tag = 1;

  struct Left {
    std::uint64_t group;
    std::uint32_t turns;
    int rank;
  };

  /// A notice on its way: it lies here until MPI has read it.
  struct Outgoing {
    explicit Outgoing(int receivers) : requests(static_cast<std::size_t>(receivers), MPI_REQUEST_NULL) {}

    void send(int receiver, MPI_Comm comm) noexcept {
      if (used < requests.size()) MPI_Isend(&notice, sizeof notice, MPI_BYTE, receiver, tag, comm, &requests[used++]);
    }
    [[nodiscard]] bool sent() noexcept {
      int done = 0;
      return MPI_Testall(static_cast<int>(used), requests.data(), &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && done != 0;
    }

    MpiNotice notice;
    std::vector<MPI_Request> requests;
    std::size_t used = 0;
  };

  [[gnu::noinline]] bool take_in(MPI_Message message) noexcept {
    MpiNotice notice;
    if (MPI_Mrecv(&notice, sizeof notice, MPI_BYTE, &message, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    notice.text[sizeof notice.text - 1] = '\0';
    if (notice.kind != MpiNotice::left) {
      if (!keep(notice, nullptr)) keep_reason(notice, nullptr);
      return true;
    }
    LockGuard const guard(lock_);
    try {
      left_.push_back({notice.group, notice.turns, notice.rank});
    } catch (...) {  // No memory: the deadline will tell.
    }
    return true;
  }

  static void set_text(MpiNotice& notice, std::string const& text) noexcept {
    std::size_t const length = text.size() < sizeof notice.text - 1 ? text.size() : sizeof notice.text - 1;
    std::memcpy(notice.text, text.data(), length);
    notice.text[length] = '\0';
  }

  /// True if it is the first cause.
  bool keep(MpiNotice const& notice, std::exception_ptr cause) noexcept {
    LockGuard const guard(lock_);
    if (failed()) return false;
    notice_ = notice;
    cause_ = std::move(cause);
    failed_.store(true, std::memory_order_release);
    mpi_has_failed().store(true, std::memory_order_release);
    return true;
  }

  /// True if it is the reason that a rank has announced. A rank's own exception is rethrown there as it was.
  bool keep_reason(MpiNotice const& notice, std::exception_ptr cause) noexcept {
    LockGuard const guard(lock_);
    if (notice_.rank != notice.rank || notice_.reason_follows == 0) return false;
    if (cause != nullptr && cause == cause_) return false;  // The announcement itself, rethrown elsewhere on this rank.
    notice_ = notice;
    cause_ = std::move(cause);
    return true;
  }

  /// True while a peer's reason is awaited; never for this rank's own.
  [[nodiscard]] bool reason_follows() noexcept {
    LockGuard const guard(lock_);
    return notice_.reason_follows != 0 && cause_ == nullptr;
  }

  [[nodiscard]] bool all_sent() noexcept {
    LockGuard const guard(sending_);
    bool const alarm = alarm_->sent();
    return reason_->sent() && alarm;
  }

  /// Once for each.
  void tell_all(MpiNotice const& notice, Outgoing& outgoing) noexcept {
    if (!mpi_is_active()) return;
    LockGuard const guard(sending_);
    outgoing.notice = notice;
    for (int k = 1; k < size_; ++k) outgoing.send((rank_ + k) % size_, control_);
    static_cast<void>(outgoing.sent());  // Lets MPI go to work.
  }

  MPI_Comm control_;
  int rank_;
  int size_;
  std::unique_ptr<Outgoing> alarm_;
  std::unique_ptr<Outgoing> reason_;
  std::atomic<bool> failed_ = false;
  SpinLock sending_;  // Protects alarm_ and reason_.
  SpinLock lock_;     // Protects what follows.
  MpiNotice notice_;
  std::exception_ptr cause_;
  std::vector<Left> left_;
  std::vector<std::unique_ptr<Outgoing>> farewells_;
  std::atomic<std::int64_t> expected_ = 0;
};

/// The domains of this process that have no owners any more and wait for their notices.
struct MpiDomainsWithoutOwners {
  SpinLock lock;
  std::vector<std::unique_ptr<MpiDomain>> domains;

  static MpiDomainsWithoutOwners& of_process() noexcept {
    alignas(MpiDomainsWithoutOwners) static std::byte storage[sizeof(MpiDomainsWithoutOwners)];
    static auto* const all = ::new (static_cast<void*>(storage)) MpiDomainsWithoutOwners;  // For threads that end late, never destroyed.
    return *all;
  }
};

/// Ends the domains that can end. @return true if none is left that could.
inline bool end_domains() noexcept {
  MpiDomainsWithoutOwners& all = MpiDomainsWithoutOwners::of_process();
  LockGuard const guard(all.lock);
  if (!mpi_is_active() || mpi_may_still_write()) return true;  // Asking for notices could let MPI write.
  bool waits = false;
  for (auto& domain : all.domains) {
    if (domain->ended()) domain = nullptr;
    else waits = waits || !domain->failed();
  }
  std::erase(all.domains, nullptr);
  return !waits;
}

/// Called when a domain's last owner is gone.
struct MpiDomainDeleter {
  void operator()(MpiDomain* domain) const noexcept {
    std::unique_ptr<MpiDomain> owned(domain);
    try {
      MpiDomainsWithoutOwners& all = MpiDomainsWithoutOwners::of_process();
      LockGuard const guard(all.lock);
      all.domains.push_back(std::move(owned));
    } catch (...) {  // No memory: it ends at once.
    }
    end_domains();
  }
};

}  // namespace zero::detail
