// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Names for the places where one stream waits for another, so that a test can take out each of them once.

#include <cstdint>

namespace zero {

/// Which wait this is. Every wait the library enqueues carries its own id; a host stream made with `HostStreamOptions::skip_wait` ignores
/// the waits with that id, and then at least one test must fail: a wait nobody misses is either superfluous or untested.
enum class WaitId : std::uint8_t {
  none,  ///< As an argument: a wait that no test takes out. As an option: take out no wait.
  user,  ///< Waits enqueued by the caller of the library.

  gather_after_compute,           ///< A gather reads shards that were updated, and writes a buffer that was read, on the compute stream.
  use_after_gather,               ///< Weights are used after their gather.
  use_after_prefetch,             ///< The same where the gather was started before they were asked for.
  reduce_after_gradients,         ///< A reduction reads gradients that were written on the compute stream.
  scratch_after_reduce,           ///< Gradients are written to a buffer after the reduction that read it.
  write_after_discard,            ///< Gradients are written again after reductions that were under way when they were discarded.
  norm_after_reduce,              ///< The norm and the update read gradients that were reduced on another stream.
  merge_after_norm,               ///< The sums of squares are merged over the ranks after this rank's is complete.
  decide_after_merge,             ///< The decision of a step reads the merged sum.
  gather_gradients_after_update,  ///< A gathered gradient overwrites the one that the update before it read.
  update_after_gather_gradients,  ///< The update reads a gathered gradient.
  publish_after_update,           ///< Updated parameters are gathered after their update.
  use_after_publish,              ///< Parameters are used after they were gathered at the end of the step.
};

}  // namespace zero
