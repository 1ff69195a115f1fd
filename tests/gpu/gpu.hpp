// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What the tests on a real GPU share: they skip themselves without one, and run what every device must do.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>

namespace zero::test {

/// Leaves the program with the code of a skipped test, before any test case, where there is no GPU.
struct RequireGpu {
  RequireGpu() {
    int count = 0;
    cudaError_t const error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    std::printf("SKIPPED: no CUDA device here: %s\n", error == cudaSuccess ? "a count of 0" : cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(77);
  }
};
inline RequireGpu const require_gpu;

/// Two streams of the GPU.
struct Gpu {
  using Device = CudaDevice;
  static constexpr char const* name = "a GPU";

  explicit Gpu(std::uint64_t = 0) {}
  CudaStreamRef stream(std::size_t i) const { return streams_[i]; }
  MemoryResource& memory() { return memory_; }
  void finish() const {
    for (CudaStream const& stream : streams_) stream.synchronize();
  }

  // What support/step_and_norm.hpp asks for: memory that both use, and runs that are over when they return.
  template <class Step>
  void step(std::int64_t n, Step const& step) const {
    CudaDevice::for_each(stream(0), n, step);
    stream(0).synchronize();
  }
  template <class Sum>
  void sum(Sum const& sum) const {
    CudaDevice::accumulate(stream(0), sum.parts(), sum);
    stream(0).synchronize();
  }

private:
  CudaMemory memory_;
  std::array<CudaStream, 2> streams_;
};

/// The same with memory that the host can use too.
struct GpuWithPinnedMemory : Gpu {
  MemoryResource& memory() const { return CudaDevice::pinned_memory(); }
};

}  // namespace zero::test
