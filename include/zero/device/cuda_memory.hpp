// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Memory resources of CUDA: device memory, device memory in stream order, and host memory that copies reach while the host goes on.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include <zero/core/error.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_stream.hpp>
#include <zero/device/memory.hpp>

namespace zero {

namespace detail {

/// What `allocate` does around a call of CUDA. `call(void** block)` returns a cudaError_t.
template <class Call>
[[nodiscard]] void* allocate_from_cuda(char const* name, std::int64_t bytes, Purpose purpose, Call&& call) {
  if (bytes == 0) return nullptr;
  if (bytes < 0) throw_memory_error(bytes, purpose, "a negative size");
  void* block = nullptr;
  if (cudaError_t const error = call(&block); error != cudaSuccess) {
    forget_cuda_error();
    throw_memory_error(bytes, purpose, std::string(name) + " failed with " + cuda_error_text(error));
  }
  return block;
}

/// `cudaMalloc` and its like take the current device, and `allocate` has one kind of error.
template <class Call>
[[nodiscard]] void* allocate_on_cuda_device(char const* name, int device, std::int64_t bytes, Purpose purpose, Call&& call) {
  return allocate_from_cuda(name, bytes, purpose, [&](void** block) {
    int before = 0;
    cudaError_t error = cudaGetDevice(&before);
    if (error == cudaSuccess && before != device) error = cudaSetDevice(device);
    if (error != cudaSuccess) return error;
    error = call(block);
    if (before != device && cudaSetDevice(before) != cudaSuccess) forget_cuda_error();
    return error;
  });
}

}  // namespace detail

/// Memory of one CUDA device, from `cudaMalloc`. Both calls may wait for the whole device: allocate before the training loop, as the library
/// does where `ShardedParameters::reserve` is called.
class CudaMemory final : public MemoryResource {
public:
  /// @param device  number of the CUDA device; -1: the one that is current for the calling thread.
  /// @throws DeviceError without a driver or a device; UsageError where there is no device of that number.
  explicit CudaMemory(int device = -1, SourceLocation where = SourceLocation::current())
      : device_(detail::require_cuda_device(device, where)) {}

  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    return detail::allocate_on_cuda_device("cudaMalloc", device_, bytes, purpose,
                                           [&](void** block) { return cudaMalloc(block, static_cast<std::size_t>(bytes)); });
  }

  void deallocate(void* block, std::int64_t, Purpose) noexcept override {
    if (cudaFree(block) != cudaSuccess) detail::forget_cuda_error();
  }

  /// The number of the device.
  [[nodiscard]] int device() const noexcept { return device_; }

private:
  int device_;
};

/// Memory of a stream's device, from `cudaMallocAsync`: blocks come from the device's memory pool in the order of the stream, and nothing
/// waits for the device. The stream must outlive the resource.
///
/// @par Stream order
/// A block may be used by work that is enqueued to the stream after `allocate`, or that waits for it, and goes back behind what is enqueued
/// to the stream when `deallocate` is called. What uses it on other streams must have been waited for by then.
class CudaStreamMemory final : public MemoryResource {
public:
  explicit CudaStreamMemory(CudaStreamRef stream) noexcept : stream_(stream) {}

  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    return detail::allocate_from_cuda("cudaMallocAsync", bytes, purpose, [&](void** block) {
      return cudaMallocAsync(block, static_cast<std::size_t>(bytes), stream_.native());
    });
  }

  void deallocate(void* block, std::int64_t, Purpose) noexcept override {
    if (block != nullptr && cudaFreeAsync(block, stream_.native()) != cudaSuccess) detail::forget_cuda_error();
  }

private:
  CudaStreamRef stream_;
};

/// Page-locked memory of the host: copies between it and any device run while the host goes on.
class CudaPinnedMemory final : public MemoryResource {
public:
  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    return detail::allocate_from_cuda("cudaHostAlloc", bytes, purpose, [&](void** block) {
      return cudaHostAlloc(block, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
    });
  }

  void deallocate(void* block, std::int64_t, Purpose) noexcept override {
    if (cudaFreeHost(block) != cudaSuccess) detail::forget_cuda_error();
  }
};

/// The page-locked memory as one object that lives as long as the program. It has no state.
[[nodiscard]] inline MemoryResource& cuda_pinned_memory() noexcept {
  // Never destroyed, so that owners with static storage may still give memory back.
  alignas(CudaPinnedMemory) static std::byte storage[sizeof(CudaPinnedMemory)];
  static CudaPinnedMemory* const resource = ::new (static_cast<void*>(storage)) CudaPinnedMemory;
  return *resource;
}

}  // namespace zero
