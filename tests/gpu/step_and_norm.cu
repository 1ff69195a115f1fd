// SPDX-License-Identifier: Apache-2.0
/// @file
/// The optimizer step and the square sum on a GPU: the bits of the host. (Contraction is on for other code: these do not depend on it.)

#include <doctest/doctest.h>

#include <zero/zero.hpp>

#include "gpu/gpu.hpp"
#include "support/step_and_norm.hpp"

TEST_CASE("the_optimizer_step_gives_the_bits_of_the_host_at_every_alignment") {
  zero::test::GpuWithPinnedMemory gpu;
  zero::test::check_steps(gpu, {1, 7, 8, 9, 300, 1003, 100'003});
}

TEST_CASE("the_square_sum_gives_the_bits_of_the_host_for_every_cut") {
  zero::test::GpuWithPinnedMemory gpu;
  SUBCASE("fp32") { zero::test::check_square_sums<float>(gpu, {1, 15, 128, 129, 1000, 20'000, 3'000'001}); }
  SUBCASE("bf16") { zero::test::check_square_sums<zero::bf16>(gpu, {1, 15, 128, 129, 1000, 20'000, 3'000'001}); }
  SUBCASE("half") { zero::test::check_square_sums<zero::half>(gpu, {1, 15, 128, 129, 1000, 20'000, 3'000'001}); }
  SUBCASE("fp64") { zero::test::check_square_sums<double>(gpu, {1, 15, 128, 129, 1000, 20'000, 3'000'001}); }
}
