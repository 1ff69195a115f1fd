// SPDX-License-Identifier: Apache-2.0
/// @file
/// A consumer's kernels: the same header brings those of the library.

#include <zero/zero.hpp>

namespace {

__global__ void add_two(float* gradient) { gradient[threadIdx.x] += 2; }

}  // namespace

/// One step of SGD with a kernel of the consumer's own, on one rank.
float trained_on(zero::CudaStreamRef stream, zero::MemoryResource& memory) {
  zero::ParameterLayout layout;
  zero::Unit const unit = layout.add_unit("unit");
  layout.add(unit, "weight", {3, 4});
  zero::BasicSelfCommunicator<zero::CudaDevice> alone;
  auto parameters = zero::shard_parameters<zero::Stage3, zero::Precision<float>>(layout, alone, {stream, stream}, memory);
  zero::ShardedOptimizer<zero::SGD, zero::Stage3> optimizer{parameters, {.learning_rate = 0.25}};
  parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::constant(1); });
  {
    auto pass = parameters.training_pass({.last = true});
    auto weights = pass.gather(unit);
    auto gradients = pass.gradients(unit);
    zero::UnitView<float> const to = gradients;
    stream.enqueue("add_two", zero::SourceLocation::current(), [&] {
      add_two<<<1, 12, 0, stream.native()>>>(to[0]);
      return cudaGetLastError();
    });
    gradients.hand_over();
    weights = {};
    pass.finish();
  }
  optimizer.step(parameters, {.max_norm = 1.0}).wait();
  zero::Buffer<float> host{zero::CudaDevice::pinned_memory(), 1, zero::Purpose::control};
  auto const whole = parameters.gather_all();
  zero::UnitView<float const> const view = whole[unit];
  zero::CudaDevice::copy(stream, host.data(), view[0], host.bytes());
  zero::CudaDevice::synchronize(stream);
  return host.data()[0];
}
