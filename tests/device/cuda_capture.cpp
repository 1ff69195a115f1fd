// SPDX-License-Identifier: Apache-2.0
/// @file
/// What a thread and its streams know of a capture, over the stand-in runtime.

#include <zero/device/cuda_capture.hpp>

#include <doctest/doctest.h>

#include <thread>

#include <zero/device/cuda_device.hpp>

#include "support/standin/standin_cuda.hpp"

namespace {

using zero::detail::cuda_captures_of_thread;
using zero::detail::CudaQueriesInCapture;

cudaStreamCaptureMode mode_of_thread() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  cudaStreamCaptureMode const result = mode;
  REQUIRE(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  return result;
}

}  // namespace

TEST_CASE("only a thread that captures asks events in another mode, and has its own again afterwards") {
  zero::standin::reset();
  cudaStreamCaptureMode const before = mode_of_thread();
  REQUIRE(before != cudaStreamCaptureModeRelaxed);
  auto const calls = zero::standin::calls("cudaThreadExchangeStreamCaptureMode");
  { CudaQueriesInCapture const nothing(false); }
  CHECK(zero::standin::calls("cudaThreadExchangeStreamCaptureMode") == calls);
  {
    CudaQueriesInCapture const relaxed(true);
    CHECK(mode_of_thread() == cudaStreamCaptureModeRelaxed);
  }
  CHECK(mode_of_thread() == before);
}

TEST_CASE("a capture is counted for its thread, to its end, also where it fails") {
  zero::standin::reset();
  zero::CudaStream const stream;
  CHECK(cuda_captures_of_thread == 0);
  auto const graph = zero::CudaDevice::capture(stream, stream, [] {
    CHECK(cuda_captures_of_thread == 1);
    int elsewhere = -1;
    std::thread([&] { elsewhere = cuda_captures_of_thread; }).join();
    CHECK(elsewhere == 0);
  });
  CHECK(cuda_captures_of_thread == 0);
  CHECK_THROWS_AS(static_cast<void>(zero::CudaDevice::capture(stream, stream, [] { throw zero::Error("in the capture"); })), zero::Error);
  CHECK(cuda_captures_of_thread == 0);
  stream.synchronize();
}
