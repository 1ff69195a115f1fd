// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Runs the library's kernels without a GPU or a CUDA compiler: each thread of a block is a thread of the host, blocks follow each other. To be
/// included before any .cuh header. It shows whether a kernel's arithmetic is right, its indices, its barriers and its atomics; nothing
/// about a GPU.

#include <cuda_runtime_api.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

// What nvcc knows by itself.
#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

namespace zero::standin {

/// The barriers of a block, and what its warps exchange.
struct KernelBlock {
  explicit KernelBlock(unsigned threads) : whole(threads), exchanged(threads) {
    for (unsigned first = 0; first < threads; first += 32) {
      warps.push_back(std::make_unique<std::barrier<>>(threads - first < 32 ? threads - first : 32));
    }
  }
  std::barrier<> whole;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<double> exchanged;
};

inline thread_local KernelBlock* kernel_block = nullptr;

/// False where a kernel has no barriers: then its threads run one after the other, which is a hundred times as fast.
inline bool kernels_have_barriers = true;

/// What a thread adds to is shared with the others.
template <class T>
T atomic_add(T* to, T value) {
  return std::atomic_ref<T>(*to).fetch_add(value, std::memory_order_relaxed);
}

}  // namespace zero::standin

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 gridDim;

inline void __syncthreads() { zero::standin::kernel_block->whole.arrive_and_wait(); }

inline double __shfl_down_sync(unsigned, double value, unsigned delta, int width) {
  auto& block = *zero::standin::kernel_block;
  unsigned const thread = threadIdx.x;
  auto& warp = *block.warps[thread / 32];
  block.exchanged[thread] = value;
  warp.arrive_and_wait();
  unsigned const group = static_cast<unsigned>(width);
  double const result = thread % group + delta < group ? block.exchanged[thread + delta] : value;
  warp.arrive_and_wait();
  return result;
}

inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline unsigned atomicAdd(unsigned* to, unsigned value) { return zero::standin::atomic_add(to, value); }
inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) { return zero::standin::atomic_add(to, value); }

/// In place of CUDA's: the kernel has run when it returns.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(cudaLaunchConfig_t const* config, void (*kernel)(Parameters...), Arguments const&... arguments) {
  for (unsigned b = 0; b < config->gridDim.x; ++b) {
    zero::standin::KernelBlock block(config->blockDim.x);
    std::vector<std::thread> threads;
    auto const run = [&](unsigned t) {
      zero::standin::kernel_block = &block;
      threadIdx = uint3{t, 0, 0};
      blockIdx = uint3{b, 0, 0};
      gridDim = config->gridDim;
      kernel(arguments...);
    };
    for (unsigned t = 0; t < config->blockDim.x; ++t) {
      if (zero::standin::kernels_have_barriers) threads.emplace_back(run, t);
      else run(t);
    }
    for (std::thread& thread : threads) thread.join();
  }
  return cudaSuccess;
}
