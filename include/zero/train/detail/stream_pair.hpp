// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The two streams of training and the waits between them.

#include <zero/device/streams.hpp>
#include <zero/device/wait_id.hpp>

namespace zero::detail {

/// The caller's two streams. Where they are one and the same, work is in order anyway and nothing waits.
template <class Device>
class StreamPair {
public:
  using Stream = typename Device::Stream;

  explicit StreamPair(Streams<Device> streams) noexcept : streams_(streams) {}

  [[nodiscard]] Stream compute() const noexcept { return streams_.compute; }
  [[nodiscard]] Stream communication() const noexcept { return streams_.communication; }
  /// Whether the two streams may run at the same time.
  [[nodiscard]] bool overlapped() const noexcept { return streams_.overlap(); }

  /// What is enqueued for communication from now on runs after all that is enqueued for computation so far.
  void communication_after_compute(WaitId id) const {
    if (overlapped()) Device::wait(streams_.communication, Device::record(streams_.compute), id);
  }
  /// What is enqueued for computation from now on runs after all that is enqueued for communication so far.
  void compute_after_communication(WaitId id) const {
    if (overlapped()) Device::wait(streams_.compute, Device::record(streams_.communication), id);
  }

private:
  Streams<Device> streams_;
};

}  // namespace zero::detail
