// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The streams a training loop works with.

#include <zero/device/device.hpp>

namespace zero {

/// The streams the library may use; it makes none of its own. Name the type, `zero::Streams<zero::HostDevice>{compute, communication}`:
/// clang 14 cannot deduce it.
///
/// @par Stream order
/// What the caller enqueues to `compute` before it calls the library is waited for, and what the library hands out is ready for what is
/// enqueued to `compute` afterwards. Collectives run on the others. The same stream for all of them means that nothing overlaps.
template <Device D>
struct Streams {
  typename D::Stream compute;        ///< Where the caller's kernels and the optimizer run.
  typename D::Stream communication;  ///< Where gathers run.
  /// Where reductions run: with the gathers, unless each of them has a communicator, as `SeparateCommunicators` says. The default is taken when this
  /// is made.
  typename D::Stream reductions = communication;

  /// True if collectives may run while the caller computes, be it gathers or reductions.
  [[nodiscard]] bool overlap() const noexcept { return !(compute == communication && compute == reductions); }
};

}  // namespace zero
