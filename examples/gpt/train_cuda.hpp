// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The trainer on CUDA GPUs, one a rank; for translation units that nvcc compiles.

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/self.hpp>
#include <zero/zero.hpp>
#if defined(ZERO_HAS_NCCL)
#include <zero/comm/nccl_start.hpp>
#include <zero/comm/run_ranks.hpp>
#endif

#include "gpt/cublas.hpp"
#include "gpt/device_math.hpp"
#include "gpt/options.hpp"
#include "gpt/text.hpp"
#include "gpt/trainer.hpp"

namespace gpt {

/// Trains one rank on the current device.
template <class Stage, class Precision, class Communicator>
RunResult train_on_gpu(Communicator& communicator, Options const& options, Text const& text) {
  zero::ParameterLayout const layout = make_layout(options.config);
  RunResult result = planned<Stage, Precision>(options);
  zero::Traffic traffic;
  zero::Counting group{zero::Borrowed{communicator}, traffic};
  zero::CudaMemory device_memory;
  zero::CountingResource memory{device_memory};
  zero::CudaStream const compute;
  zero::CudaStream const communication;
  zero::CudaStreamMemory activations{compute};  // not counted: it is no model state
  Cublas products{compute.native()};
  train<Stage, Precision>(layout, group, traffic, {compute, communication}, memory, options, text, result,
                          DeviceMath<zero::CudaDevice, Cublas>{compute, activations, products});
  return result;
}

#if defined(ZERO_HAS_NCCL)

/// Trains with threads of this process as ranks, on the first GPUs, one each.
template <class Stage, class Precision>
RunResult train_on_gpus(Options const& options, Text const& text) {
  std::vector<int> devices;
  for (int device = 0; device < options.ranks; ++device) devices.push_back(device);
  std::vector<zero::NcclCommunicator> communicators = zero::nccl_all_devices(devices);
  RunResult result;
  zero::run_ranks(options.ranks, [&](zero::ThreadCommunicator& threads) {
    // Owned by the thread: an exception aborts it, and the others with it.
    zero::NcclCommunicator communicator = std::move(communicators[static_cast<std::size_t>(threads.rank())]);
    if (cudaSetDevice(communicator.device()) != cudaSuccess) throw std::runtime_error("cannot use this rank's GPU");
    RunResult own = train_on_gpu<Stage, Precision>(communicator, options, text);
    communicator.finalize();
    if (threads.rank() == 0) result = std::move(own);
  });
  return result;
}

#endif

/// Trains with the ranks there are: those of NCCL, of which this process is one, threads, or this one alone.
template <class Stage, class Precision>
RunResult train_with_gpus(World const& world, Options const& options, Text const& text) {
#if defined(ZERO_HAS_NCCL)
  if (world.nccl != nullptr) return train_on_gpu<Stage, Precision>(*world.nccl, options, text);
  if (options.ranks > 1) return train_on_gpus<Stage, Precision>(options, text);
#endif
  static_cast<void>(world);
  zero::BasicSelfCommunicator<zero::CudaDevice> alone;
  return train_on_gpu<Stage, Precision>(alone, options, text);
}

/// `train_with_gpus` for the stage that is given: what a lambda would do, which nvcc does not take here.
template <class Precision>
struct OnGpus {
  World const& world;
  Options const& options;
  Text const& text;

  template <class Stage>
  RunResult operator()(Stage) const {
    return train_with_gpus<Stage, Precision>(world, options, text);
  }
};

}  // namespace gpt
