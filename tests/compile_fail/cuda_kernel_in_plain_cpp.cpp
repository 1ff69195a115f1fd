// SPDX-License-Identifier: Apache-2.0
/// @file
/// A kernel asked for in a translation unit of plain C++; streams, memory and copies are there for it.

#include <zero/zero.hpp>

void copies(zero::CudaStreamRef stream, float* to, float const* from) {
  zero::CudaDevice::copy(stream, to, from, 16);
  zero::CudaDevice::fill(stream, reinterpret_cast<std::byte*>(to), 16, std::byte{});
  zero::CudaDevice::synchronize(zero::CudaDevice::record(stream));
#if !defined(ZERO_COMPILES)
  zero::CudaDevice::fill(stream, to, 4, 1.0f);
#endif
}
