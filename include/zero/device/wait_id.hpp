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
};

}  // namespace zero
