// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Calls of NCCL that fail, as typed errors, and which NCCL this is: the one compiled against and the one that runs.

#include <nccl.h>

#include <string>

#include <zero/core/error.hpp>

#if NCCL_VERSION_CODE < 21800
#error "zero: the NCCL communicator needs NCCL 2.18 or newer (ncclCommSplit)"
#endif

namespace zero {

/// A call of NCCL failed, at once or while its operation was under way. The text holds the call, what NCCL says about the result and about
/// its last error.
class NcclError : public CommunicationError {
public:
  NcclError(char const* call, ncclResult_t result, std::string const& text, RankName rank)
      : CommunicationError(text, rank), call_(call), result_(result) {}

  /// The function that reported it, a literal.
  [[nodiscard]] char const* call() const noexcept { return call_; }
  /// What it returned.
  [[nodiscard]] ncclResult_t result() const noexcept { return result_; }

private:
  char const* call_;
  ncclResult_t result_;
};

namespace detail {

/// "22809" as "2.28.9".
[[nodiscard]] inline std::string nccl_version_text(int code) {
  return std::to_string(code / 10'000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

/// The typed error of a call that failed.
[[nodiscard]] inline NcclError nccl_error(char const* call, ncclResult_t result, ncclComm_t comm, RankName rank) {
  std::string text = std::string(call) + " failed: " + ncclGetErrorString(result) + " (" + std::to_string(static_cast<int>(result)) + ")";
  char const* const last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += "; NCCL's last error: " + std::string(last);
  return {call, result, text, rank};
}

/// @throws NcclError where a call failed.
inline void check_nccl(char const* call, ncclResult_t result, RankName rank = {}) {
  if (result != ncclSuccess) throw nccl_error(call, result, nullptr, rank);
}

}  // namespace detail

/// The version of the NCCL that runs, as NCCL_VERSION_CODE writes it: 22809 for 2.28.9.
/// @throws NcclError
[[nodiscard]] inline int nccl_version() {
  int version = 0;
  detail::check_nccl("ncclGetVersion", ncclGetVersion(&version));
  return version;
}

}  // namespace zero
