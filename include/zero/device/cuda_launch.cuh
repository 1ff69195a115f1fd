// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Internals of the kernels: how one is launched, and loads and stores of 16 and 32 bytes.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include <zero/device/cuda_device.hpp>

namespace zero::detail {

inline constexpr int cuda_block_threads = 256;

/// The number of this thread in the grid.
[[nodiscard]] __device__ inline std::int64_t cuda_thread_index() {
  return std::int64_t{blockIdx.x} * cuda_block_threads + static_cast<std::int64_t>(threadIdx.x);
}

/// @returns what the launch returned; nothing is left for `cudaGetLastError` where it is cudaSuccess.
template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t launch_kernel(CudaLaunch launch, std::int64_t blocks, int threads, void (*kernel)(Parameters...),
                                        Arguments const&... arguments) {
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = launch.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// The same with at least so many threads, in blocks of `cuda_block_threads`: up to 2^39 of them.
template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t launch_threads(CudaLaunch launch, std::int64_t threads, void (*kernel)(Parameters...),
                                         Arguments const&... arguments) {
  std::int64_t const blocks = (threads + cuda_block_threads - 1) / cuda_block_threads;
  return launch_kernel(launch, blocks, cuda_block_threads, kernel, arguments...);
}

/// One access to global memory of 4, 8, 16 or 32 bytes; the address is a multiple of that. Written in PTX: the compiler makes several narrow
/// accesses of what it could make one. Where the device has none of 32 bytes, two of 16. (Without a device, in tests that run kernels as
/// host threads, it is a copy.)
template <int Bytes>
__device__ inline void load_words(unsigned (&to)[Bytes / 4], void const* from) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16 || Bytes == 32);
#if !defined(__CUDA_ARCH__)
  memcpy(to, from, Bytes);
#else
  if constexpr (Bytes == 4) {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(to[0]) : "l"(from));
  } else if constexpr (Bytes == 8) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  } else if constexpr (Bytes == 16) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
  } else {
#if __CUDA_ARCH__ >= 1000
    asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]), "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7])
                 : "l"(from));
#else
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4+16];" : "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7]) : "l"(from));
#endif
  }
#endif
}

template <int Bytes>
__device__ inline void store_words(void* to, unsigned const (&from)[Bytes / 4]) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16 || Bytes == 32);
#if !defined(__CUDA_ARCH__)
  memcpy(to, from, Bytes);
#else
  if constexpr (Bytes == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(from[0]) : "memory");
  } else if constexpr (Bytes == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(from[0]), "r"(from[1]) : "memory");
  } else if constexpr (Bytes == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
  } else {
#if __CUDA_ARCH__ >= 1000
    asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]),
                 "r"(from[3]), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7])
                 : "memory");
#else
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
    asm volatile("st.global.v4.b32 [%0+16], {%1, %2, %3, %4};" ::"l"(to), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7])
                 : "memory");
#endif
  }
#endif
}

/// Reads N elements that follow each other, in one access where there is one.
template <int N, class T>
__device__ inline void load_pack(T (&to)[N], T const* from) {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  unsigned words[bytes / 4];
  load_words<bytes>(words, from);
  memcpy(to, words, bytes);
}

/// Writes what `load_pack` reads.
template <int N, class T>
__device__ inline void store_pack(T* to, T const (&from)[N]) {
  constexpr int bytes = N * static_cast<int>(sizeof(T));
  unsigned words[bytes / 4];
  memcpy(words, from, bytes);
  store_words<bytes>(to, words);
}

}  // namespace zero::detail
