// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Matrix products of a CUDA stream, by cuBLAS.

#include <cublas_v2.h>

#include <stdexcept>
#include <string>

#include "gpt/math.hpp"

namespace gpt {

/// A handle of cuBLAS for one stream of the current device, for a `DeviceMath`. Sums are fp32 (no TF32), and on one stream cuBLAS repeats
/// its bits.
class Cublas {
public:
  /// @throws std::runtime_error with the text of cuBLAS, as all functions do.
  explicit Cublas(cudaStream_t stream) {
    check("cublasCreate", cublasCreate(&handle_));
    if (cublasStatus_t const status = cublasSetStream(handle_, stream); status != CUBLAS_STATUS_SUCCESS) {
      cublasDestroy(handle_);
      check("cublasSetStream", status);
    }
  }
  Cublas(Cublas const&) = delete;
  Cublas& operator=(Cublas const&) = delete;
  ~Cublas() { cublasDestroy(handle_); }

  /// cuBLAS stores matrices by columns: what is c by rows is c^T to it, and c^T = b^T a^T.
  void enqueue(Product const& p) {
    auto const size = [](std::int64_t value) { return static_cast<int>(value); };
    auto const form = [](Form of) { return of == Form::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    float const beta = p.into == Into::add ? 1.0f : 0.0f;
    if (p.repeat.count == 1) {
      check("cublasSgemm", cublasSgemm(handle_, form(p.b_form), form(p.a_form), size(p.n), size(p.m), size(p.k), &p.factor, p.b.data,
                                       size(p.b.stride), p.a.data, size(p.a.stride), &beta, p.c.data, size(p.c.stride)));
    } else {
      check("cublasSgemmStridedBatched",
            cublasSgemmStridedBatched(handle_, form(p.b_form), form(p.a_form), size(p.n), size(p.m), size(p.k), &p.factor, p.b.data,
                                      size(p.b.stride), p.repeat.b_step, p.a.data, size(p.a.stride), p.repeat.a_step, &beta, p.c.data,
                                      size(p.c.stride), p.repeat.c_step, size(p.repeat.count)));
    }
  }

private:
  static void check(char const* call, cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(std::string(call) + " failed: " + cublasGetStatusString(status));
  }

  cublasHandle_t handle_ = nullptr;
};

}  // namespace gpt
