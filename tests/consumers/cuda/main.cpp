// SPDX-License-Identifier: Apache-2.0
/// @file
/// A consumer's plain C++: streams, memory and copies of the CUDA back end, and a call into the .cu file.

#include <zero/zero.hpp>

#include <cstdio>

float trained_on(zero::CudaStreamRef stream, zero::MemoryResource& memory);

int main() {
  try {
    zero::CudaStream const stream;
    zero::CudaMemory memory;
    zero::Buffer<float> device{memory, 8, zero::Purpose::control};
    zero::Buffer<float> host{zero::CudaDevice::pinned_memory(), 8, zero::Purpose::control};
    zero::CudaDevice::copy(stream, host.data(), device.data(), host.bytes());
    zero::CudaDevice::synchronize(zero::CudaDevice::record(stream));
    float const result = trained_on(stream, memory);
    std::printf("a parameter is %g after a step\n", static_cast<double>(result));
    return result < 1 ? 0 : 1;
  } catch (zero::DeviceError const& error) {
    std::printf("no device, and it says so: %s\n", error.what());
    return 0;
  }
}
