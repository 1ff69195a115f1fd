// SPDX-License-Identifier: Apache-2.0
/// @file
/// Training of several ranks over NCCL and CUDA streams, over the stand-ins of both or on GPUs: the bits and bytes of the thread transport, with
/// gradients whose sums are exact in any order, and with any gradients where `Ordered` forms the sums.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_memory.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/comm/separate_communicators.hpp>
#include <zero/device/cuda_memory.hpp>

#include "support/group_training.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"
#if defined(ZERO_TEST_STANDIN)
#include "support/standin/standin_kernels.hpp"
#else
#include <zero/device/cuda_kernels.cuh>
#endif

namespace {

using zero::CudaMemory;
using zero::CudaStream;
using zero::CudaStreamRef;
using zero::MemoryResource;
using zero::NcclCommunicator;
using zero::test::GroupTrained;

/// Before NCCL asks for it, which it does once. One communicator does not mind.
[[maybe_unused]] int const implicit_launch_order = ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);

/// `adapt(communicator, memory)` is what the training uses, with a stream for reductions or without.
template <class S, class P, class Adapt>
std::vector<GroupTrained> over_nccl(int ranks, bool integers, std::uint64_t seed, Adapt const& adapt, bool separate = false) {
  zero::test::need_devices(ranks, seed);
  std::vector<GroupTrained> results(static_cast<std::size_t>(ranks));
  zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const compute;
    CudaStream const communication;
    std::optional<CudaStream> own;
    if (separate) own.emplace();
    CudaStreamRef const reductions = separate ? CudaStreamRef(*own) : CudaStreamRef(communication);
    CudaMemory memory;
    zero::Traffic traffic;
    auto adapted = adapt(comm, memory);
    zero::Counting counting{zero::Borrowed{adapted}, traffic};
    results[static_cast<std::size_t>(comm.rank())] =
        zero::test::train_group<S, P>(counting, {compute, communication, reductions}, memory, traffic, integers);
    comm.finalize();  // Nobody frees memory while others still work: cudaFree waits for all streams of the process.
  });
#if defined(ZERO_TEST_STANDIN)
  CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
#endif
  return results;
}

template <class S, class P>
void check_integers() {
  int const ranks = zero::test::ranks();
  auto const expected = zero::test::train_over_threads<S, P>(ranks, true);
  CHECK(expected[0].norms[0] > 1.0);
  for (std::uint64_t const seed : {0, 1, 2}) {
    CAPTURE(seed);
    CHECK((over_nccl<S, P>(ranks, true, seed, [](NcclCommunicator& comm, MemoryResource&) { return zero::Borrowed{comm}; }) == expected));
  }
}

template <class S, class P>
void check_ordered() {
  int const ranks = zero::test::ranks();
  auto const expected = zero::test::train_over_threads<S, P>(ranks, false);
#if defined(ZERO_TEST_STANDIN)
  // Else these gradients would prove nothing: two addends have only one order. Which one NCCL takes for more is its own matter.
  auto const plain = over_nccl<S, P>(ranks, false, 0, [](NcclCommunicator& comm, MemoryResource&) { return zero::Borrowed{comm}; });
  CHECK((plain == expected) == (ranks <= 2));
#endif
  for (std::uint64_t const seed : {0, 1}) {
    CAPTURE(seed);
    CHECK((over_nccl<S, P>(ranks, false, seed, [](NcclCommunicator& comm, MemoryResource& memory) {
             return zero::Ordered{zero::Borrowed{comm}, memory};
           }) == expected));
  }
}

/// Two communicators and three streams.
template <class S, class P>
void check_separate() {
  if (zero::nccl_version() < 22600) {
    MESSAGE("SKIPPED: two communicators at once need NCCL 2.26");
    return;
  }
  int const ranks = zero::test::ranks();
  auto const exact = zero::test::train_over_threads<S, P>(ranks, true);
  auto const rounded = zero::test::train_over_threads<S, P>(ranks, false);
  for (std::uint64_t const seed : {0, 1, 2}) {
    CAPTURE(seed);
    CHECK((over_nccl<S, P>(
               ranks, true, seed,
               [](NcclCommunicator& comm, MemoryResource&) {
                 return zero::SeparateCommunicators{zero::Borrowed{comm}, comm.duplicate()};
               },
               true) == exact));
    CHECK((over_nccl<S, P>(
               ranks, false, seed,
               [](NcclCommunicator& comm, MemoryResource& memory) {
                 return zero::SeparateCommunicators{zero::Borrowed{comm}, zero::Ordered{comm.duplicate(), memory}};
               },
               true) == rounded));
  }
}

#if defined(ZERO_TEST_STANDIN)
/// Training in memory from NCCL's allocator, with and without windows, reserved or not: the bits of plain memory.
template <class S, class P>
void check_nccl_memory() {
  int const ranks = zero::test::ranks();
  auto const expected = over_nccl<S, P>(ranks, false, 0, [](NcclCommunicator& comm, MemoryResource&) { return zero::Borrowed{comm}; });
  for (auto const& [windows, reserve] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    CAPTURE(windows);
    CAPTURE(reserve);
    zero::test::need_devices(ranks, 3);
    std::vector<GroupTrained> results(static_cast<std::size_t>(ranks));
    zero::test::run_nccl(ranks, [&, windows = windows, reserve = reserve](NcclCommunicator& comm) {
      CudaStream const compute;
      CudaStream const communication;
      zero::NcclMemory memory(comm, {.windows = windows});
      zero::Traffic traffic;
      zero::Counting counting{zero::Borrowed{comm}, traffic};
      std::vector<std::int64_t> registered;  // after what was reserved, and after each step
      auto const look = [&] { registered.push_back(zero::standin::nccl_calls("ncclCommWindowRegister", comm.rank())); };
      results[static_cast<std::size_t>(comm.rank())] =
          zero::test::train_group<S, P>(counting, {compute, communication}, memory, traffic, false, look, reserve);
      // What was not reserved is allocated in the first step; in later ones nobody waits for peers to register.
      CHECK((registered[0] > 0) == windows);
      CHECK(registered == std::vector<std::int64_t>(reserve ? 4 : 3, registered[0]));
      CHECK(memory.windows() == 0);
      comm.finalize();
    });
    CHECK((results == expected));
    CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
  }
}

/// How often a rank has asked CUDA for what may wait for the device.
std::int64_t allocating_calls(int rank) {
  std::int64_t sum = 0;
  auto const of_cuda = zero::standin::calls_of(rank);
  for (char const* function : {"cudaMalloc", "cudaFree", "cudaMallocHost", "cudaHostAlloc", "cudaFreeHost", "cudaEventCreateWithFlags",
                               "cudaEventDestroy", "cudaStreamCreateWithPriority"}) {
    auto const found = of_cuda.find(function);
    if (found != of_cuda.end()) sum += found->second;
  }
  return sum;
}

/// From the reservation to the last step.
template <class S, class P>
void check_no_allocation_after_reserve() {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks, 0);
  zero::test::run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const compute;
    CudaStream const communication;
    CudaMemory memory;
    zero::Traffic traffic;
    zero::Counting counting{zero::Ordered{zero::Borrowed{comm}, memory}, traffic};
    std::vector<std::int64_t> calls;
    static_cast<void>(zero::test::train_group<S, P>(
        counting, {compute, communication}, memory, traffic, false, [&] { calls.push_back(allocating_calls(comm.rank())); }, true));
    CHECK(calls[0] > 0);
    CHECK(calls == std::vector<std::int64_t>(4, calls[0]));
    comm.finalize();
  });
}
#endif

using Fp32 = zero::Precision<float>;
using Bf16 = zero::Precision<zero::bf16>;
using Half = zero::Precision<zero::half>;

}  // namespace

TEST_CASE("integer gradients over NCCL give the bits and bytes of the threads") {
  SUBCASE("Stage0, fp32") { check_integers<zero::Stage0, Fp32>(); }
  SUBCASE("Stage1, bf16") { check_integers<zero::Stage1, Bf16>(); }
  SUBCASE("Stage2, bf16") { check_integers<zero::Stage2, Bf16>(); }
  SUBCASE("Stage3, fp32") { check_integers<zero::Stage3, Fp32>(); }
}

TEST_CASE("field case 79: training in half over NCCL, whose sums are multiplied before they are rounded") {
  SUBCASE("Stage1") { check_integers<zero::Stage1, Half>(); }
  SUBCASE("Stage3") { check_integers<zero::Stage3, Half>(); }
}

TEST_CASE("field case 112: any gradients over NCCL give the bits of the threads where Ordered forms the sums") {
  SUBCASE("Stage0, bf16") { check_ordered<zero::Stage0, Bf16>(); }
  SUBCASE("Stage1, fp32") { check_ordered<zero::Stage1, Fp32>(); }
  SUBCASE("Stage2, fp32") { check_ordered<zero::Stage2, Fp32>(); }
  SUBCASE("Stage3, bf16") { check_ordered<zero::Stage3, Bf16>(); }
}

TEST_CASE(
    "field cases 64, 112: gathers and reductions over communicators and streams of their own give the bits and bytes of the threads") {
  SUBCASE("Stage0, bf16") { check_separate<zero::Stage0, Bf16>(); }
  SUBCASE("Stage1, fp32") { check_separate<zero::Stage1, Fp32>(); }
  SUBCASE("Stage2, bf16") { check_separate<zero::Stage2, Bf16>(); }
  SUBCASE("Stage3, fp32") { check_separate<zero::Stage3, Fp32>(); }
}

#if defined(ZERO_TEST_STANDIN)
TEST_CASE(
    "field case 115: memory from NCCL, whose windows are registered before the first pass where it was reserved, gives the bits of plain memory") {
  SUBCASE("Stage1, bf16") { check_nccl_memory<zero::Stage1, Bf16>(); }
  SUBCASE("Stage3, fp32") { check_nccl_memory<zero::Stage3, Fp32>(); }
}

TEST_CASE("what was reserved is all that CUDA is asked for in a loop: memory, streams, events") {
  SUBCASE("Stage1, bf16") { check_no_allocation_after_reserve<zero::Stage1, Bf16>(); }
  SUBCASE("Stage3, fp32") { check_no_allocation_after_reserve<zero::Stage3, Fp32>(); }
}
#endif
