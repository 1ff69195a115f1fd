// SPDX-License-Identifier: Apache-2.0
/// @file
/// The checks of support/large_arrays.hpp on the host with small arrays: tests/gpu/large_arrays.cu has the large ones.

#include <doctest/doctest.h>

#include <cstdint>

#include <zero/device/host_device.hpp>
#include <zero/device/host_stream.hpp>

#include "support/large_arrays.hpp"

using zero::HostDevice;

TEST_CASE("what a device does to an array is checked in every element") {
  zero::HostStream const stream;
  for (std::int64_t const n : {1, 300, 257'000, 600'007}) {
    CAPTURE(n);
    zero::test::check_large_fill<HostDevice>(stream, zero::host_memory(), n);
    zero::test::check_large_step<HostDevice>(stream, zero::host_memory(), zero::SGD{.learning_rate = 0.125}, n);
    zero::test::check_large_step<HostDevice>(stream, zero::host_memory(), zero::AdamW{.learning_rate = 1e-3, .weight_decay = 0.1}, n);
    zero::test::check_large_square_sum<HostDevice>(stream, zero::host_memory(), n);
  }
}

TEST_CASE("one other element and one written byte of a guard are found") {
  zero::HostStream const stream;
  std::int64_t const n = 1000;
  zero::test::GuardedArray<HostDevice, float> array(stream, zero::host_memory(), n);
  HostDevice::fill(stream, array.data(), n, 1.0f);
  CHECK(zero::test::repeats<HostDevice>(stream, zero::host_memory(), array.data(), n, 1));
  array.data()[n - 1] = 2;
  CHECK_FALSE(zero::test::repeats<HostDevice>(stream, zero::host_memory(), array.data(), n, 1));
  CHECK(array.guards_are_whole());
  array.data()[n] = 2;
  CHECK_FALSE(array.guards_are_whole());
}
