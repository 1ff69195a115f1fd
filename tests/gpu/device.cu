// SPDX-License-Identifier: Apache-2.0
/// @file
/// CUDA as a device, on a GPU: what every device does, and an error of a kernel.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <zero/zero.hpp>

#include "device/conformance.hpp"
#include "gpu/gpu.hpp"

ZERO_TEST_DEVICE(zero::test::Gpu);

TEST_CASE("memory_of_the_host_is_refused_where_the_gpu_cannot_use_it") {
  int reads_pageable = 0;
  cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, 0);
  std::vector<float> heap(4);
  if (reads_pageable != 0) zero::CudaDevice::check_memory(heap.data());
  else CHECK_THROWS_AS(zero::CudaDevice::check_memory(heap.data()), zero::UsageError);
}

TEST_CASE("memory_in_stream_order") {
  zero::test::Gpu gpu;
  zero::CudaStreamMemory memory{gpu.stream(0)};
  zero::test::Shared<zero::CudaDevice, float> host(1000, 0);
  for (int i = 0; i < 100; ++i) {
    zero::Buffer<float> block{memory, 1000, zero::Purpose::gathered};
    CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % zero::memory_alignment == 0);
    zero::CudaDevice::fill(gpu.stream(0), block.data(), 1000, static_cast<float>(i));
    zero::CudaDevice::copy(gpu.stream(0), host.data(), block.data(), block.bytes());
  }
  gpu.finish();
  CHECK(host.values() == std::vector<float>(1000, 99.0f));
}

TEST_CASE("an_adopted_stream_is_used_as_it_is") {
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  {
    zero::CudaStream const stream = zero::CudaStream::adopt(native);
    zero::test::Shared<zero::CudaDevice, int> calls(1, 0);
    zero::CudaDevice::run(stream, zero::test::CountCall{calls.data()});
    REQUIRE(cudaStreamSynchronize(native) == cudaSuccess);
    CHECK(calls[0] == 1);
  }
  CHECK(cudaStreamDestroy(native) == cudaSuccess);
}
