// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Internals of cuda_stream_core.hpp: what streams know of a capture that they are in.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include <zero/device/cuda_call.hpp>

namespace zero::detail {

class CudaStreamCore;

/// How many captures this thread is in. It must not wait for the device, nor ask events as usual, not those of other streams either.
inline thread_local int cuda_captures_of_thread = 0;

/// A capture under way: the streams whose work goes into one graph. Used by the thread that captures.
struct CudaCapture {
  std::vector<CudaStreamCore*> streams;  // the one it began on first
};

/// A ticket of a point in a graph: this bit, the number of the capture among those of the stream, the number of the point. Outside of that
/// capture it stands for nothing.
inline constexpr std::uint64_t captured_ticket = std::uint64_t{1} << 63;

/// Lets a thread that captures ask events from outside of the capture, which CUDA would take for a mistake.
class CudaQueriesInCapture {
public:
  explicit CudaQueriesInCapture(bool capturing) noexcept : exchanged_(capturing && exchange()) {}
  CudaQueriesInCapture(CudaQueriesInCapture const&) = delete;
  CudaQueriesInCapture& operator=(CudaQueriesInCapture const&) = delete;
  ~CudaQueriesInCapture() {
    if (exchanged_) exchange();
  }

private:
  bool exchange() noexcept {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) return true;
    forget_cuda_error();
    return false;
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // before exchanged_, which uses it
  bool exchanged_;
};

/// What CUDA says of a point that was recorded.
enum class CudaPoint { complete, pending, failed };

/// Asks for an event. What CUDA refuses because of a capture says nothing of the event.
/// @param error  set where the point has failed: the device's work did.
[[nodiscard]] inline CudaPoint ask_cuda_event(cudaEvent_t event, bool capturing, cudaError_t& error) noexcept {
  CudaQueriesInCapture const queries(capturing);
  error = cudaEventQuery(event);
  if (error == cudaSuccess) return CudaPoint::complete;
  forget_cuda_error();
  bool const refused = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
  return error == cudaErrorNotReady || refused ? CudaPoint::pending : CudaPoint::failed;
}

}  // namespace zero::detail
