// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Internals of the CUDA headers: calls of the runtime become typed errors, and the device of a stream becomes current for a call.

#include <cuda_runtime_api.h>

#include <string>

#include <zero/core/error.hpp>

namespace zero::detail {

/// The error's name, number and meaning.
[[nodiscard]] inline std::string cuda_error_text(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + std::to_string(static_cast<int>(error)) + ": " + cudaGetErrorString(error) + ")";
}

/// Forgets the error that the call just made has left behind, which else the user's own next look at `cudaGetLastError` would find.
inline void forget_cuda_error() noexcept { static_cast<void>(cudaGetLastError()); }

/// The typed error of a call that failed.
[[nodiscard]] inline DeviceError cuda_error(char const* call, cudaError_t error, SourceLocation where) {
  forget_cuda_error();
  return {call, cuda_error_text(error), static_cast<int>(error), where};
}

/// @throws DeviceError where a call failed.
inline void check_cuda(char const* call, cudaError_t error, SourceLocation where) {
  if (error != cudaSuccess) throw cuda_error(call, error, where);
}

/// An event without timing, on the device that is current. @throws DeviceError
[[nodiscard]] inline cudaEvent_t make_cuda_event(SourceLocation where) {
  cudaEvent_t event = nullptr;
  check_cuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cudaEventDisableTiming), where);
  return event;
}
inline void destroy_cuda_event(cudaEvent_t event) noexcept {
  if (event != nullptr && cudaEventDestroy(event) != cudaSuccess) forget_cuda_error();
}

/// Makes a device current for this thread, and the one before it at the end of the scope. Costs two look-ups where it is current already.
class CudaDeviceGuard {
public:
  /// @throws DeviceError
  CudaDeviceGuard(int device, SourceLocation where) : device_(device) {
    check_cuda("cudaGetDevice", cudaGetDevice(&before_), where);
    if (before_ != device_) check_cuda("cudaSetDevice", cudaSetDevice(device_), where);
  }
  CudaDeviceGuard(CudaDeviceGuard const&) = delete;
  CudaDeviceGuard& operator=(CudaDeviceGuard const&) = delete;
  ~CudaDeviceGuard() {
    if (before_ != device_ && cudaSetDevice(before_) != cudaSuccess) forget_cuda_error();
  }

private:
  int device_;
  int before_ = 0;
};

/// Makes sure that there is a driver, and such a device.
/// @param device  -1: the current one.
/// @returns the device's number.
/// @throws DeviceError without a driver or a device; UsageError where there are fewer devices.
inline int require_cuda_device(int device, SourceLocation where) {
  int driver = 0;
  check_cuda("cudaDriverGetVersion", cudaDriverGetVersion(&driver), where);
  if (driver == 0) {
    throw DeviceError("cudaDriverGetVersion", "version 0: there is no CUDA driver on this machine",
                      static_cast<int>(cudaErrorInsufficientDriver), where);
  }
  int count = 0;
  check_cuda("cudaGetDeviceCount", cudaGetDeviceCount(&count), where);
  if (count == 0) {
    throw DeviceError("cudaGetDeviceCount", "a count of 0: there is no CUDA device on this machine", static_cast<int>(cudaErrorNoDevice),
                      where);
  }
  if (device < -1 || device >= count) {
    throw UsageError("there is no CUDA device " + std::to_string(device) + ": there are " + std::to_string(count), where);
  }
  if (device == -1) check_cuda("cudaGetDevice", cudaGetDevice(&device), where);
  return device;
}

}  // namespace zero::detail
