// SPDX-License-Identifier: Apache-2.0
/// @file
/// NCCL started over MPI, a GPU a process: MPI carries NCCL's id, and both groups have the same ranks.

#include <cstdio>
#include <vector>

#include <zero/comm/mpi.hpp>
#include <zero/comm/mpi_environment.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_start.hpp>
#include <zero/device/cuda_device.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/cuda_stream.hpp>
#include <zero/device/memory.hpp>

namespace {

int run(zero::MpiCommunicator& world) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (devices < world.size()) {
    if (world.rank() == 0) std::printf("SKIPPED: %d CUDA devices are here, %d are needed\n", devices, world.size());
    return 77;
  }
  zero::NcclCommunicator comm = zero::nccl_over(world, {.deadline_ms = 60'000}, world.rank());
  zero::CudaStream const stream({.device = comm.device()});
  zero::Buffer<float> values{zero::CudaDevice::pinned_memory(), 1000, zero::Purpose::control};
  for (std::int64_t i = 0; i < 1000; ++i) values.data()[i] = static_cast<float>(i + comm.rank());
  comm.enqueue(stream, zero::AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 1000});
  stream.synchronize();
  int wrong = comm.rank() != world.rank() || comm.size() != world.size() ? 1 : 0;
  int const n = comm.size();
  for (std::int64_t i = 0; i < 1000; ++i) wrong += values.data()[i] != static_cast<float>(i * n + n * (n - 1) / 2) ? 1 : 0;
  comm.finalize();
  if (wrong > 0) std::printf("rank %d: %d values are wrong\n", world.rank(), wrong);
  return wrong > 0 ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) { return zero::run_mpi(count, arguments, run); }
