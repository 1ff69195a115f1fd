// SPDX-License-Identifier: Apache-2.0
/// @file
/// Arrays of more than 2^31 elements on a GPU. Each case is a test of its own, skipped where the GPU's memory is short.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <zero/zero.hpp>

#include "gpu/gpu.hpp"
#include "support/large_arrays.hpp"

namespace {

constexpr std::int64_t elements = (std::int64_t{1} << 31) + 7;

void need_bytes(std::int64_t an_element) {
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  std::int64_t const needed = an_element * elements + (std::int64_t{1} << 28);
  if (static_cast<std::int64_t>(free_bytes) >= needed) return;
  std::printf("SKIPPED: %.1f GB of the GPU's memory are free, %.1f GB are needed\n", static_cast<double>(free_bytes) * 1e-9,
              static_cast<double>(needed) * 1e-9);
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace

TEST_CASE("field cases 108, 109: more than 2^31 elements are filled and copied, and nothing around them") {
  need_bytes(4);
  zero::test::Gpu gpu;
  zero::test::check_large_fill<zero::CudaDevice>(gpu.stream(0), gpu.memory(), elements);
}

TEST_CASE("field cases 108, 109: more than 2^31 elements are stepped by SGD, and nothing around them") {
  need_bytes(8);
  zero::test::Gpu gpu;
  zero::test::check_large_step<zero::CudaDevice>(gpu.stream(0), gpu.memory(), zero::SGD{.learning_rate = 0.125}, elements);
}

TEST_CASE("field cases 108, 109: more than 2^31 elements are stepped by AdamW, and nothing around them") {
  need_bytes(16);
  zero::test::Gpu gpu;
  zero::AdamW const adamw{.learning_rate = 1e-3, .weight_decay = 0.1};
  zero::test::check_large_step<zero::CudaDevice>(gpu.stream(0), gpu.memory(), adamw, elements);
}

TEST_CASE("field cases 108, 109: the squares of more than 2^31 elements are added") {
  need_bytes(2);
  zero::test::Gpu gpu;
  zero::test::check_large_square_sum<zero::CudaDevice>(gpu.stream(0), gpu.memory(), elements);
}
