// SPDX-License-Identifier: Apache-2.0
/// @file
/// The core's exact, family, accounting and norm tests over NCCL and CUDA streams, with the stand-ins of both. `Ordered` forms the sums in the
/// order of the threads.

#include "train/engine_grid.hpp"

#include <doctest/doctest.h>

#include <optional>

#include <zero/comm/counting.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/cuda_stream.hpp>

#include "support/engine.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"
#include "support/standin/standin_kernels.hpp"

namespace {

using namespace zero::test;
using zero::Counting;
using zero::NcclCommunicator;
using zero::Ordered;

/// Each rank is a thread with a device of its own.
struct NcclEngine {
  using Group = Counting<Ordered<Counting<zero::Borrowed<NcclCommunicator>>>>;
  using Stages = GridStages;

  template <class Body>
  static void run(Setting const& setting, Body const& body) {
    need_devices(setting.ranks, setting.delay_seed);
    zero::run_ranks(setting.ranks, [&](zero::ThreadCommunicator& threads) {
      this_is_rank(threads.rank());
      zero::detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), {});
      NcclCommunicator comm = zero::nccl_over(threads, {.deadline_ms = 60'000});
      zero::CudaStream const compute;
      std::optional<zero::CudaStream> communication;
      if (setting.streams == StreamMode::two_workers) communication.emplace();
      zero::CudaMemory memory;
      zero::Traffic moved, traffic;
      Group group{Ordered{Counting{zero::Borrowed{comm}, moved}, memory, {.staging_bytes = 4096}}, traffic};
      std::int64_t const started = setting.ranks == 1 ? zero::standin::nccl_calls() : 0;
      body(Seat<Group>{group,
                       {compute, communication ? zero::CudaStreamRef(*communication) : zero::CudaStreamRef(compute)},
                       memory,
                       traffic,
                       moved,
                       &threads});
      if (setting.ranks == 1) CHECK(zero::standin::nccl_calls() == started);
    });
    CHECK(zero::standin::live_nccl() == zero::standin::NcclLive{});
  }
};

static_assert(Engine<NcclEngine>);

}  // namespace

TEST_CASE("exact sums over NCCL are the unsharded ones") { check_grid_exact_sums<NcclEngine>(zero::test::ranks()); }
TEST_CASE("field cases 86, 112: sums that are rounded have the bits of the threads over NCCL") {
  check_grid_families<NcclEngine>(zero::test::ranks());
}
TEST_CASE("bytes moved and held over NCCL are the planned ones; one rank calls nothing of it") {
  check_grid_accounting<NcclEngine>(zero::test::ranks());
}
TEST_CASE("field cases 21, 73, 74: the norm and the decision of a step over NCCL have the bits of one rank") {
  check_grid_norms<NcclEngine>(zero::test::ranks());
}
