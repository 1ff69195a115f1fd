// SPDX-License-Identifier: Apache-2.0
/// @file
/// Training on a GPU, one rank: the bits of the host at every stage.

#include <doctest/doctest.h>

#include <zero/zero.hpp>

#include "gpu/gpu.hpp"
#include "support/device_training.hpp"

namespace {

template <class S, class P>
void check_bits() {
  auto const here = zero::HostStreamRef::calling_thread();
  zero::test::Trained const host = zero::test::train_alone<zero::HostDevice, S, P>({here, here}, zero::host_memory());
  zero::test::Gpu gpu;
  for (std::size_t other : {0, 1}) {
    zero::test::Trained const device = zero::test::train_alone<zero::CudaDevice, S, P>({gpu.stream(0), gpu.stream(other)}, gpu.memory());
    CHECK(device.norms == host.norms);
    CHECK(device.parameters == host.parameters);
    CHECK(device == host);
  }
}

}  // namespace

TEST_CASE("the_stages_train_to_the_bits_of_the_host") {
  SUBCASE("Stage0, bf16") { check_bits<zero::Stage0, zero::Precision<zero::bf16>>(); }
  SUBCASE("Stage1, fp32") { check_bits<zero::Stage1, zero::Precision<float>>(); }
  SUBCASE("Stage3, bf16") { check_bits<zero::Stage3, zero::Precision<zero::bf16>>(); }
}
