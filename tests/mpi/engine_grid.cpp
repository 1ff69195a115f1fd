// SPDX-License-Identifier: Apache-2.0
/// @file
/// The core's exact, family, accounting and norm tests over MPI processes, whose sums `Ordered` forms in the order of the threads.

#include "train/engine_grid.hpp"

#include <zero/comm/mpi.hpp>

#include <doctest/doctest.h>

#include <zero/comm/counting.hpp>
#include <zero/comm/ordered.hpp>

#include "support/engine.hpp"
#include "support/ranks.hpp"

namespace {

using namespace zero::test;
using zero::MpiCommunicator;
using zero::Ordered;

/// Each rank is a process; the settings' number of ranks is the job's.
struct MpiEngine {
  using Group = zero::Counting<Ordered<zero::Counting<MpiCommunicator>>>;
  using Stages = GridStages;

  template <class Body>
  static void run(Setting const& setting, Body const& body) {
    zero::Traffic moved, traffic;
    MpiCommunicator comm(MPI_COMM_WORLD, {.deadline_ms = 60'000});
    int const rank = comm.rank();
    Group group{Ordered{zero::Counting<MpiCommunicator>{std::move(comm), moved}, zero::host_memory(), {.staging_bytes = 4096}}, traffic};
    zero::PoisoningResource memory{zero::host_memory()};
    HostStreams const streams(setting, rank);
    body(Seat<Group>{group, streams.streams(), memory, traffic, moved, nullptr});
  }
};

static_assert(Engine<MpiEngine> && Engine<ThreadEngine>);

}  // namespace

TEST_CASE("exact sums over MPI are the unsharded ones") { check_grid_exact_sums<MpiEngine>(zero::test::ranks()); }
TEST_CASE("field cases 86, 112: sums that are rounded have the bits of the threads over MPI") {
  check_grid_families<MpiEngine>(zero::test::ranks());
}
TEST_CASE("bytes moved and held over MPI are the planned ones") { check_grid_accounting<MpiEngine>(zero::test::ranks()); }
TEST_CASE("field cases 21, 73, 74: the norm and the decision of a step over MPI have the bits of one rank") {
  check_grid_norms<MpiEngine>(zero::test::ranks());
}
