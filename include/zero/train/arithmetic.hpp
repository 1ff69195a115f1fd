// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Arithmetic that gives the same bits wherever it runs: products that no compiler fuses into an addition, integer powers, and the
/// attributes of the loops over elements.

#include <cmath>
#include <cstdint>

#include <zero/core/config.hpp>

/// Attributes of functions in which the compiler must not choose the roundings. (Several floating-point options must stand in one
/// attribute: of two attributes g++ takes the last.)
/// - ZERO_NO_CONTRACTION keeps g++ from fusing a product and a sum of one function, and of what is inlined into it, into one operation:
///   with -march=native it would, and the last bit would depend on how a program was built. clang fuses within one written expression only,
///   which `detail::product` prevents.
/// - ZERO_ELEMENT_LOOP does the same for a loop over elements, and lets g++ vectorise it at -O2 as at -O3.
/// - ZERO_WRITTEN_ORDER keeps sums as they are written besides, with -Ofast too. For clang ZERO_WRITTEN_ORDER_BODY does it, the first line
///   of the body in which the sums are written.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define ZERO_NO_CONTRACTION __attribute__((optimize("fp-contract=off")))
#define ZERO_ELEMENT_LOOP __attribute__((optimize("fp-contract=off", "tree-vectorize", "vect-cost-model=dynamic")))
#define ZERO_WRITTEN_ORDER __attribute__((optimize("no-associative-math", "fp-contract=off")))
#else
#define ZERO_NO_CONTRACTION
#define ZERO_ELEMENT_LOOP
#define ZERO_WRITTEN_ORDER
#endif
#if defined(__clang__) && !defined(__CUDACC__)
#define ZERO_WRITTEN_ORDER_BODY _Pragma("clang fp reassociate(off) contract(off)")
#else
#define ZERO_WRITTEN_ORDER_BODY
#endif

/// Inlines helpers also into functions that are compiled with other floating-point flags than their own (see the attributes above and
/// ZERO_FIXED_ORDER), which g++ else refuses: it would keep a copy that follows the user's flags.
#if defined(__GNUC__) || defined(__clang__)
#define ZERO_INLINE __attribute__((always_inline)) inline
#else
#define ZERO_INLINE inline
#endif

namespace zero::detail {

/// a b, rounded by itself: on a device never fused with the sum it is used in; on the host see ZERO_NO_CONTRACTION.
ZERO_HOST_DEVICE ZERO_INLINE constexpr float product(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

ZERO_HOST_DEVICE ZERO_INLINE constexpr double product(double a, double b) noexcept {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/// The correctly rounded quotient; on a device also where the user's flags ask for approximate ones.
ZERO_HOST_DEVICE ZERO_INLINE constexpr float quotient(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

ZERO_HOST_DEVICE ZERO_INLINE constexpr double quotient(double a, double b) noexcept {
#if defined(__CUDA_ARCH__)
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

/// The correctly rounded square root.
ZERO_HOST_DEVICE ZERO_INLINE float square_root(float value) noexcept {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return sqrtf(value);
#endif
}

ZERO_HOST_DEVICE ZERO_INLINE double square_root(double value) noexcept {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(value);
#else
  return ::sqrt(value);
#endif
}

/// base to the power of a non-negative integer, by repeated squaring: only products, so that hosts and devices agree to the bit, which the
/// `pow` of two libraries need not.
ZERO_HOST_DEVICE constexpr double integer_power(double base, std::int64_t exponent) noexcept {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

/// 2 to the power of an exponent in [-1022, 1023].
ZERO_HOST_DEVICE constexpr double power_of_two(int exponent) noexcept {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// Whether a number is neither infinite nor NaN, from its bits: with -ffinite-math-only compilers take `std::isfinite` for true.
ZERO_HOST_DEVICE constexpr bool is_finite(double value) noexcept {
  return (__builtin_bit_cast(std::uint64_t, value) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}

}  // namespace zero::detail
