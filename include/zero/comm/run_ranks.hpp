// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Starts the ranks of a group of threads, watches over them, and passes on what fails.

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <zero/comm/detail/failure_domain.hpp>
#include <zero/comm/detail/rendezvous.hpp>
#include <zero/comm/threads.hpp>
#include <zero/core/error.hpp>

namespace zero {

/// How `run_ranks` watches over its ranks.
struct RunOptions {
  std::int64_t deadline_ms = 600'000;  ///< How long a rank may wait in one collective for its peers [milliseconds]; 0: for ever.
};

namespace detail {

/// The ranks of one run.
struct RankLauncher {
  explicit RankLauncher(int ranks) : domain(std::make_shared<FailureDomain>()), failures(static_cast<std::size_t>(ranks)) {
    PlainArray<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    group = std::make_shared<Rendezvous>(domain, std::move(members));
  }

  /// The thread of one rank.
  template <class Body>
  void run(int rank, Body const& body) noexcept {
    {
      ThreadCommunicator communicator(group, rank);
      std::exception_ptr& failure = failures[static_cast<std::size_t>(rank)];
      try {
        body(communicator);
      } catch (...) {
        failure = std::current_exception();
      }
      domain->ended(rank, failure);
    }
    running.fetch_sub(1, std::memory_order_release);
  }

  /// Looks for ranks that wait too long until all have ended. Sleeps a sixteenth of what has passed, so that a run ends late by no more.
  void watch(std::int64_t deadline_ms) noexcept {
    using std::chrono::microseconds;
    auto const start = std::chrono::steady_clock::now();
    while (running.load(std::memory_order_acquire) > 0) {
      auto const passed = std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - start).count();
      domain->look_for_late_reason(passed / 1000);
      try {
        if (deadline_ms > 0) domain->look_for_overdue(passed / 1000, deadline_ms);
      } catch (...) {  // No memory for the text: the next look tries again, and the threads are joined.
      }
      std::int64_t const longest = deadline_ms > 0 && deadline_ms < 200 ? deadline_ms * 1000 / 4 : 50'000;
      std::int64_t const pause = passed / 16;
      std::this_thread::sleep_for(microseconds(pause < 20 ? 20 : pause > longest ? longest : pause));
    }
  }

  /// What to pass on: the first cause; where that is only a rank's report about a peer, what that peer threw itself.
  [[nodiscard]] std::exception_ptr first_failure() const {
    FailureDomain::Cause const* const cause = domain->cause();
    if (cause == nullptr) return nullptr;
    std::exception_ptr failure = cause->exception;
    int rank = cause->rank;
    for (std::size_t hops = 0; hops <= failures.size(); ++hops) {
      // A handle or a dropped collective may have reported a rank before what the rank threw was known.
      if (rank >= 0 && failures[static_cast<std::size_t>(rank)] != nullptr) failure = failures[static_cast<std::size_t>(rank)];
      int const peer = peer_of(failure);
      // A peer beyond the group: the error is of another group, which the body ran.
      if (peer < 0 || static_cast<std::size_t>(peer) >= failures.size() || peer == rank ||
          failures[static_cast<std::size_t>(peer)] == nullptr)
        return failure;
      rank = peer;
    }
    return failure;
  }

  static int peer_of(std::exception_ptr const& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (PeerError const& error) {
      return error.peer_in_first_group();
    } catch (...) {
      return -1;
    }
  }

  std::shared_ptr<FailureDomain> domain;
  std::shared_ptr<Rendezvous> group;
  std::vector<std::exception_ptr> failures;
  std::atomic<int> running = 0;
};

}  // namespace detail

/// Runs `body(communicator)` on `ranks` threads, one a rank, and returns when all have ended. The calling thread watches over them.
///
/// @param ranks  At least 1; more than there are processors is fine. Calls may be nested.
/// @param body   Called at the same time by all ranks, each with its own `ThreadCommunicator&`, which lives until all have ended.
/// @throws the first exception, in time, that left a rank's body, after all threads have been joined. The other ranks got a `PeerError`.
/// @throws DeadlineError naming who is missing, where a rank waited for its peers in one collective for longer than the deadline: the
/// waiting ranks get it, and it is passed on if none of them threw something else before.
/// @throws UsageError for fewer than one rank.
template <class Body>
  requires std::invocable<Body const&, ThreadCommunicator&>
void run_ranks(int ranks, Body const& body, RunOptions options = {}, SourceLocation where = SourceLocation::current()) {
  if (ranks < 1) throw UsageError("run_ranks: " + std::to_string(ranks) + " ranks", where);
  if (options.deadline_ms < 0) throw UsageError("run_ranks: a deadline of " + std::to_string(options.deadline_ms) + " ms", where);
  detail::RankLauncher launcher(ranks);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  std::exception_ptr not_started;
  for (int rank = 0; rank < ranks; ++rank) {
    launcher.running.fetch_add(1, std::memory_order_relaxed);
    try {
      threads.emplace_back([&launcher, &body, rank] { launcher.run(rank, body); });
    } catch (std::exception const& error) {
      launcher.running.fetch_sub(1, std::memory_order_relaxed);
      not_started = std::make_exception_ptr(Error(std::string("run_ranks: cannot start the thread of a rank: ") + error.what(), rank));
      launcher.domain->fail(rank, not_started);
      break;
    }
  }
  launcher.watch(options.deadline_ms);
  for (std::thread& thread : threads) thread.join();
  if (not_started != nullptr) std::rethrow_exception(not_started);
  if (std::exception_ptr const failure = launcher.first_failure()) std::rethrow_exception(failure);
}

}  // namespace zero
