// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Matrix products of the host, from any CBLAS.

#include <cstdint>
#include <stdexcept>

#include <cblas.h>

#include "gpt/math.hpp"

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

/// A product by the BLAS.
inline void compute(HostMath, Product const& p) {
  auto const size = [](std::int64_t value) { return static_cast<int>(value); };
  auto const form = [](Form of) { return of == Form::transposed ? CblasTrans : CblasNoTrans; };
  for (std::int64_t i = 0; i < p.repeat.count; ++i) {
    cblas_sgemm(CblasRowMajor, form(p.a_form), form(p.b_form), size(p.m), size(p.n), size(p.k), p.factor, p.a.data + i * p.repeat.a_step,
                size(p.a.stride), p.b.data + i * p.repeat.b_step, size(p.b.stride), p.into == Into::add ? 1.0f : 0.0f,
                p.c.data + i * p.repeat.c_step, size(p.c.stride));
  }
}

}  // namespace gpt
