// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The streams of training and the waits between them.

#include <zero/device/streams.hpp>
#include <zero/device/wait_id.hpp>

namespace zero::detail {

/// The caller's streams. Where two are one and the same, work is in order anyway and neither waits. Gathers and reductions never wait for each
/// other but through the compute stream: what one of them leaves for the other is always used, or updated, there between.
template <class Device>
class TrainingStreams {
public:
  using Stream = typename Device::Stream;

  explicit TrainingStreams(Streams<Device> streams) noexcept : streams_(streams) {}

  [[nodiscard]] Stream compute() const noexcept { return streams_.compute; }
  /// Of gathers.
  [[nodiscard]] Stream communication() const noexcept { return streams_.communication; }
  [[nodiscard]] Stream reductions() const noexcept { return streams_.reductions; }
  /// Whether collectives may run at the same time as computation.
  [[nodiscard]] bool overlapped() const noexcept { return streams_.overlap(); }

  /// What is enqueued for gathers from now on runs after all that is enqueued for computation so far.
  void communication_after_compute(WaitId id) const { order(streams_.communication, streams_.compute, id); }
  /// What is enqueued for computation from now on runs after all that is enqueued for gathers so far.
  void compute_after_communication(WaitId id) const { order(streams_.compute, streams_.communication, id); }
  /// The same for reductions.
  void reductions_after_compute(WaitId id) const { order(streams_.reductions, streams_.compute, id); }
  void compute_after_reductions(WaitId id) const { order(streams_.compute, streams_.reductions, id); }

  /// What is enqueued for computation from now on runs after all collectives so far.
  void compute_after_all() const {
    compute_after_communication(WaitId::none);
    if (separate()) compute_after_reductions(WaitId::none);
  }

  /// Blocks until all streams are idle. What failed one was, or will be, thrown where it is used.
  void settle() const noexcept {
    settle(streams_.communication);
    if (separate()) settle(streams_.reductions);
    settle(streams_.compute);
  }

private:
  [[nodiscard]] bool separate() const noexcept { return !(streams_.reductions == streams_.communication); }

  static void order(Stream later, Stream earlier, WaitId id) {
    if (!(later == earlier)) Device::wait(later, Device::record(earlier), id);
  }

  static void settle(Stream stream) noexcept {
    try {
      Device::synchronize(stream);
    } catch (...) {
    }
  }

  Streams<Device> streams_;
};

}  // namespace zero::detail
