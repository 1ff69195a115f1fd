// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// How an `ncclComm_t` ends where peers may be gone.

#include <nccl.h>

#include <cstdint>

#include <zero/comm/detail/nccl_family.hpp>

namespace zero::detail {

/// Ends what is in flight. Where it may not be freed it is revoked, by those versions of NCCL that can.
inline void abort_nccl(ncclComm_t comm, bool frees) noexcept {
  if (frees) {
    static_cast<void>(ncclCommAbort(comm));  // There is no way to report a failure of this.
    return;
  }
#if NCCL_VERSION_CODE >= 22809
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess && version >= 22809) static_cast<void>(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
#endif
}

/// Waits for all ranks to end, but not after a failure, and no longer than the deadline. ncclCommDestroy alone would wait for peers of the same
/// node, which may be gone, without an end.
/// @return false if they have not.
[[nodiscard]] inline bool finalize_nccl_in_time(ncclComm_t comm, NcclFamily const& family) noexcept {
  ncclResult_t state = ncclCommFinalize(comm);
  std::int64_t const start_ms = steady_ms();
  for (Backoff backoff; state == ncclInProgress; backoff.pause()) {
    if (family.failed() || steady_ms() - start_ms > family.deadline_ms()) return false;
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return false;
  }
  return state == ncclSuccess;
}

}  // namespace zero::detail
