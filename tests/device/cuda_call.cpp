// SPDX-License-Identifier: Apache-2.0
/// @file
/// How calls of CUDA become errors, and devices current, over the stand-in runtime.

#include <zero/device/cuda_call.hpp>

#include <doctest/doctest.h>

#include <string>

#include "support/standin/standin_cuda.hpp"

namespace {

using zero::SourceLocation;
using zero::detail::check_cuda;
using zero::detail::CudaDeviceGuard;
using zero::detail::require_cuda_device;

int current_device() {
  int device = -1;
  check_cuda("cudaGetDevice", cudaGetDevice(&device), {});
  return device;
}

}  // namespace

TEST_CASE("a call that failed becomes an error with its name, number, text and place, and leaves nothing behind") {
  zero::standin::reset();
  check_cuda("cudaMalloc", cudaSuccess, SourceLocation::current());
  SourceLocation const here = SourceLocation::current();
  cudaError_t const result = cudaSetDevice(99);
  REQUIRE(result == cudaErrorInvalidDevice);
  try {
    check_cuda("cudaSetDevice", result, here);
    FAIL("nothing was thrown");
  } catch (zero::DeviceError const& error) {
    std::string const text = error.what();
    CHECK(text.find("cudaSetDevice") != std::string::npos);
    CHECK(text.find("cudaErrorInvalidDevice (101: ") != std::string::npos);
    CHECK(error.code() == cudaErrorInvalidDevice);
    CHECK(error.where().line == here.line);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("a device is current for a scope, and the one before it afterwards") {
  zero::standin::reset({.devices = 3});
  check_cuda("cudaSetDevice", cudaSetDevice(1), {});
  {
    CudaDeviceGuard const outer(2, {});
    CHECK(current_device() == 2);
    {
      CudaDeviceGuard const inner(0, {});
      CHECK(current_device() == 0);
    }
    CHECK(current_device() == 2);
  }
  CHECK(current_device() == 1);
  auto const before = zero::standin::calls("cudaSetDevice");
  { CudaDeviceGuard const nothing_to_do(1, {}); }
  CHECK(zero::standin::calls("cudaSetDevice") == before);
  CHECK_THROWS_AS(CudaDeviceGuard(3, {}), zero::DeviceError);
  CHECK(current_device() == 1);
  check_cuda("cudaSetDevice", cudaSetDevice(0), {});
}

TEST_CASE("the device asked for, the current one, or what is missing") {
  zero::standin::reset({.devices = 2});
  check_cuda("cudaSetDevice", cudaSetDevice(1), {});
  CHECK(require_cuda_device(0, {}) == 0);
  CHECK(require_cuda_device(-1, {}) == 1);
  CHECK_THROWS_WITH_AS(require_cuda_device(2, {}), doctest::Contains("there is no CUDA device 2: there are 2"), zero::UsageError);
  CHECK_THROWS_AS(require_cuda_device(-2, {}), zero::UsageError);
  check_cuda("cudaSetDevice", cudaSetDevice(0), {});
  zero::standin::reset({.devices = 0});
  CHECK_THROWS_WITH_AS(require_cuda_device(-1, {}), doctest::Contains("cudaGetDeviceCount failed"), zero::DeviceError);
  zero::standin::reset({.driver_version = 0});
  CHECK_THROWS_WITH_AS(require_cuda_device(0, {}), doctest::Contains("there is no CUDA driver on this machine"), zero::DeviceError);
  zero::standin::reset();
}
