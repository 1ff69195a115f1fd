// SPDX-License-Identifier: Apache-2.0
/// @file
/// Training on CUDA streams over the stand-in runtime: the bits of the host at every stage, in device memory that the host does not touch, and
/// every call of CUDA made to fail.

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>

#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/host_device.hpp>
#include <zero/train/stage.hpp>

#include "support/device_training.hpp"
#include "support/failing_calls.hpp"
#include "support/standin/standin_cuda.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using zero::CudaDevice;
using zero::CudaMemory;
using zero::CudaStream;
using zero::HostDevice;
using zero::HostStreamRef;
using zero::standin::Live;
using zero::test::Trained;

template <class S, class P>
Trained on_host() {
  auto const here = HostStreamRef::calling_thread();
  return zero::test::train_alone<HostDevice, S, P>({here, here}, zero::host_memory());
}

template <class S, class P>
Trained on_cuda(bool overlap) {
  CudaStream const compute{{.events = 4}};
  std::optional<CudaStream> communication;
  if (overlap) communication.emplace(zero::CudaStreamOptions{.events = 4});
  CudaMemory memory;
  return zero::test::train_alone<CudaDevice, S, P>({compute, overlap ? zero::CudaStreamRef(*communication) : zero::CudaStreamRef(compute)},
                                                   memory);
}

template <class S, class P>
void check_bits() {
  Trained const host = on_host<S, P>();
  CHECK(host.applied == 5);
  CHECK(host.skipped == 1);
  for (std::uint64_t seed = 0; seed <= 6; ++seed) {
    zero::standin::reset({.delay_seed = seed, .max_delay_us = 100});
    Trained const cuda = on_cuda<S, P>(seed % 2 == 0);
    CHECK_MESSAGE(cuda == host, seed);
    CHECK(zero::standin::live() == Live{});
  }
}

}  // namespace

TEST_CASE("the_stages_train_to_the_bits_of_the_host") {
  SUBCASE("Stage0, bf16") { check_bits<zero::Stage0, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage1, fp32") { check_bits<zero::Stage1, zero::Precision<float>>(); }
  SUBCASE("Stage2, bf16") { check_bits<zero::Stage2, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage3, fp32") { check_bits<zero::Stage3, zero::Precision<float>>(); }
}

TEST_CASE("memory_of_the_host_is_refused") {
  zero::standin::reset();
  CudaStream const stream;
  CHECK_THROWS_WITH_AS((static_cast<void>(zero::test::train_alone<CudaDevice, zero::Stage0, zero::Precision<zero::bf16>>(
                           {stream, stream}, zero::host_memory()))),
                       doctest::Contains("the CUDA device cannot use it"), zero::UsageError);
}

TEST_CASE("every_call_of_cuda_may_fail_in_training: a typed error, nothing lost, nothing hangs") {
  // All calls of the start, of the first steps and of the end; a third of those in between.
  zero::test::check_failing_calls([] { return on_cuda<zero::Stage2, zero::Precision<zero::bf16>>(true); }, 4,
                                  [](std::int64_t call, std::int64_t calls) {
                                    CHECK(calls > 500);
                                    return call < 300 || call > calls - 150 ? 1 : 3;
                                  });
}
