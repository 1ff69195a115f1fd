// SPDX-License-Identifier: Apache-2.0
/// @file
/// Ranks that are processes of an MPI job: `mpirun -n 4 example_processes` fits a line, with the sums of a run over threads.

#include <zero/comm/mpi_environment.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/zero.hpp>

#include <cmath>
#include <cstdio>

namespace {

/// Fits y = 3 x - 1: each rank has its own points. The same text for every communicator.
template <class Communicator>
void fit_line(Communicator& comm) {
  zero::ParameterLayout layout;
  zero::Unit const unit = layout.add_unit("line");
  zero::ParameterId const id = layout.add(unit, "line.slope_and_offset", {2});
  auto const here = zero::HostStreamRef::calling_thread();
  auto parameters = zero::shard_parameters<zero::Stage3, zero::Precision<float>>(layout, comm, {here, here}, zero::host_memory());
  zero::ShardedOptimizer<zero::SGD, zero::Stage3> optimizer{parameters, {.learning_rate = 0.5}};
  parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
  for (int step = 0; step < 200; ++step) {
    auto pass = parameters.training_pass({.last = true});
    auto weights = pass.gather(unit);
    auto gradients = pass.gradients(unit);
    for (int i = 0; i < 8; ++i) {
      float const x = static_cast<float>(comm.rank() + i * comm.size()) / static_cast<float>(4 * comm.size()) - 1.0f;
      float const error = weights[0][0] * x + weights[0][1] - (3 * x - 1);
      gradients[0][0] += error * x / 8;
      gradients[0][1] += error / 8;
    }
    gradients.hand_over();
    weights.release();
    pass.finish();
    optimizer.step(parameters);
  }
  auto const model = parameters.gather_all();
  if (std::fabs(model[id][0] - 3) > 0.01f || std::fabs(model[id][1] + 1) > 0.01f) throw zero::Error("the line is wrong", comm.rank());
  if (comm.rank() == 0) std::printf("y = %.3f x + %.3f\n", static_cast<double>(model[id][0]), static_cast<double>(model[id][1]));
}

}  // namespace

int main(int argc, char** argv) {
  return zero::run_mpi(argc, argv, [](zero::MpiCommunicator& world) {
    zero::Ordered comm{zero::Borrowed{world}, zero::host_memory()};
    fit_line(comm);
  });
}
