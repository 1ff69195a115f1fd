// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// CUDA graphs: the owner of one, and the capture of what is enqueued to some streams.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
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

/// A capture of streams from here to `end`, or to the end of the scope, which throws it away.
class CudaCaptureScope {
public:
  /// @param sides  must stay until the end of the scope
  /// @throws UsageError where one is captured already; DeviceError
  CudaCaptureScope(CudaStreamRef origin, std::span<CudaStreamRef const> sides, SourceLocation where) : origin_(origin), sides_(sides) {
    for (CudaStreamRef side : sides) side.core_->throw_if_failed();
    check_not_captured(origin, where);
    for_others([&](CudaStreamRef side) { check_not_captured(side, where); });
    for_others([&](CudaStreamRef side) { origin.wait(side.record(), where); });
    origin.core_->begin_capture(capture_, where);
    ++cuda_captures_of_thread;
    origin.core_->is_before_capture();
    try {
      for_others([&](CudaStreamRef side) { side.wait(origin.record(), where); });
      for (CudaStreamRef side : sides) {
        // Else another view of a stream that takes part.
        if (!side.core_->capturing()) side.core_->share_capture(capture_, where);
        side.core_->is_before_capture();
      }
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
    for_others([&](CudaStreamRef side) { origin_.wait(side.record(), where); });
    cudaGraph_t captured = nullptr;
    check_cuda("cudaStreamEndCapture", end_native(&captured), where);
    cudaGraphExec_t native = nullptr;
    cudaError_t const error = cudaGraphInstantiateWithFlags(&native, captured, 0);
    if (cudaGraphDestroy(captured) != cudaSuccess) forget_cuda_error();
    check_cuda("cudaGraphInstantiate", error, where);
    return CudaGraph::adopt(native);
  }

private:
  static void check_not_captured(CudaStreamRef stream, SourceLocation where) {
    if (stream.natively_capturing()) throw UsageError("the stream is being captured already", where);
  }

  /// Calls f(side) once for each stream beside the origin.
  template <class F>
  void for_others(F const& f) const {
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      bool known = sides_[i] == origin_;
      for (std::size_t j = 0; j < i; ++j) known = known || sides_[i] == sides_[j];
      if (!known) f(sides_[i]);
    }
  }

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
  std::span<CudaStreamRef const> sides_;
  CudaCapture capture_;
};

}  // namespace detail

}  // namespace zero
