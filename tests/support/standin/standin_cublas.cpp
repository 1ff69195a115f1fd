// SPDX-License-Identifier: Apache-2.0
/// @file
/// A stand-in of the few functions of cuBLAS that the example trainer calls, over the stand-in CUDA runtime: plain loops, run in the order of the
/// handle's stream, over matrices that are stored by columns. Products are refused whose strides are too small, as cuBLAS does.

#include <cublas_v2.h>

#include <cstdint>

#include "support/standin/standin_cuda.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

/// A matrix stored by columns, as op() shows it.
struct View {
  float const* data;
  std::int64_t row_step, column_step;

  View(float const* matrix, int stride, cublasOperation_t op)
      : data(matrix), row_step(op == CUBLAS_OP_N ? 1 : stride), column_step(op == CUBLAS_OP_N ? stride : 1) {}
  [[nodiscard]] float at(std::int64_t row, std::int64_t column) const { return data[row * row_step + column * column_step]; }
};

struct Products {
  int m, n, k, count;
  float alpha, beta;
  View a, b;
  float* c;
  std::int64_t c_stride, a_step, b_step, c_step;

  void compute() {
    for (int i = 0; i < count; ++i, a.data += a_step, b.data += b_step, c += c_step) {
      for (std::int64_t column = 0; column < n; ++column) {
        for (std::int64_t row = 0; row < m; ++row) {
          float sum = 0;
          for (std::int64_t j = 0; j < k; ++j) sum += a.at(row, j) * b.at(j, column);
          float& to = c[row + column * c_stride];
          to = beta == 0.0f ? alpha * sum : alpha * sum + beta * to;
        }
      }
    }
  }
};

}  // namespace

extern "C" {

char const* cublasGetStatusString(cublasStatus_t) { return "a status of the stand-in"; }

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
                                         float const* alpha, float const* a, int a_stride, long long a_step, float const* b, int b_stride,
                                         long long b_step, float const* beta, float* c, int c_stride, long long c_step, int count) {
  if (m < 1 || n < 1 || k < 1 || count < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (a_stride < (a_op == CUBLAS_OP_N ? m : k) || b_stride < (b_op == CUBLAS_OP_N ? k : n) || c_stride < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  Products const products{m, n,        k,      count,  *alpha, *beta, View(a, a_stride, a_op), View(b, b_stride, b_op),
                          c, c_stride, a_step, b_step, c_step};
  if (zero::standin::launch(handle->stream, [products] { Products(products).compute(); }) != cudaSuccess)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
                              float const* alpha, float const* a, int a_stride, float const* b, int b_stride, float const* beta, float* c,
                              int c_stride) {
  return cublasSgemmStridedBatched(handle, a_op, b_op, m, n, k, alpha, a, a_stride, 0, b, b_stride, 0, beta, c, c_stride, 0, 1);
}

}  // extern "C"
