// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// CUDA graphs: the owner of one, and the capture of what is enqueued to two streams.

#include <cuda_runtime_api.h>

#include <utility>

#include <zero/core/error.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_stream.hpp>
#include <zero/device/cuda_stream_core.hpp>

namespace zero {

/// Owns a CUDA graph that can be launched. A default one is empty.
class CudaGraph {
public:
  constexpr CudaGraph() noexcept = default;
  CudaGraph(CudaGraph&& other) noexcept : native_(other.release()) {}
  CudaGraph& operator=(CudaGraph&& other) noexcept {
    if (this != &other) {
      end();
      native_ = other.release();
    }
    return *this;
  }
  ~CudaGraph() { end(); }

  /// Takes over an instantiated graph.
  [[nodiscard]] static CudaGraph adopt(cudaGraphExec_t native) noexcept { return CudaGraph(native); }
  /// Gives it away; this one is empty then.
  [[nodiscard]] cudaGraphExec_t release() noexcept { return std::exchange(native_, nullptr); }

  /// The graph for calls of CUDA's own; null where it is empty.
  [[nodiscard]] cudaGraphExec_t native() const noexcept { return native_; }

private:
  explicit CudaGraph(cudaGraphExec_t native) noexcept : native_(native) {}

  void end() noexcept {
    if (native_ != nullptr && cudaGraphExecDestroy(native_) != cudaSuccess) detail::forget_cuda_error();
  }

  cudaGraphExec_t native_ = nullptr;
};

namespace detail {

/// A capture of two streams from here to `end`, or to the end of the scope, which throws it away.
class CudaCaptureScope {
public:
  /// @throws UsageError where one is captured already; DeviceError
  CudaCaptureScope(CudaStreamRef origin, CudaStreamRef side, SourceLocation where) : origin_(origin), side_(side) {
    side.core_->throw_if_failed();
    for (CudaStreamRef stream : {origin, side}) {
      if (stream.natively_capturing()) throw UsageError("the stream is being captured already", where);
    }
    if (!alone()) origin.wait(side.record(), where);
    origin.core_->begin_capture(capture_, where);
    ++cuda_captures_of_thread;
    origin.core_->is_before_capture();
    try {
      if (!alone()) side.wait(origin.record(), where);
      else if (side.core_ != origin.core_) side.core_->share_capture(capture_, where);
      side.core_->is_before_capture();
    } catch (...) {
      give_up();
      throw;
    }
  }
  CudaCaptureScope(CudaCaptureScope const&) = delete;
  CudaCaptureScope& operator=(CudaCaptureScope const&) = delete;
  ~CudaCaptureScope() { give_up(); }

  /// The graph of what was captured.
  /// @throws DeviceError where CUDA refuses it, for instance because something in the capture was not allowed.
  [[nodiscard]] CudaGraph end(SourceLocation where) {
    if (!alone()) origin_.wait(side_.record(), where);
    cudaGraph_t captured = nullptr;
    check_cuda("cudaStreamEndCapture", end_native(&captured), where);
    cudaGraphExec_t native = nullptr;
    cudaError_t const error = cudaGraphInstantiateWithFlags(&native, captured, 0);
    if (cudaGraphDestroy(captured) != cudaSuccess) forget_cuda_error();
    check_cuda("cudaGraphInstantiate", error, where);
    return CudaGraph::adopt(native);
  }

private:
  [[nodiscard]] bool alone() const noexcept { return origin_ == side_; }

  cudaError_t end_native(cudaGraph_t* captured) noexcept {
    --cuda_captures_of_thread;
    for (CudaStreamCore* stream : capture_.streams) stream->leave_capture();
    capture_.streams.clear();
    return cudaStreamEndCapture(origin_.native(), captured);
  }

  void give_up() noexcept {
    if (capture_.streams.empty()) return;
    cudaGraph_t captured = nullptr;
    if (end_native(&captured) != cudaSuccess) forget_cuda_error();
    if (captured != nullptr && cudaGraphDestroy(captured) != cudaSuccess) forget_cuda_error();
  }

  CudaStreamRef origin_;
  CudaStreamRef side_;
  CudaCapture capture_;
};

}  // namespace detail

}  // namespace zero
