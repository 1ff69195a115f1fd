// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Matrix products, row-major, from any CBLAS.

#include <cstdint>
#include <stdexcept>

#include <cblas.h>

#if defined(__GNUC__) && !defined(__APPLE__)
#define GPT_MAY_BE_OPENBLAS 1
extern "C" {
// Null where the BLAS is not OpenBLAS.
__attribute__((weak)) void openblas_set_num_threads(int num_threads);
__attribute__((weak)) int openblas_get_parallel(void);
}
#endif

namespace gpt {

/// Every rank is a thread that computes: a BLAS that starts threads of its own would only fight over the cores, and its sums would depend
/// on how many it got. Call once, before the ranks start.
///
/// Throws std::runtime_error for an OpenBLAS that was built without threads: such a build takes no locks, and products go wrong, in rare
/// bursts, when several threads call it (measured with 0.3.21 on two cores: 1,930 of 800,000 small products, with 8 threads).
inline void use_one_blas_thread() {
#if defined(GPT_MAY_BE_OPENBLAS)
  if (openblas_get_parallel != nullptr && openblas_get_parallel() == 0) {
    throw std::runtime_error(
        "this OpenBLAS was built without threads, so several ranks cannot call it at once: link the build with threads "
        "(Debian: libopenblas-pthread-dev), of which one thread a rank is used");
  }
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
#endif
}

/// A matrix in memory: `stride` elements from one row to the next.
template <class T>
struct Matrix {
  T* data;
  std::int64_t stride;
};

/// What becomes of the matrix a product is written to.
enum class Into { replace, add };

namespace detail {

inline void sgemm(CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, std::int64_t m, std::int64_t n, std::int64_t k, float factor, Into into,
                  Matrix<float const> a, Matrix<float const> b, Matrix<float> c) {
  auto const size = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, a_form, b_form, size(m), size(n), size(k), factor, a.data, size(a.stride), b.data, size(b.stride),
              into == Into::add ? 1.0f : 0.0f, c.data, size(c.stride));
}

}  // namespace detail

/// c [m, n] = or += factor a [m, k] b [k, n]
inline void multiply(Into into, std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float const> a, Matrix<float const> b,
                     Matrix<float> c, float factor = 1.0f) {
  detail::sgemm(CblasNoTrans, CblasNoTrans, m, n, k, factor, into, a, b, c);
}

/// c [m, n] = or += factor a [m, k] b^T, b [n, k]
inline void multiply_by_transposed(Into into, std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float const> a, Matrix<float const> b,
                                   Matrix<float> c, float factor = 1.0f) {
  detail::sgemm(CblasNoTrans, CblasTrans, m, n, k, factor, into, a, b, c);
}

/// c [m, n] = or += factor a^T b, a [k, m], b [k, n]
inline void multiply_transposed(Into into, std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float const> a, Matrix<float const> b,
                                Matrix<float> c, float factor = 1.0f) {
  detail::sgemm(CblasTrans, CblasNoTrans, m, n, k, factor, into, a, b, c);
}

}  // namespace gpt
