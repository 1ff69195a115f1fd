// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The part of CBLAS that the example trainer uses, as plain loops: for tests that shall not need a BLAS, and whose products have the same
/// bits wherever they are computed.

enum CBLAS_ORDER { CblasRowMajor = 101 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };

inline void cblas_sgemm(CBLAS_ORDER, CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, int m, int n, int k, float alpha, float const* a,
                        int a_stride, float const* b, int b_stride, float beta, float* c, int c_stride) {
  long const a_row = a_form == CblasNoTrans ? a_stride : 1;
  long const a_column = a_form == CblasNoTrans ? 1 : a_stride;
  long const b_row = b_form == CblasNoTrans ? b_stride : 1;
  long const b_column = b_form == CblasNoTrans ? 1 : b_stride;
  for (long row = 0; row < m; ++row) {
    for (long column = 0; column < n; ++column) {
      float sum = 0;
      for (long i = 0; i < k; ++i) sum += a[row * a_row + i * a_column] * b[i * b_row + column * b_column];
      float& to = c[row * c_stride + column];
      to = beta == 0.0f ? alpha * sum : alpha * sum + beta * to;
    }
  }
}
