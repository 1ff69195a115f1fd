// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Every call of the stand-in CUDA runtime made to fail in turn.

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdint>

#include <zero/core/error.hpp>

#include "support/standin/standin_cuda.hpp"

namespace zero::test {

/// Runs `train()` again for calls 1, 1 + stride(1), ... that fail, every second one alone and the others with all calls behind them: it throws a
/// typed error or gives the same as without a failure, and leaves nothing behind.
/// @param least  a part of 1/least of all runs at the fewest must throw
template <class Train, class Stride>
void check_failing_calls(Train const& train, std::int64_t least, Stride const& stride) {
  standin::reset();
  auto const expected = train();
  std::int64_t const calls = standin::calls();
  std::int64_t refused = 0;
  for (std::int64_t call = 1; call <= calls; call += stride(call, calls)) {
    standin::reset();
    standin::fail({.call = call, .from_then_on = call % 2 == 0});
    try {
      auto const result = train();  // not in the check, which would catch what it throws
      CHECK_MESSAGE(result == expected, call);
    } catch (DeviceError const&) {
      ++refused;
    } catch (MemoryError const&) {
      ++refused;
    }
    standin::fail({});
    cudaSetDevice(0);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    cudaThreadExchangeStreamCaptureMode(&mode);
    CHECK_MESSAGE(standin::live() == standin::Live{}, call);
  }
  CHECK(refused > calls / least);
}

}  // namespace zero::test
