// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// How NCCL communicators are made and watched over.

#include <nccl.h>

#include <cstdint>
#include <string>

#include <zero/comm/nccl_error.hpp>
#include <zero/core/error.hpp>

namespace zero {

/// How an `NcclCommunicator` is made, and when it gives up.
struct NcclOptions {
  /// How long an operation may be in flight once those before it on the communicator have ended, and how long starting, splitting and
  /// finalizing may take [milliseconds]. Work that a stream does before it reaches the operation counts. At least 1.
  std::int64_t deadline_ms = 600'000;
  /// What NCCL takes: numbers of CTAs, names, policies. `blocking` is set to 0 by the library: every wait has a deadline.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  /// Gathers by copy engines, which leave the multiprocessors to computation, where NCCL can: within a node, for memory that is registered as
  /// windows (`NcclMemoryOptions::windows`). Needs NCCL 2.28.
  bool copy_engines = false;
};

/// How an `ncclComm_t` that somebody else owns is used.
struct NcclAdoptOptions {
  std::int64_t deadline_ms = 600'000;  ///< As in `NcclOptions`.
  /// A failure may end in ncclCommAbort, which frees the communicator: its owner must not destroy it if `aborted()`. Otherwise a failure
  /// revokes the communicator where this NCCL can (ncclCommRevoke), and where it cannot leaves it alone: waits outside the library may
  /// then hang.
  bool may_abort = false;
};

/// A rank's place: which of how many, and on which device.
struct NcclPlace {
  int rank = 0;
  int ranks = 1;
  int device = -1;  ///< Number of the CUDA device; -1: the one that is current for the calling thread.
};

namespace detail {

inline void check_deadline(std::int64_t deadline_ms, SourceLocation where) {
  if (deadline_ms < 1) throw UsageError("NCCL: a deadline of " + std::to_string(deadline_ms) + " ms", where);
}

/// @throws UsageError for a place that is none, or where the NCCL that runs is too old.
inline void check_place(NcclPlace const& place, NcclOptions const& options, SourceLocation where) {
  check_deadline(options.deadline_ms, where);
  if (place.ranks < 1 || place.rank < 0 || place.rank >= place.ranks) {
    throw UsageError("NCCL: rank " + std::to_string(place.rank) + " of " + std::to_string(place.ranks) + " ranks", where);
  }
  if (int const version = nccl_version(); version < 21800) {
    throw UsageError("NCCL: version " + nccl_version_text(version) + " runs here, 2.18 is needed", where);
  }
  if (int const version = nccl_version(); options.copy_engines && (version < 22800 || NCCL_VERSION_CODE < 22800)) {
    throw UsageError("NCCL: gathers by copy engines need 2.28; compiled with " + nccl_version_text(NCCL_VERSION_CODE) + ", running " +
                         nccl_version_text(version),
                     where);
  }
}

/// The caller's configuration, made non-blocking.
[[nodiscard]] inline ncclConfig_t nccl_config(NcclOptions const& options) noexcept {
  ncclConfig_t config = options.config;
  config.blocking = 0;
#if NCCL_VERSION_CODE >= 22800
  if (options.copy_engines) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
  return config;
}

}  // namespace detail

}  // namespace zero
