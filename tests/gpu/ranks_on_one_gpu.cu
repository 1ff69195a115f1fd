// SPDX-License-Identifier: Apache-2.0
/// @file
/// One of several processes over NCCL that share a GPU, started by ranks_on_one_gpu.sh with the variables of torchrun: conformance, and training
/// at every stage against the threads of the host. What NCCL says against ranks that share a GPU skips the program.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/launch_environment.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_start.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/zero.hpp>

#include "gpu/gpu.hpp"
#include "support/group_training.hpp"
#include "support/nccl_ranks.hpp"

namespace {

using zero::NcclCommunicator;
using zero::test::GroupTrained;

/// The ranks of this launch, which start once. Not destroyed: CUDA may have ended by then.
NcclCommunicator& group() {
  static std::optional<NcclCommunicator>* const ranks = new std::optional<NcclCommunicator>;
  if (*ranks) return **ranks;
  try {
    ranks->emplace(zero::nccl_from_environment({.deadline_ms = 120'000}));
  } catch (zero::NcclError const& error) {
    // NCCL's answer where two ranks have one GPU.
    if (error.result() != ncclInvalidUsage) throw;
    std::printf("SKIPPED: this NCCL takes no two ranks on one GPU: %s\n", error.what());
    std::fflush(stdout);
    std::_Exit(77);
  }
  return **ranks;
}

struct Processes {
  static constexpr bool one_rank_a_process = true;
  template <class Body>
  static void run(int, Body const& body) {
    body(group());
  }
};

struct OrderedProcesses {
  static constexpr bool one_rank_a_process = true;
  template <class Body>
  static void run(int, Body const& body) {
    zero::CudaMemory memory;
    zero::Ordered comm{zero::Borrowed{group()}, memory, {.staging_bytes = 3000}};
    body(comm);
  }
};

static_assert(Processes::one_rank_a_process && OrderedProcesses::one_rank_a_process);  // nvcc sees no other use

/// Training over `adapt(communicator, memory)` leaves on this rank what it leaves on the same rank of the threads.
template <class S, class P, class Adapt>
void check_training(bool integers, Adapt const& adapt) {
  NcclCommunicator& comm = group();
  std::vector<GroupTrained> const expected = zero::test::train_over_threads<S, P>(comm.size(), integers);
  zero::CudaStream const compute;
  zero::CudaStream const communication;
  zero::CudaMemory memory;
  zero::Traffic traffic;
  auto adapted = adapt(comm, memory);
  zero::Counting counting{zero::Borrowed{adapted}, traffic};
  GroupTrained const trained = zero::test::train_group<S, P>(counting, {compute, communication}, memory, traffic, integers);
  GroupTrained const& of_threads = expected[static_cast<std::size_t>(comm.rank())];
  CHECK(trained.norms == of_threads.norms);
  CHECK(trained.parameters == of_threads.parameters);
  CHECK(trained == of_threads);
}

template <class S, class P>
void check_stage() {
  check_training<S, P>(true, [](NcclCommunicator& comm, zero::MemoryResource&) { return zero::Borrowed{comm}; });
  check_training<S, P>(false, [](NcclCommunicator& comm, zero::MemoryResource& memory) {
    return zero::Ordered{zero::Borrowed{comm}, memory};
  });
}

using Fp32 = zero::Precision<float>;
using Bf16 = zero::Precision<zero::bf16>;

}  // namespace

// One test case, because its parts share the communicator and its end.
TEST_CASE("ranks on one GPU conform, and train to the bits of the threads at every stage") {
  NcclCommunicator& comm = group();
  int version = 0;
  ncclGetVersion(&version);
  MESSAGE("NCCL " << version << ", rank " << comm.rank() << " of " << comm.size());
  zero::test::conformance<Processes>(comm.size());
  zero::test::conformance<OrderedProcesses>(comm.size());
  check_stage<zero::Stage0, Bf16>();
  check_stage<zero::Stage1, Fp32>();
  check_stage<zero::Stage2, Bf16>();
  check_stage<zero::Stage2, Fp32>();
  check_stage<zero::Stage3, Fp32>();
  check_stage<zero::Stage3, Bf16>();
  comm.finalize();
}
