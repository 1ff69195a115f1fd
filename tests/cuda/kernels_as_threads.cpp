// SPDX-License-Identifier: Apache-2.0
/// @file
/// Launches, packs, and the kernels of the optimizer step and of the square sum, run as threads of the host: the bits of the host's own loops.

#include "support/standin/kernel_threads.hpp"
// The kernels come after what they run on.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/device/cuda_launch.cuh>
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

void count_thread(int* counts, std::int64_t n) {
  std::int64_t const i = zero::detail::cuda_thread_index();
  if (i < n) ++counts[i];
}

/// Packs of N elements are copied alone, to and from where they lie.
template <int N, class T>
void check_pack() {
  std::vector<T> from(3 * N);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i + 1);
  std::vector<T> to(3 * N);
  T pack[N];
  zero::detail::load_pack<N>(pack, from.data() + N);
  zero::detail::store_pack<N>(to.data() + N, pack);
  for (std::size_t i = 0; i < from.size(); ++i) CHECK(to[i] == (i / N == 1 ? from[i] : T{}));
}

}  // namespace

TEST_CASE("a launch reaches each index once, and one that is too large is refused") {
  zero::standin::kernels_have_barriers = false;
  for (std::int64_t const n : {1, 255, 256, 257, 1000}) {
    CAPTURE(n);
    std::vector<int> counts(static_cast<std::size_t>(n) + 1);
    REQUIRE(zero::detail::launch_threads(zero::detail::CudaLaunch{nullptr}, n, count_thread, counts.data(), n) == cudaSuccess);
    CHECK(counts == [&] {
      std::vector<int> once(counts.size(), 1);
      once.back() = 0;
      return once;
    }());
  }
  int none = 0;
  CHECK(zero::detail::launch_kernel(zero::detail::CudaLaunch{nullptr}, std::int64_t{1} << 31, 1, count_thread, &none, std::int64_t{0}) ==
        cudaErrorInvalidConfiguration);
}

TEST_CASE("packs of 4 to 32 bytes hold their elements and nothing else") {
  check_pack<1, float>();
  check_pack<2, float>();
  check_pack<4, float>();
  check_pack<8, float>();
  check_pack<2, std::uint16_t>();
  check_pack<8, std::uint16_t>();
  check_pack<16, std::uint16_t>();
  check_pack<4, double>();
}

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
