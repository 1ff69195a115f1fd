// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What takes the place of zero/device/cuda_kernels.cuh over the stand-in CUDA runtime: functors run as tasks of a stand-in stream. A program
/// includes one or the other.

#include <cstdint>

#include <zero/device/cuda_device.hpp>

#include "support/standin/standin_cuda.hpp"

namespace zero::detail {

template <class F>
[[nodiscard]] cudaError_t launch_for_each(CudaLaunch launch, std::int64_t n, F const& f) {
  return standin::launch(launch.stream, [n, f] {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  });
}

template <class F>
[[nodiscard]] cudaError_t launch_accumulate(CudaLaunch launch, std::int64_t n, F const& f) {
  return launch_for_each(launch, n, f);
}

template <class F>
[[nodiscard]] cudaError_t launch_run(CudaLaunch launch, F const& f) {
  return standin::launch(launch.stream, [f] { f(); });
}

template <class T>
[[nodiscard]] cudaError_t launch_fill(CudaLaunch launch, T* to, std::int64_t n, T const& value) {
  return standin::launch(launch.stream, [to, n, value] {
    for (std::int64_t i = 0; i < n; ++i) to[i] = value;
  });
}

}  // namespace zero::detail
