// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a test asks of the stand-in CUDA runtime (standin_cuda.cpp): the functions of cuda_runtime_api.h over host memory and threads, linked
/// instead of libcudart. It is no GPU and no CUDA; it lets the CUDA code of the library run, and fail, without either.
///
/// As adversarial as CUDA may be: every stream is a thread that is delayed at random; device memory holds garbage at first; a copy from
/// pageable memory reads it during the call, one to it returns when it is done; events and streams of different devices, and launches to a
/// stream of another device than the current one, are refused.
///
/// Streams can be captured in graphs. While one is, calls that wait, ask, allocate or free are refused as CUDA refuses them, and what CUDA
/// calls an invalidation ends the capture. A graph is launched as one task of a stream: its nodes run one at a time, with a seed in a random
/// order of those that their dependencies allow.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace zero::standin {

/// How the stand-in behaves.
struct Options {
  int devices = 2;                  ///< How many devices there are.
  int driver_version = 13000;       ///< 0: there is no driver.
  bool pageable_access = false;     ///< Whether devices read pageable memory of the host.
  std::uint64_t delay_seed = 0;     ///< Other than 0: streams are delayed at random.
  std::int32_t max_delay_us = 200;  ///< The longest such delay [microseconds].
};

/// Starts afresh: the options hold for what is made from now on, no call fails, the count of calls is 0. To be called while nothing is under
/// way.
void reset(Options const& options = {});

/// Which call fails, and how.
struct Failure {
  std::int64_t call = 0;                       ///< Counted from 1 since `reset`; 0: none does.
  std::string function = {};                   ///< Counts only calls of this function; empty: of all.
  cudaError_t error = cudaErrorLaunchFailure;  ///< What the call returns; it has no other effect.
  bool from_then_on = false;                   ///< All such calls after it fail too, as after an error of a kernel.
  int device = -1;                             ///< Counts only calls of threads on which this device is current; -1: of all.
};

/// Lets a call fail. Calls that CUDA defines not to fail (error names and texts, cudaGetLastError) are neither counted nor made to fail, nor are
/// those that give something back (cudaFree, cudaStreamDestroy and their like: they are counted, but do their work even where they fail).
void fail(Failure const& failure);

/// How many calls that can fail were made since `reset`.
[[nodiscard]] std::int64_t calls();
/// The same, of one function.
[[nodiscard]] std::int64_t calls(std::string const& function);
/// The same, of every function that was called, by threads on which this device was current.
[[nodiscard]] std::map<std::string, std::int64_t> calls_of(int device);

/// What was made and not given back.
struct Live {
  std::int64_t streams = 0;
  std::int64_t events = 0;
  std::int64_t blocks = 0;  ///< of any kind of memory
  std::int64_t graphs = 0;  ///< instantiated or not
  friend bool operator==(Live const&, Live const&) = default;
};
[[nodiscard]] Live live();

/// Runs a task on a stream in order, as a kernel: for the launchers of standin_kernels.hpp.
[[nodiscard]] cudaError_t launch(cudaStream_t stream, std::function<void()> task);

}  // namespace zero::standin
