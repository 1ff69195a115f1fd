// SPDX-License-Identifier: Apache-2.0
/// @file
/// The example trainer with --device cuda over the stand-ins of the CUDA runtime and of cuBLAS, whose products are plain loops as the host's are
/// here: the bits of the host in logits, loss, gradients and training.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <zero/zero.hpp>
// The kernels of the stand-in come before what calls them.
#include "support/standin/standin_kernels.hpp"

#include "gpt/cublas.hpp"
#include "gpt/device_math.hpp"
#include "gpt/report.hpp"
#include "gpt/train_cuda.hpp"
#include "gpt/trainer.hpp"
#include "support/gpt_on_device.hpp"
#include "support/standin/standin_cuda.hpp"
#if defined(ZERO_HAS_NCCL)
#include <zero/comm/nccl_start.hpp>

#include "support/standin/standin_nccl.hpp"
#endif

namespace {

using zero::CudaDevice;

// Sizes that are multiples of nothing, and some that are.
constexpr gpt::Config odd{.layers = 2, .heads = 3, .channels = 21, .context = 11, .vocabulary = 29, .batch = 2};
constexpr gpt::Config even{.layers = 1, .heads = 1, .channels = 32, .context = 16, .vocabulary = 64, .batch = 1};

template <class T>
void check_bits(gpt::Config const& config) {
  zero::test::GptCase<T> const example(config);
  zero::test::GptOutcome<T> host(config, 0.5f);
  example.run_on_host(host);
  for (std::uint64_t seed = 0; seed <= 3; ++seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 20});
    zero::test::GptOutcome<T> cuda(config, 0.5f);
    {
      zero::CudaStream const stream;
      zero::CudaStreamMemory memory{stream};
      gpt::Cublas products{stream.native()};
      example.run_on_device(gpt::DeviceMath<CudaDevice, gpt::Cublas>{stream, memory, products}, cuda);
    }
    CHECK(zero::standin::live() == zero::standin::Live{});
    CHECK(cuda.loss == host.loss);
    CHECK(cuda.logits == host.logits);
    for (zero::ParameterId const id : host.gradients.layout.parameters()) {
      auto const p = static_cast<std::size_t>(id);
      bool equal = true;
      for (std::size_t i = 0; i < host.gradients.values[p].size(); ++i) {
        equal = equal && static_cast<float>(cuda.gradients.values[p][i]) == static_cast<float>(host.gradients.values[p][i]);
      }
      CHECK_MESSAGE(equal, host.gradients.layout.name(id));
    }
  }
}

gpt::Text some_text() {
  gpt::Text text;
  for (std::uint64_t i = 0; i < 5000; ++i) text.training.push_back(static_cast<std::uint16_t>(zero::mixed_bits(i / 3) % 61));
  text.validation = text.training;
  return text;
}

gpt::Options few_steps(int ranks) {
  gpt::Options options;
  options.ranks = ranks;
  options.config = {.layers = 2, .heads = 2, .channels = 16, .context = 8, .vocabulary = 61, .batch = 2};
  options.micro_batches = 2;
  options.steps = 4;
  options.validate_every = 2;
  options.generate = 12;
  options.prompt = "\n\t";
  options.quiet = true;
  return options;
}

/// What main does for --device cuda.
template <class Stage, class Precision>
gpt::RunResult train_on_cuda(gpt::World const& world, gpt::Options options, gpt::Text const& text) {
  options.device = gpt::Processor::cuda;
  return gpt::train_with_gpus<Stage, Precision>(world, options, text);
}

void check_equal(gpt::RunResult const& cuda, gpt::RunResult const& host, gpt::Options const& options) {
  CHECK(host.curve.training.size() == 4);
  CHECK(host.curve.validation.size() == 2);
  CHECK(gpt::same_losses(cuda, host));
  CHECK(cuda.text == host.text);
  CHECK(gpt::as_planned(cuda, options));
}

template <class Stage, class Precision>
void check_training_alone() {
  gpt::Text const text = some_text();
  gpt::Options const options = few_steps(1);
  gpt::RunResult const host = gpt::train_with_threads<Stage, Precision>(options, text);
  zero::standin::reset({.delay_seed = 5, .max_delay_us = 20});
  check_equal(train_on_cuda<Stage, Precision>({}, options, text), host, options);
  CHECK(zero::standin::live() == zero::standin::Live{});
}

}  // namespace

TEST_CASE("a_pass_on_cuda_gives_the_bits_of_the_host") {
  SUBCASE("fp32, odd sizes") { check_bits<float>(odd); }
  SUBCASE("fp32, even sizes") { check_bits<float>(even); }
  SUBCASE("bf16, odd sizes") { check_bits<zero::bf16>(odd); }
  SUBCASE("bf16, even sizes") { check_bits<zero::bf16>(even); }
}

TEST_CASE("training_on_cuda_gives_the_losses_and_the_text_of_the_host") {
  SUBCASE("Stage0, fp32") { check_training_alone<zero::Stage0, zero::Precision<float>>(); }
  SUBCASE("Stage3, bf16") { check_training_alone<zero::Stage3, zero::Precision<zero::bf16>>(); }
}

#if defined(ZERO_HAS_NCCL)

TEST_CASE("two_ranks_over_nccl_processes_or_threads_give_the_losses_of_two_threads") {
  using Precision = zero::Precision<zero::bf16>;
  gpt::Text const text = some_text();
  gpt::Options const options = few_steps(2);
  gpt::RunResult const host = gpt::train_with_threads<zero::Stage3, Precision>(options, text);
  zero::standin::reset({.devices = 2});
  zero::standin::reset_nccl();
  gpt::RunResult cuda;
  zero::run_ranks(2, [&](zero::ThreadCommunicator& threads) {
    zero::standin::set_nccl_rank(threads.rank());
    CHECK(cudaSetDevice(threads.rank()) == cudaSuccess);
    zero::NcclCommunicator communicator = zero::nccl_over(threads, {.deadline_ms = 60'000});
    gpt::RunResult result = train_on_cuda<zero::Stage3, Precision>({.nccl = &communicator}, options, text);
    if (threads.rank() == 0) cuda = result;
  });
  check_equal(cuda, host, options);
  // What main does for --device cuda --ranks 2.
  check_equal(train_on_cuda<zero::Stage3, Precision>({}, options, text), host, options);
}

#endif
