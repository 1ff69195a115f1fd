// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The trainer on CUDA GPUs, one a rank; for translation units that nvcc compiles.

#include <zero/comm/counting.hpp>
#include <zero/comm/self.hpp>
#include <zero/zero.hpp>
#if defined(ZERO_HAS_NCCL)
#include <zero/comm/nccl.hpp>
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

/// Trains with the ranks there are: those of NCCL, of which this process is one, or this one alone.
template <class Stage, class Precision>
RunResult train_with_gpus(World const& world, Options const& options, Text const& text) {
#if defined(ZERO_HAS_NCCL)
  if (world.nccl != nullptr) return train_on_gpu<Stage, Precision>(*world.nccl, options, text);
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
