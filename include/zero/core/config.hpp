// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Compiler requirements, the version, and the few macros that the other headers share.

#include <cstddef>  // tells which C library this is

#if defined(_MSVC_LANG)
#define ZERO_CPLUSPLUS _MSVC_LANG
#else
#define ZERO_CPLUSPLUS __cplusplus
#endif

#if ZERO_CPLUSPLUS < 202002L
#error \
    "zero needs C++20: compile with -std=c++20 (CMake: target_link_libraries(... zero::zero) sets it for C++; nvcc wants it on its own command line)"
#endif

#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0

/// Marks functions that run on the host and, under a CUDA compiler, on the device too. Optimizer functors need it.
#if defined(__CUDACC__)
#define ZERO_HOST_DEVICE __host__ __device__
#else
#define ZERO_HOST_DEVICE
#endif

/// How much the library checks at run time: 1 (the default) checks what costs nothing measurable, 2 also poisons what nobody may read any
/// more (`ParametersOptions::poison_released`). It comes from the build (one value for the whole program) and changes no type's layout.
/// There is no level below: what costs nothing is always checked.
#if !defined(ZERO_ASSERTION_LEVEL)
#define ZERO_ASSERTION_LEVEL 1
#endif
#if ZERO_ASSERTION_LEVEL != 1 && ZERO_ASSERTION_LEVEL != 2
#error "zero: ZERO_ASSERTION_LEVEL is 1 or 2"
#endif

/// Keeps the order of floating-point additions inside one function, also when the caller compiles with -Ofast or -ffast-math:
/// g++ would reassociate sums over ranks and inside norm blocks. clang keeps the written order of these loops.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define ZERO_FIXED_ORDER __attribute__((optimize("no-associative-math")))
#else
#define ZERO_FIXED_ORDER
#endif

/// On a function: ZERO_TARGET_CLONES compiles it for processors with AVX2 too and chooses when the program is loaded. AVX2 without FMA, whose
/// contractions would change bits. ZERO_TARGET_FMA compiles a function that is written for FMA, for processors that have it. Only where it
/// works and pays: g++ with glibc on x86-64, not where the build asks for AVX2 anyway or does not optimise, not under the thread sanitizer,
/// whose programs end in the choice. Define ZERO_NO_TARGET_CLONES to do without.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__x86_64__) && defined(__GLIBC__) && \
    defined(__OPTIMIZE__) && !defined(__AVX2__) && !defined(__SANITIZE_THREAD__) && !defined(ZERO_NO_TARGET_CLONES)
#define ZERO_TARGET_CLONES __attribute__((target_clones("default", "avx2")))
#define ZERO_TARGET_FMA __attribute__((target("avx2,fma")))
#else
#define ZERO_TARGET_CLONES
#endif

/// Before a loop whose iterations are independent of each other: the compiler need not prove that pointers do not overlap.
#if defined(__clang__)
#define ZERO_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety) interleave(enable)")
#elif defined(__GNUC__) && !defined(__CUDACC__)
#define ZERO_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#else
#define ZERO_INDEPENDENT_LOOP
#endif

#if defined(__FAST_MATH__) && !defined(ZERO_NO_FAST_MATH_MESSAGE)
#pragma message( \
        "zero: with -ffast-math the optimizer's arithmetic may differ in the last bits between element positions; sums over ranks and the finite check do not (define ZERO_NO_FAST_MATH_MESSAGE to silence this)")
#endif
