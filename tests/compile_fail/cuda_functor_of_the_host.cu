// SPDX-License-Identifier: Apache-2.0
/// @file
/// A functor without ZERO_HOST_DEVICE given to the CUDA device.

#include <zero/zero.hpp>

#if defined(ZERO_COMPILES)
#define MARK ZERO_HOST_DEVICE
#else
#define MARK
#endif

struct AddOne {
  float* to;
  MARK void operator()(std::int64_t i) const { to[i] += 1; }
};

void add_one(zero::CudaStreamRef stream, float* to) { zero::CudaDevice::for_each(stream, 4, AddOne{to}); }
