// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The kernels of `CudaDevice`: what a translation unit compiled by nvcc adds to zero/device/cuda_device.hpp.
///
/// Nothing else declares the functions that `CudaDevice` looks for, so a program cannot have two meanings of one call: without this header
/// the call does not compile. That is why it brings the kernels for the functors of training too.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_launch.cuh>
#include <zero/train/cuda_optimizer_step.cuh>
#include <zero/train/cuda_square_sum.cuh>

namespace zero::detail {

template <class F>
__global__ void __launch_bounds__(cuda_block_threads) for_each_kernel(std::int64_t n, F f) {
  if (std::int64_t const i = cuda_thread_index(); i < n) f(i);
}

template <class F>
__global__ void __launch_bounds__(1) accumulate_kernel(std::int64_t n, F f) {
  for (std::int64_t i = 0; i < n; ++i) f(i);
}

template <class F>
__global__ void __launch_bounds__(1) run_kernel(F f) {
  f();
}

/// One thread for each index.
template <class F>
[[nodiscard]] cudaError_t launch_for_each(CudaLaunch launch, std::int64_t n, F const& f) {
  return launch_threads(launch, n, for_each_kernel<F>, n, f);
}

/// One thread for all: nothing is known of what a functor adds to. See cuda_square_sum.cuh for the one that matters.
template <class F>
[[nodiscard]] cudaError_t launch_accumulate(CudaLaunch launch, std::int64_t n, F const& f) {
  return launch_kernel(launch, 1, 1, accumulate_kernel<F>, n, f);
}

template <class F>
[[nodiscard]] cudaError_t launch_run(CudaLaunch launch, F const& f) {
  return launch_kernel(launch, 1, 1, run_kernel<F>, f);
}

template <class T>
struct FillWith {
  T* to;
  T value;
  __device__ void operator()(std::int64_t i) const { to[i] = value; }
};

/// A memset where all bytes of the value are equal, as those of 0 are.
template <class T>
[[nodiscard]] cudaError_t launch_fill(CudaLaunch launch, T* to, std::int64_t n, T const& value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  bool equal = true;
  for (unsigned char byte : bytes) equal = equal && byte == bytes[0];
  if (equal) return cudaMemsetAsync(to, bytes[0], static_cast<std::size_t>(n) * sizeof(T), launch.stream);
  return launch_for_each(launch, n, FillWith<T>{to, value});
}

}  // namespace zero::detail
