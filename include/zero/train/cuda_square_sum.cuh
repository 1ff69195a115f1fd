// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The sum of squares on a CUDA device: the same bits as on the host, whatever the grid.

#include <cuda_runtime.h>

#include <cstdint>

#include <zero/core/element.hpp>
#include <zero/device/cuda_launch.cuh>
#include <zero/train/exact_sum.hpp>
#include <zero/train/norm.hpp>

namespace zero::detail {

/// A gradient element in fp64. In PTX, because the compiler's own conversion takes denormal numbers for 0 under --use_fast_math.
[[nodiscard]] __device__ inline double exact_double(float value) {
#if defined(__CUDA_ARCH__)
  double result;
  asm("cvt.f64.f32 %0, %1;" : "=d"(result) : "f"(value));
  return result;
#else
  return static_cast<double>(value);
#endif
}
[[nodiscard]] __device__ inline double exact_double(double value) { return value; }

/// lane + x x. The square of a float is exact in fp64, so that fusing it changes nothing and saves an operation.
[[nodiscard]] __device__ inline double add_square(double lane, float value) {
  double const x = exact_double(value);
  return __fma_rn(x, x, lane);
}
[[nodiscard]] __device__ inline double add_square(double lane, double value) { return __dadd_rn(lane, __dmul_rn(value, value)); }

/// An `ExactSum` in shared memory, to which the threads of a warp add: its words in two halves, because 32-bit atomics are the native ones.
template <int Limbs>
struct SharedSum {
  unsigned low[Limbs];
  unsigned high[Limbs];
  unsigned non_finite;

  __device__ void add(double value) {
    typename ExactSum<Limbs>::Parts const p = ExactSum<Limbs>::parts(value);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (p.part[k] == 0) continue;
      unsigned const before = atomicAdd(&low[p.limb + k], p.part[k]);
      if (before + p.part[k] < before) atomicAdd(&high[p.limb + k], 1u);
    }
    if (p.non_finite != 0) atomicAdd(&non_finite, 1u);
  }
};

/// How a part of a block is shared out: 128 bits of each row of `norm_lanes` elements for each thread.
template <RealElement T>
struct SquareThreads {
  static constexpr int width = 16 / static_cast<int>(sizeof(T));  ///< lanes of a thread
  static constexpr int threads = norm_lanes / width;              ///< of a part
  static constexpr int rows = static_cast<int>(norm_block) / norm_lanes;
};

/// The sum of squares of `count` elements, as `tree_of_squares` forms it; correct in thread 0 of the part's threads.
template <RealElement T>
[[nodiscard]] __device__ inline double part_of_squares(T const* data, std::int64_t count, int thread) {
  using Threads = SquareThreads<T>;
  constexpr int width = Threads::width;
  double lanes[width];
#pragma unroll
  for (int l = 0; l < width; ++l) lanes[l] = 0;
  T const* const own = data + thread * width;
  if (count == norm_block && reinterpret_cast<std::uintptr_t>(own) % 16 == 0) {
    T rows[Threads::rows][width];
#pragma unroll
    for (int r = 0; r < Threads::rows; ++r) load_pack(rows[r], own + r * norm_lanes);
#pragma unroll
    for (int r = 0; r < Threads::rows; ++r) {
#pragma unroll
      for (int l = 0; l < width; ++l) lanes[l] = add_square(lanes[l], static_cast<compute_t<T>>(rows[r][l]));
    }
  } else {
    for (int first = thread * width; first < count; first += norm_lanes) {
#pragma unroll
      for (int l = 0; l < width; ++l) {
        if (first + l < count) lanes[l] = add_square(lanes[l], static_cast<compute_t<T>>(data[first + l]));
      }
    }
  }
#pragma unroll
  for (int step = norm_lanes / 2; step >= width; step /= 2) {
#pragma unroll
    for (int l = 0; l < width; ++l)
      lanes[l] = __dadd_rn(lanes[l], __shfl_down_sync(0xffffffffu, lanes[l], static_cast<unsigned>(step / width), Threads::threads));
  }
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) {
#pragma unroll
    for (int l = 0; l < step; ++l) lanes[l] = __dadd_rn(lanes[l], lanes[l + step]);
  }
  return lanes[0];
}

/// Adds the squares of all parts of a run. Each warp adds to a sum of its own, then the block's sum is carried and added to the result: a
/// block takes as much of the room between two carries as one addition does.
template <RealElement T>
__global__ void __launch_bounds__(cuda_block_threads) square_sum_kernel(SquareSum<T> run) {
  using Sum = exact_square_sum_t<T>;
  using Threads = SquareThreads<T>;
  constexpr int limbs = Sum::limb_count;
  constexpr int warps = cuda_block_threads / 32;
  static_assert(limbs <= cuda_block_threads);
  __shared__ SharedSum<limbs> sums[warps];
  __shared__ unsigned long long totals[limbs];
  int const thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < warps * static_cast<int>(sizeof(SharedSum<limbs>) / sizeof(unsigned)); i += cuda_block_threads) {
    reinterpret_cast<unsigned*>(sums)[i] = 0;
  }
  __syncthreads();

  std::int64_t const parts = run.parts();
  std::int64_t const step = std::int64_t{gridDim.x} * (cuda_block_threads / Threads::threads);
  std::int64_t part = cuda_thread_index() / Threads::threads;
  std::int64_t const first_of_warp = (cuda_thread_index() - thread % 32) / Threads::threads;
  // All threads of a warp go round equally often, for they exchange sums.
  for (std::int64_t first = first_of_warp; first < parts; first += step, part += step) {
    std::int64_t const begin = run.begin(part);
    std::int64_t const count = part < parts ? run.begin(part + 1) - begin : 0;
    double const sum = part_of_squares(run.data + begin, count, thread % Threads::threads);
    if (count > 0 && thread % Threads::threads == 0) sums[thread / 32].add(sum);
  }
  __syncthreads();

  if (thread < limbs) {
    unsigned long long total = 0;
    for (int w = 0; w < warps; ++w) total += sums[w].low[thread] + (static_cast<unsigned long long>(sums[w].high[thread]) << 32);
    totals[thread] = total;
  }
  __syncthreads();
  if (thread != 0) return;
  auto* const words = reinterpret_cast<unsigned long long*>(run.into->words);
  unsigned long long carried = 0;
  for (int k = 0; k < limbs; ++k) {
    unsigned long long const total = totals[k] + carried;
    unsigned long long const word = k + 1 < limbs ? total & 0xffffffffu : total;
    carried = total >> 32;
    if (word != 0) atomicAdd(&words[k], word);
  }
  unsigned long long non_finite = 0;
  for (int w = 0; w < warps; ++w) non_finite += sums[w].non_finite;
  if (non_finite != 0) atomicAdd(&words[limbs], non_finite);
}

/// At most 1024 blocks, which go round: each ends with a few additions to the same words.
template <RealElement T>
[[nodiscard]] cudaError_t launch_accumulate(CudaLaunch launch, std::int64_t, SquareSum<T> const& run) {
  std::int64_t const threads = run.parts() * SquareThreads<T>::threads;
  std::int64_t const most = std::int64_t{1024} * cuda_block_threads;
  return launch_threads(launch, threads < most ? threads : most, square_sum_kernel<T>, run);
}

}  // namespace zero::detail
