// SPDX-License-Identifier: Apache-2.0
/// @file
/// A consumer's program over MPI, which starts without a launcher too: a job of one process.

#include <zero/comm/mpi_environment.hpp>
#include <zero/zero.hpp>

#include <cstdio>

int main(int argc, char** argv) {
#if !defined(ZERO_HAS_MPI)
#error "zero::mpi does not say what there is"
#endif
  zero::MpiEnvironment environment(argc, argv);
  zero::MpiCommunicator comm(MPI_COMM_WORLD);
  zero::HostStream const stream;
  int value = comm.rank() + 1;
  comm.enqueue(stream, zero::AllReduce<int>{.send = &value, .receive = &value, .count = 1});
  stream.synchronize();
  std::printf("%d of %d: %d\n", comm.rank(), comm.size(), value);
  return value == comm.size() * (comm.size() + 1) / 2 ? 0 : 1;
}
