// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Where the threads of a group meet: what each calls and where its memory is, the barriers around a collective, and their failure.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <zero/comm/detail/failure_domain.hpp>
#include <zero/comm/detail/fingerprint.hpp>
#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/host_stream_core.hpp>

namespace zero::detail {

/// State shared by the ranks of one group.
///
/// A collective is: publish, meet (all ranks have published; all compare), move data, part (nobody reads a rank's memory any longer). A
/// rank that fails breaks the meeting, in the word that counts the barriers: once that bit is set no meeting completes, so a rank
/// that leaves one by an exception knows that no peer will touch its memory. Once a meeting has completed, nobody fails before parting, so
/// parting cannot be broken.
class Rendezvous final : public Breakable {
public:
  /// What one rank publishes, and its counters. Plain members are written before a meeting and read between meeting and parting.
  struct alignas(64) Slot {
    Fingerprint call = {};
    void const* send = nullptr;
    void* receive = nullptr;
    int color = 0;
    int key = 0;
    std::shared_ptr<Rendezvous> child;   ///< Of a split: made by the lowest rank of each color.
    FixedArray<std::byte> operands;      ///< Scratch of a reduction: room for N pointers to elements.
    std::string mismatch;                ///< This rank's own mismatch, protected by the domain's lock.
    std::atomic<std::uint32_t> met = 0;  ///< The generation this rank has arrived at last, for the watchdog.
    alignas(64) std::atomic<std::int64_t> copied_bytes = 0;
    std::atomic<std::uint32_t> turns = 0;  ///< Twice the operations done, modulo 2^32; the lowest bit says broken.
    std::atomic<std::uint32_t> last_turn = no_turn;
  };

  /// @param members the ranks of this group, as numbered in the first group of the domain.
  Rendezvous(std::shared_ptr<FailureDomain> domain, PlainArray<int> members)
      : domain_(std::move(domain)), members_(std::move(members)), slots_(members_.size()) {
    for (int rank = 0; rank < size(); ++rank) slot(rank).operands = FixedArray<std::byte>(members_.size() * sizeof(void*));
    domain_->add(*this);
  }

  Rendezvous(Rendezvous const&) = delete;
  Rendezvous& operator=(Rendezvous const&) = delete;
  ~Rendezvous() { domain_->remove(*this); }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int member(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  /// What errors call a rank.
  [[nodiscard]] RankName name(int rank) const noexcept { return {rank, member(rank)}; }
  [[nodiscard]] Slot& slot(int rank) noexcept { return slots_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::shared_ptr<FailureDomain> const& domain() const noexcept { return domain_; }

  /// Throws if the group has failed: nothing will ever complete in it again.
  void throw_if_broken(int rank) {
    if ((word_.load(std::memory_order_acquire) & broken) != 0) throw_failure(rank);
  }

  /// Waits until this rank's earlier operations are done, whichever streams they are on.
  void wait_for_turn(int rank, std::uint32_t turn) {
    std::atomic<std::uint32_t>& turns = slot(rank).turns;
    while (true) {
      std::uint32_t const seen = turns.load(std::memory_order_acquire);
      if ((seen & broken) != 0) throw_failure(rank);
      if (seen == 2 * turn) return;
      turns.wait(seen, std::memory_order_acquire);
    }
  }

  void end_turn(int rank) noexcept {
    Slot& own = slot(rank);
    std::uint32_t const done = (own.turns.fetch_add(2) + 2) / 2;
    own.turns.notify_all();
    if (own.last_turn.load() == done) leave(rank);
  }

  /// All ranks have arrived and call the same thing, or this throws.
  void meet(int rank) {
    if (!arrive(rank, true)) throw_failure(rank);
    delay_point();
    compare(rank);
  }

  /// Nobody uses this rank's memory any longer.
  void part(int rank) noexcept {
    delay_point();
    arrive(rank, false);
  }

  /// The rank will call nothing after `turns` operations: when they are done, peers that wait for it shall not wait on.
  void close(int rank, std::uint32_t turns) noexcept {
    Slot& own = slot(rank);
    std::uint32_t const last = turns & turn_mask;
    own.last_turn.store(last);
    if (own.turns.load() / 2 == last) leave(rank);
  }

  /// The rank or an operation of it has failed.
  void fail(int rank, std::exception_ptr cause, bool reason_follows = false) noexcept {
    if (cause == nullptr) {
      try {
        throw CommunicationError("the group was aborted", name(rank));
      } catch (...) {
        cause = std::current_exception();
      }
    }
    domain_->fail(member(rank), std::move(cause), reason_follows);
  }

  /// Where a collective of this rank is to go. @throws UsageError, as all ranks will, where another rank's collectives are on that stream.
  [[nodiscard]] StreamClaim claim(HostStreamRef stream, int rank, SourceLocation where) {
    StreamClaim claim(stream, domain_number_, member(rank));
    if (claim.other() != StreamClaims::none) refuse_shared_stream(rank, claim.other(), where);
    return claim;
  }

  void break_waits() noexcept override {
    word_.fetch_or(broken, std::memory_order_acq_rel);
    word_.notify_all();
    for (int rank = 0; rank < size(); ++rank) {
      slot(rank).turns.fetch_or(broken, std::memory_order_acq_rel);
      slot(rank).turns.notify_all();
    }
  }

  std::string overdue(std::int64_t now_ms, std::int64_t deadline_ms) override {
    std::uint32_t const generation = word_.load(std::memory_order_acquire);
    if (arrived_.load(std::memory_order_relaxed) == 0 || generation != watched_generation_) {
      watched_generation_ = generation;
      watched_since_ms_ = now_ms;
      return {};
    }
    if (now_ms - watched_since_ms_ <= deadline_ms || (generation & broken) != 0) return {};
    std::string here;
    std::string missing;
    bool renumbered = false;
    for (int rank = 0; rank < size(); ++rank) {
      renumbered = renumbered || member(rank) != rank;
      std::string& list = slot(rank).met.load(std::memory_order_acquire) == generation + step ? here : missing;
      list += (list.empty() ? "" : ", ") + std::to_string(member(rank));
    }
    if (here.empty() || missing.empty()) return {};
    return "a collective was not joined by all ranks within " + std::to_string(deadline_ms) + " ms: missing " + missing + "; waiting " +
           here + (renumbered ? " (ranks of the first group)" : "");  // All groups throw this text.
  }

private:
  static constexpr std::uint32_t broken = 1;
  static constexpr std::uint32_t step = 2;
  static constexpr std::uint32_t turn_mask = ~std::uint32_t{0} / 2;  // what a count of operations keeps beside the lowest bit
  static constexpr std::uint32_t no_turn = ~std::uint32_t{0};

  /// The barrier. False if it was broken, which only a breakable one can be.
  bool arrive(int rank, bool breakable) noexcept {
    std::uint32_t const before = word_.load(std::memory_order_acquire);
    if (breakable && (before & broken) != 0) return false;
    std::uint32_t const generation = before & ~broken;
    slot(rank).met.store(generation + step, std::memory_order_release);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
      arrived_.store(0, std::memory_order_relaxed);
      std::uint32_t seen = generation;
      while (!word_.compare_exchange_weak(seen, seen + step, std::memory_order_acq_rel, std::memory_order_acquire)) {
        if (breakable && (seen & broken) != 0) return false;
      }
      word_.notify_all();
      return true;
    }
    std::uint32_t seen = generation;
    auto const decided = [&] {
      seen = word_.load(std::memory_order_acquire);
      return (seen & ~broken) != generation || (breakable && (seen & broken) != 0);
    };
    if (!spin_until(decided)) {
      while (!decided()) word_.wait(seen, std::memory_order_acquire);
    }
    return (seen & ~broken) != generation;
  }

  void compare(int rank) {
    Fingerprint const& own = slot(rank).call;
    for (int peer = 0; peer < size(); ++peer) {
      if (slot(peer).call == own) continue;
      std::string const text = mismatch_in_words(name(rank), own, name(peer), slot(peer).call);
      {
        LockGuard const guard(domain_->lock());
        slot(rank).mismatch = text;
      }
      domain_->fail(member(rank), std::make_exception_ptr(MismatchError(text, name(rank))));
      throw MismatchError(text, name(rank));
    }
  }

  [[noreturn]] void refuse_shared_stream(int rank, int other, SourceLocation where) {
    RankName peer(-1, other);
    for (int r = 0; r < size(); ++r) {
      if (member(r) == other) peer = name(r);
    }
    std::string const text = "a stream with a worker serves one rank: " + name(rank).text() +
                             " enqueues a collective to a stream that holds one of " + peer.text() +
                             ", which would keep it from ever running";
    domain_->refuse(member(rank), text, where, std::make_exception_ptr(UsageError(text, where, name(rank))));
    throw UsageError(text, where, name(rank));
  }

  /// The rank is gone. Unlike a failure it concerns only the groups that the rank is in.
  void leave(int rank) noexcept {
    LockGuard const guard(domain_->lock());
    if (left_ < 0 && domain_->cause() == nullptr) left_ = rank;
    break_waits();
  }

  [[noreturn]] void throw_failure(int rank) {
    int left = -1;
    std::string mismatch;
    {
      LockGuard const guard(domain_->lock());
      left = left_;
      mismatch = slot(rank).mismatch;
    }
    if (!mismatch.empty()) throw MismatchError(mismatch, name(rank));
    if (left < 0) domain_->throw_if_failed(members_, rank);
    throw PeerError(name(left).text() + " has returned", name(rank), name(left));
  }

  std::shared_ptr<FailureDomain> domain_;
  std::uint32_t domain_number_ = static_cast<std::uint32_t>(mixed_bits(reinterpret_cast<std::uintptr_t>(domain_.get())) >> 40);
  PlainArray<int> members_;
  FixedArray<Slot> slots_;
  int left_ = -1;                                         // Protected by the domain's lock, as are the next two.
  std::uint32_t watched_generation_ = ~std::uint32_t{0};  // No generation: the first look only starts the clock.
  std::int64_t watched_since_ms_ = 0;
  alignas(64) std::atomic<int> arrived_ = 0;
  alignas(64) std::atomic<std::uint32_t> word_ = 0;
};

}  // namespace zero::detail
