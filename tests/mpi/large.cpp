// SPDX-License-Identifier: Apache-2.0
/// @file
/// field case 108: two MPI processes move more than 2^31 elements and more than 2^31 bytes at a time; field case 109: and write nothing beside
/// their buffers.

#include <zero/comm/mpi_environment.hpp>

#include <cstdint>
#include <cstdio>

#include <zero/comm/mpi.hpp>

#include "comm/large_counts.hpp"

int main(int argc, char** argv) {
  return zero::run_mpi(argc, argv, [](zero::MpiCommunicator& world) {
    // Both ranks must decide alike, so one decides.
    constexpr int needed_gib = 11;  // Of which MPI takes up to 4.
    std::int64_t available = zero::test::available_memory();
    world.enqueue(zero::HostStreamRef::calling_thread(), zero::Broadcast<std::int64_t>{.buffer = &available, .count = 1});
    if (available < std::int64_t{needed_gib} << 30) {
      if (world.rank() == 0) {
        std::printf("SKIPPED: %.1f GiB of memory are free here, %d are needed\n", static_cast<double>(available) / (1 << 30), needed_gib);
        std::fflush(stdout);
      }
      return 77;
    }
    zero::test::LargeCounts<zero::MpiCommunicator>(world).run();
    return 0;
  });
}
