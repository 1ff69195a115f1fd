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
  using P = zero::Precision<zero::bf16>;
  zero::standin::reset();
  Trained const expected = on_cuda<zero::Stage2, P>(true);
  std::int64_t const calls = zero::standin::calls();
  CHECK(calls > 500);
  int refused = 0;
  // All calls of the start, of the first steps and of the end; a third of those in between.
  for (std::int64_t call = 1; call <= calls; call += call < 300 || call > calls - 150 ? 1 : 3) {
    zero::standin::reset();
    zero::standin::fail({.call = call, .from_then_on = call % 2 == 0});
    try {
      Trained const trained = on_cuda<zero::Stage2, P>(true);
      CHECK_MESSAGE(trained == expected, call);
    } catch (zero::DeviceError const&) {
      ++refused;
    } catch (zero::MemoryError const&) {
      ++refused;
    }
    zero::standin::fail({});
    cudaSetDevice(0);
    CHECK_MESSAGE(zero::standin::live() == Live{}, call);
  }
  CHECK(refused > calls / 4);
}
