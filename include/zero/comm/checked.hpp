// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// `Checked`: an adaptor that compares over all ranks what each is about to do, also where nothing is moved.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/fingerprint.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/host_device.hpp>

namespace zero {

/// A communicator that compares, before every operation and at every `Announce`, what the ranks are about to do, and throws a
/// `MismatchError` that names both sides on every rank if they differ. Announcements make loops comparable at every stage: one that passes
/// where a gather is only a view is known to run where it communicates.
///
/// The comparison runs inside the stream, by an all-gather of the communicator itself: the host never waits, so no missing wait is hidden.
/// For debugging: each call allocates and costs a small collective. A rank that calls nothing is no mismatch, but a matter of the deadline.
/// @par Communication
/// 72 (N - 1) bytes received per rank for each operation or announcement, labelled `Subject::control`, besides the operation's own. One
/// rank: none.
/// @par Stream order
/// The error appears where the stream's failures appear: at its next call or wait; in the call where the stream is the calling thread.
template <RankGroup Inner>
class Checked {
public:
  using Device = typename Inner::Device;
  static_assert(
      std::is_same_v<Device, HostDevice>,
      "zero: Checked compares ranks on host streams; on a GPU the comparison would need a host synchronisation, which hides missing waits");
  static_assert(GathersAll<Inner, std::uint64_t>,
                "zero: Checked compares ranks through the communicator's own enqueue for zero::AllGather<std::uint64_t>");

  /// @param inner what is checked, kept by value; `Borrowed{communicator}` for one that somebody else owns.
  explicit Checked(Inner inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }

  /// Compares, then enqueues. An announcement is only compared, unless `Inner` performs it too.
  template <class Operation>
    requires Performs<Inner, Operation> || std::is_same_v<Operation, Announce>
  void enqueue(StreamOf<Inner> stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    if (size() > 1) compare(stream, detail::fingerprint(operation), where);
    if constexpr (Performs<Inner, Operation>) detail::enqueue_at(inner_, stream, operation, where);
  }

  /// See `Groups`. The comparisons inside are enqueued like the operations, so only communicators whose groups run in order can be checked.
  template <class Body>
    requires Groups<Inner>
  void group(StreamOf<Inner> stream, Body&& body) {
    static_cast<void>(stream);
    std::forward<Body>(body)();
  }

  /// Passed on.
  template <class Launch>
    requires WatchesLaunches<Inner>
  void watch(StreamOf<Inner> stream, Launch&& launch, SourceLocation where = SourceLocation::current()) {
    inner_.watch(stream, std::forward<Launch>(launch), where);
  }

  /// See `Splits`. The new group is checked too.
  [[nodiscard]] auto split(int color, int key = 0, SourceLocation where = SourceLocation::current())
    requires Splits<Inner>
  {
    auto child = detail::split_at(inner_, color, key, where);
    return Checked<decltype(child)>(std::move(child));
  }

  void abort(std::exception_ptr cause) noexcept { inner_.abort(std::move(cause)); }

private:
  static constexpr std::int64_t words = sizeof(detail::Fingerprint) / sizeof(std::uint64_t);
  static_assert(std::has_unique_object_representations_v<detail::Fingerprint> && sizeof(detail::Fingerprint) == 72);

  void compare(StreamOf<Inner> stream, detail::Fingerprint const& own, SourceLocation where) {
    // The task that compares owns the buffer; the gather before it in the queue only points to it.
    auto all = std::make_shared<std::vector<std::uint64_t>>(static_cast<std::size_t>(words * size()));
    std::uint64_t* const place = all->data() + words * rank();
    std::memcpy(place, &own, sizeof own);
    AllGather<std::uint64_t> const gather{.send = place, .receive = all->data(), .count = words, .label = {.subject = Subject::control}};
    detail::enqueue_at(inner_, stream, gather, where);
    try {
      stream.enqueue(
          [all, rank = rank(), size = size()] {
            auto const call_of = [&](int peer) {
              detail::Fingerprint call;
              std::memcpy(static_cast<void*>(&call), all->data() + words * peer, sizeof call);
              return call;
            };
            for (int peer = 0; peer < size; ++peer) {
              if (call_of(peer) == call_of(rank)) continue;
              throw MismatchError(detail::mismatch_in_words(rank, call_of(rank), peer, call_of(peer)), rank);
            }
          },
          where);
    } catch (MismatchError const&) {
      inner_.abort(std::current_exception());
      throw;
    }
  }

  Inner inner_;
};

}  // namespace zero
