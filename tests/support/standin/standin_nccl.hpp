// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a test asks of the stand-in libnccl (standin_nccl.cpp): the functions of nccl.h over host memory and threads of one process, linked
/// instead of libnccl, over the stand-in CUDA runtime. It is no NCCL; it lets the library's NCCL code run, and fail, without a GPU.
///
/// As adversarial as NCCL may be: a non-blocking communicator has done nothing of a call before it was asked often enough; a call before that
/// is refused; operations of one communicator wait for each other over all streams; ranks that call different things hang; an abort wakes only
/// its own rank; two ranks on one device are refused; a communicator that was freed and is used ends the program.

#include <nccl.h>

#include <cstdint>
#include <map>
#include <string>

namespace zero::standin {

/// How the stand-in libnccl behaves.
struct NcclStandinOptions {
  int version = NCCL_VERSION_CODE;  ///< What ncclGetVersion says.
  int most_polls = 2;               ///< A non-blocking call is done after at most so many polls say that it is not.
  bool null_windows = false;        ///< Registering a window succeeds and gives none.
};

/// Starts afresh: the options hold, no call fails, counts are 0. To be called while nothing is under way.
void reset_nccl(NcclStandinOptions const& options = {});

/// Says which rank the calling thread is, for failures and counts; -1 at first.
void set_nccl_rank(int rank);

/// Which call fails, and how.
struct NcclFailure {
  std::string function;                   ///< The function's name.
  int rank = -1;                          ///< Only calls of threads with this rank; -1: of all.
  std::int64_t call = 0;                  ///< Counted from 1 among those; 0: none does.
  ncclResult_t result = ncclSystemError;  ///< What it returns.
  bool later = false;                     ///< It succeeds, its operation hangs, and the communicator reports the result when asked.
};
/// What gives something back (ncclCommDestroy, ncclCommAbort, ncclMemFree, ncclRedOpDestroy, ncclCommWindowDeregister) does so even where it fails.
void fail_nccl(NcclFailure const& failure);

/// How often a function was called since the reset.
[[nodiscard]] std::int64_t nccl_calls(std::string const& function, int rank = -1);
/// The same, of every function that was called.
[[nodiscard]] std::map<std::string, std::int64_t> nccl_calls_of(int rank);
/// The CTA policy with which a communicator was last made by an id; NCCL_CONFIG_UNDEF_INT: none was asked for.
[[nodiscard]] int nccl_cta_policy();
/// How often any function was called.
[[nodiscard]] std::int64_t nccl_calls();

/// What was made and not given back.
struct NcclLive {
  std::int64_t communicators = 0;
  std::int64_t reductions = 0;
  std::int64_t blocks = 0;
  std::int64_t windows = 0;
  friend bool operator==(NcclLive const&, NcclLive const&) = default;
};
[[nodiscard]] NcclLive live_nccl();

}  // namespace zero::standin
