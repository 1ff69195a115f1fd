// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Where the model's arithmetic is done, and matrix products, row-major, wherever that is.
///
/// The model (model.hpp) is written over a `Math`, which has a `Device`, a stream, and memory for what is allocated in passing. It is the
/// first argument of every function that computes, and selects the overload: for `HostMath` a CBLAS (blas.hpp) and plain loops (layers.hpp,
/// attention.hpp), for a `DeviceMath` (device_math.hpp) cuBLAS, say, and functors that the device runs.

#include <cstdint>

#include <zero/device/host_device.hpp>
#include <zero/device/memory.hpp>

namespace gpt {

/// The calling thread.
struct HostMath {
  using Device = zero::HostDevice;

  [[nodiscard]] static zero::HostStreamRef stream() { return zero::HostStreamRef::calling_thread(); }
  [[nodiscard]] static zero::MemoryResource& memory() { return zero::host_memory(); }
};

/// A matrix in memory: `stride` elements from one row to the next.
template <class T>
struct Matrix {
  T* data;
  std::int64_t stride;
};

/// What becomes of the matrix a product is written to.
enum class Into { replace, add };

/// How a factor of a product is read.
enum class Form { as_it_is, transposed };

/// The same product `count` times, with so many elements from one matrix to the next.
struct Repeat {
  std::int64_t count = 1;
  std::int64_t a_step = 0, b_step = 0, c_step = 0;
};

/// c [m, n] = or += factor a b, where a is [m, k] and b is [k, n] in the forms they are read in.
struct Product {
  Form a_form, b_form;
  Into into;
  std::int64_t m, n, k;
  Matrix<float const> a, b;
  Matrix<float> c;
  float factor;
  Repeat repeat;
};

/// c [m, n] = or += factor a [m, k] b [k, n]
template <class M>
void multiply(M const& math, Into into, std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float const> a, Matrix<float const> b,
              Matrix<float> c, float factor = 1.0f, Repeat const& repeat = {}) {
  compute(math, Product{Form::as_it_is, Form::as_it_is, into, m, n, k, a, b, c, factor, repeat});
}

/// c [m, n] = or += factor a [m, k] b^T, b [n, k]
template <class M>
void multiply_by_transposed(M const& math, Into into, std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float const> a,
                            Matrix<float const> b, Matrix<float> c, float factor = 1.0f, Repeat const& repeat = {}) {
  compute(math, Product{Form::as_it_is, Form::transposed, into, m, n, k, a, b, c, factor, repeat});
}

/// c [m, n] = or += factor a^T b, a [k, m], b [k, n]
template <class M>
void multiply_transposed(M const& math, Into into, std::int64_t m, std::int64_t n, std::int64_t k, Matrix<float const> a,
                         Matrix<float const> b, Matrix<float> c, float factor = 1.0f, Repeat const& repeat = {}) {
  compute(math, Product{Form::transposed, Form::as_it_is, into, m, n, k, a, b, c, factor, repeat});
}

}  // namespace gpt
