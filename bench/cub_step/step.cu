// SPDX-License-Identifier: Apache-2.0
/// @file
/// The AdamW step as `cub::DeviceTransform` would do it, one element at a time, several outputs by an iterator that zips them: to read its machine
/// code, see run.

#include <cuda_bf16.h>
#include <thrust/iterator/zip_iterator.h>

#include <cub/device/device_transform.cuh>
#include <cuda/std/tuple>

struct Step {
  float rate, beta1, beta2, epsilon, decay, correction1, correction2;

  __device__ cuda::std::tuple<float, float, float, __nv_bfloat16> operator()(float master, __nv_bfloat16 gradient, float m, float v) const {
    float const g = __bfloat162float(gradient);
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    master -= rate * (m * correction1 / (sqrtf(v * correction2) + epsilon) + decay * master);
    return {master, m, v, __float2bfloat16(master)};
  }
};

void step(float* master, __nv_bfloat16* gradient, float* m, float* v, __nv_bfloat16* parameter, int n, Step const& step,
          cudaStream_t stream) {
  cub::DeviceTransform::Transform(cuda::std::make_tuple(master, gradient, m, v), thrust::make_zip_iterator(master, m, v, parameter), n,
                                  step, stream);
}
