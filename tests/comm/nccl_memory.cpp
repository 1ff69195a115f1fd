// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/nccl_memory.hpp>

#include <doctest/doctest.h>

#include <cstdint>

#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"

namespace {

using zero::NcclCommunicator;
using zero::NcclMemory;
using zero::Purpose;

}  // namespace

TEST_CASE("blocks from NCCL's allocator carry collectives, with and without windows") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks, 11);
  for (bool const windows : {false, true}) {
    zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
      NcclMemory memory(comm, {.windows = windows});
      {
        zero::Buffer<float> first(memory, 1000, Purpose::gathered);
        zero::Buffer<float> second(memory, 10, Purpose::gradients);
        zero::Buffer<float> const empty(memory, 0, Purpose::gradients);
        CHECK(memory.windows() == (windows ? 2 : 0));
        for (float& value : first.span()) value = 2.0f;  // The stand-in's device memory is the host's.
        zero::CudaStream const stream;
        comm.enqueue(stream, zero::AllReduce<float>{.send = first.data(), .receive = first.data(), .count = 1000});
        stream.synchronize();
        CHECK(first.span()[999] == 2.0f * static_cast<float>(ranks));
        comm.enqueue(stream, zero::Barrier{});
        stream.synchronize();
      }
      CHECK(memory.windows() == 0);
    });
  }
  CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
}

TEST_CASE("field case 114: a registration that gives no window is an error, and one window belongs to one block") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  zero::standin::reset_nccl({.null_windows = true});
  zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
    NcclMemory memory(comm, {.windows = true});
    CHECK_THROWS_WITH_AS(static_cast<void>(memory.allocate(100, Purpose::gathered)), doctest::Contains("no symmetric windows"),
                         zero::MemoryError);
    CHECK(memory.windows() == 0);
  });
  CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
}

TEST_CASE("a NCCL that is too old is refused, and what fails is a memory error") {
  zero::test::need_devices(1);
  zero::standin::reset_nccl({.version = 22605});
  zero::test::run_nccl(1, [](NcclCommunicator& comm) {
    CHECK_THROWS_WITH_AS(NcclMemory(comm, {.windows = true}), doctest::Contains("ncclCommWindowRegister needs NCCL 2.27.0"),
                         zero::UsageError);
    NcclMemory memory(comm);
    CHECK_THROWS_AS(static_cast<void>(memory.allocate(-1, Purpose::gathered)), zero::MemoryError);
    zero::standin::fail_nccl({.function = "ncclMemAlloc", .call = 1});
    CHECK_THROWS_WITH_AS(static_cast<void>(memory.allocate(100, Purpose::gathered)), doctest::Contains("ncclMemAlloc failed"),
                         zero::MemoryError);
  });
  zero::standin::reset_nccl({.version = 21805});
  zero::test::run_nccl(1, [](NcclCommunicator& comm) {
    CHECK_THROWS_WITH_AS(NcclMemory{comm}, doctest::Contains("ncclMemAlloc needs NCCL 2.19.0"), zero::UsageError);
  });
}

TEST_CASE("a window that cannot be registered fails the communicator, and gives the block back") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  zero::standin::fail_nccl({.function = "ncclCommWindowRegister", .rank = 0, .call = 1});
  zero::test::run_nccl(ranks,
                       [&](NcclCommunicator& comm) {
                         NcclMemory memory(comm, {.windows = true});
                         CHECK_THROWS_AS(static_cast<void>(memory.allocate(100, Purpose::gathered)), zero::MemoryError);
                       },
                       {.deadline_ms = 1000});
  CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
}
