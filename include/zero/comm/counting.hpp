// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// `Counting`: an adaptor that counts calls and bytes by what they are for.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>

namespace zero {

/// Where `Counting` reports to: calls and received bytes of one rank, by subject. The user owns it, one per rank; any thread may read it.
///
/// Calls are those that were accepted by the communicator; announcements move nothing and are not calls. Split groups report to the same
/// place.
class Traffic {
public:
  Traffic() = default;
  Traffic(Traffic const&) = delete;
  Traffic& operator=(Traffic const&) = delete;

  /// Collectives called for this subject.
  [[nodiscard]] std::int64_t calls(Subject subject) const noexcept { return of(subject).calls.load(std::memory_order_relaxed); }
  /// Bytes received from peers for this subject.
  [[nodiscard]] std::int64_t received_bytes(Subject subject) const noexcept { return of(subject).bytes.load(std::memory_order_relaxed); }

  /// Collectives called for anything.
  [[nodiscard]] std::int64_t calls() const noexcept {
    std::int64_t sum = 0;
    for (Counters const& counters : counters_) sum += counters.calls.load(std::memory_order_relaxed);
    return sum;
  }
  /// Bytes received for anything.
  [[nodiscard]] std::int64_t received_bytes() const noexcept {
    std::int64_t sum = 0;
    for (Counters const& counters : counters_) sum += counters.bytes.load(std::memory_order_relaxed);
    return sum;
  }
  /// Bytes received for the model's states: parameters, gradients, optimizer states.
  [[nodiscard]] std::int64_t model_bytes() const noexcept {
    return received_bytes(Subject::parameters) + received_bytes(Subject::gradients) + received_bytes(Subject::optimizer_states);
  }

  /// Starts again at zero.
  void reset() noexcept {
    for (Counters& counters : counters_) {
      counters.calls.store(0, std::memory_order_relaxed);
      counters.bytes.store(0, std::memory_order_relaxed);
    }
  }

  /// Adds one call. `Counting` does it; a loop without communicator, such as a dry run, may.
  template <class Operation>
  void add(Operation const& operation, int ranks, int rank) noexcept {
    if constexpr (!std::is_same_v<Operation, Announce>) {
      Counters& counters = counters_[index(operation.label.subject)];
      counters.calls.fetch_add(1, std::memory_order_relaxed);
      counters.bytes.fetch_add(operation.received_bytes(ranks, rank), std::memory_order_relaxed);
    }
  }

private:
  struct Counters {
    std::atomic<std::int64_t> calls = 0;
    std::atomic<std::int64_t> bytes = 0;
  };

  static std::size_t index(Subject subject) noexcept {
    auto const i = static_cast<std::int32_t>(subject);
    return i >= 0 && i < subject_count ? static_cast<std::size_t>(i) : 0;
  }
  [[nodiscard]] Counters const& of(Subject subject) const noexcept { return counters_[index(subject)]; }

  Counters counters_[subject_count];
};

/// A communicator that counts what is enqueued through it. It performs what `Inner` performs.
///
/// `Counting counting{Borrowed{communicator}, traffic};` counts for a communicator somebody else owns. Around a `Checked` it counts the
/// program's calls, inside one the checks too. (`Counting{Counting{x}}` is a copy, as for all class templates that deduce their argument.)
template <RankGroup Inner>
class Counting {
public:
  using Device = typename Inner::Device;

  /// @param inner   what is counted, kept by value.
  /// @param traffic where to, must outlive this and all groups split from it.
  Counting(Inner inner, Traffic& traffic) : inner_(std::move(inner)), traffic_(&traffic) {}

  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }

  /// Enqueues, then counts.
  template <class Operation>
    requires Performs<Inner, Operation>
  void enqueue(StreamOf<Inner> stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    detail::enqueue_at(inner_, stream, operation, where);
    traffic_->add(operation, size(), rank());
  }

  /// See `Groups`. The operations inside are enqueued to, and counted by, this communicator.
  template <class Body>
    requires Groups<Inner>
  void group(StreamOf<Inner> stream, Body&& body) {
    inner_.group(stream, std::forward<Body>(body));
  }

  /// Passed on.
  template <class Launch>
    requires WatchesLaunches<Inner>
  void watch(StreamOf<Inner> stream, Launch&& launch, SourceLocation where = SourceLocation::current()) {
    inner_.watch(stream, std::forward<Launch>(launch), where);
  }

  /// See `Splits`. The new group counts into the same `Traffic`.
  [[nodiscard]] auto split(int color, int key = 0, SourceLocation where = SourceLocation::current())
    requires Splits<Inner>
  {
    auto child = detail::split_at(inner_, color, key, where);
    return Counting<decltype(child)>(std::move(child), *traffic_);
  }

  void abort(std::exception_ptr cause) noexcept { inner_.abort(std::move(cause)); }

private:
  Inner inner_;
  Traffic* traffic_;
};

}  // namespace zero
