// SPDX-License-Identifier: Apache-2.0
/// @file
/// The kernels of the optimizer step and of the square sum, run as threads of the host: the bits of the host's own loops.

#include "support/standin/kernel_threads.hpp"
// The kernels come after what they run on.
#include <doctest/doctest.h>

#include <cstdint>

#include <zero/train/cuda_optimizer_step.cuh>
#include <zero/train/cuda_square_sum.cuh>

#include "support/step_and_norm.hpp"

namespace {

struct HostThreads {
  zero::MemoryResource& memory() const { return zero::host_memory(); }

  template <class Step>
  void step(std::int64_t n, Step const& step) const {
    zero::standin::kernels_have_barriers = false;
    CHECK(launch_for_each(zero::detail::CudaLaunch{nullptr}, n, step) == cudaSuccess);
  }
  template <class Sum>
  void sum(Sum const& sum) const {
    zero::standin::kernels_have_barriers = true;
    CHECK(launch_accumulate(zero::detail::CudaLaunch{nullptr}, sum.parts(), sum) == cudaSuccess);
  }
};

}  // namespace

TEST_CASE("the_optimizer_step_gives_the_bits_of_the_host_at_every_alignment") {
  HostThreads runner;
  zero::test::check_steps(runner, {1, 7, 8, 9, 300, 1003});
}

TEST_CASE("the_square_sum_gives_the_bits_of_the_host_for_every_cut") {
  HostThreads runner;
#if defined(__SANITIZE_THREAD__)
  // 256 threads at barriers take that sanitizer minutes. One run of three blocks shows whether a kernel races.
  zero::test::check_square_sum<float>(runner, 0, 20'000, 128, 0);
#else
  SUBCASE("fp32") { zero::test::check_square_sums<float>(runner, {129, 10'000}); }
  SUBCASE("bf16") { zero::test::check_square_sums<zero::bf16>(runner, {3000}); }
  SUBCASE("half") { zero::test::check_square_sums<zero::half>(runner, {128}); }
  SUBCASE("fp64") { zero::test::check_square_sums<double>(runner, {700}); }
#endif
}
