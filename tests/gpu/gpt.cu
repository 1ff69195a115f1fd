// SPDX-License-Identifier: Apache-2.0
/// @file
/// The example trainer's model on a GPU, with cuBLAS, against the host's: logits, loss and all gradients.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>

#include <zero/zero.hpp>

#include "gpt/cublas.hpp"
#include "gpt/device_math.hpp"
#include "gpu/gpu.hpp"
#include "support/gpt_on_device.hpp"

namespace {

constexpr gpt::Config odd{.layers = 2, .heads = 3, .channels = 21, .context = 11, .vocabulary = 29, .batch = 2};
constexpr gpt::Config even{.layers = 2, .heads = 4, .channels = 128, .context = 64, .vocabulary = 256, .batch = 3};

template <class T>
void run_on_gpu(zero::test::GptCase<T> const& example, zero::test::GptOutcome<T>& outcome) {
  zero::CudaStream const stream;
  zero::CudaStreamMemory memory{stream};
  gpt::Cublas products{stream.native()};
  example.run_on_device(gpt::DeviceMath<zero::CudaDevice, gpt::Cublas>{stream, memory, products}, outcome);
}

/// fp32 sums of up to 512 terms in another order, and contracted, differ by a few 1e-7 relatively, and a pass chains two dozen of them. A
/// gradient in bf16 is rounded by up to 2^-9 of itself each time it is added to, here at most twice, on both sides.
template <class T>
void check(gpt::Config const& config) {
  double const tolerance = 3e-5;
  double const gradient_tolerance = sizeof(T) == 4 ? 3e-5 : 0x1p-7;
  zero::test::GptCase<T> const example(config);
  zero::test::GptOutcome<T> host(config), gpu(config), again(config);
  example.run_on_host(host);
  run_on_gpu(example, gpu);
  CHECK(gpu.loss == doctest::Approx(host.loss).epsilon(tolerance));
  CHECK(zero::test::relative_error(gpu.logits, host.logits, host.logits.size()) < tolerance);
  for (zero::ParameterId const id : host.gradients.layout.parameters()) {
    auto const& expected = host.gradients.values[static_cast<std::size_t>(id)];
    double const error = zero::test::relative_error(gpu.gradients.values[static_cast<std::size_t>(id)], expected, expected.size());
    CHECK_MESSAGE(error < gradient_tolerance, host.gradients.layout.name(id) << " differs by " << error);
  }
  run_on_gpu(example, again);
  CHECK(again.loss == gpu.loss);
  CHECK(again.logits == gpu.logits);
  for (std::size_t p = 0; p < gpu.gradients.values.size(); ++p) {
    auto const& first = gpu.gradients.values[p];
    CHECK(std::memcmp(again.gradients.values[p].data(), first.data(), first.size() * sizeof(T)) == 0);
  }
}

}  // namespace

TEST_CASE("the_gpt_on_a_gpu_agrees_with_the_host_and_repeats_its_bits") {
  SUBCASE("fp32, odd sizes") { check<float>(odd); }
  SUBCASE("fp32, even sizes") { check<float>(even); }
  SUBCASE("bf16, odd sizes") { check<zero::bf16>(odd); }
  SUBCASE("bf16, even sizes") { check<zero::bf16>(even); }
}
