// SPDX-License-Identifier: Apache-2.0
/// @file
/// A program in which the last rank does what its argument says, and every rank says what it got. check_faults judges that.
///
/// field case 58: mismatch (a rank calls with another count); field case 67: throws, aborts;
/// field case 68: late (a rank never arrives); field case 69: killed, stopped, leaves.

#include <zero/comm/mpi_environment.hpp>

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/mpi.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "mpi/report.hpp"

namespace {

using zero::AllReduce;
using zero::Barrier;
using zero::HostStreamRef;
using zero::MpiCommunicator;
using zero::test::report;

void misbehave(std::string_view how, MpiCommunicator& world, HostStreamRef stream) {
  if (how == "throws" || how == "escapes" || how == "swallowed") throw std::runtime_error("injected");
  if (how == "task_throws") stream.enqueue([] { throw std::runtime_error("injected"); });
  if (how == "aborts") world.abort(std::make_exception_ptr(std::runtime_error("injected")));
  if (how == "killed") ::kill(::getpid(), SIGKILL);
  if (how == "stopped") ::kill(::getpid(), SIGSTOP);
  if (how == "exits") std::_Exit(3);
}

/// Steps of training, in the third of which the last rank misbehaves, between two hand-overs.
void train(std::string_view how, MpiCommunicator& world) {
  zero::HostStream communication;
  zero::HostStream compute;
  zero::Ordered group{zero::Borrowed{world}, zero::host_memory()};
  zero::ParameterLayout layout;
  for (int u = 0; u < 3; ++u) layout.add(layout.add_unit("unit" + std::to_string(u)), "weight" + std::to_string(u), {1000});
  auto parameters =
      zero::shard_parameters<zero::Stage3, zero::Precision<float>>(layout, group, {compute, communication}, zero::host_memory());
  zero::ShardedOptimizer<zero::SGD, zero::Stage3> optimizer{parameters};
  parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::constant(1); });
  for (int step = 0;; ++step) {
    auto pass = parameters.training_pass({.last = true});
    for (zero::Unit unit : layout.units().reversed()) {
      auto const weights = pass.gather(unit);
      auto gradients = pass.gradients(unit);
      if (step == 2 && zero::to_index(unit) == 1 && world.rank() == world.size() - 1) {
        if (how == "returns") return;
        misbehave(how, world, compute);
      }
      gradients.hand_over();
    }
    pass.finish();
    static_cast<void>(optimizer.step(parameters).wait());
  }
}

/// Some collectives under `Checked`, one of them another one on the last rank.
void mismatch(MpiCommunicator& world) {
  zero::Checked checked{zero::Borrowed{world}};
  std::vector<float> values(20, 1.0f);
  for (int i = 0; i < 5; ++i) {
    std::int64_t const count = i == 3 && world.rank() == world.size() - 1 ? 11 : 10;
    checked.enqueue(HostStreamRef::calling_thread(), AllReduce<float>{.send = values.data(), .receive = values.data(), .count = count});
  }
}

/// The last rank leaves the group while the others go on.
void leave(MpiCommunicator& world) {
  int const calls = world.rank() == world.size() - 1 ? 3 : 1000;
  for (int i = 0; i < calls; ++i) world.enqueue(HostStreamRef::calling_thread(), Barrier{});
}

/// Few bytes from the first rank to all: MPI takes them, whether the others come or not.
void broadcast(MpiCommunicator& world) {
  if (world.rank() == world.size() - 1) throw std::runtime_error("injected");
  float value = 1;
  for (int i = 0; i < 50; ++i) {
    world.enqueue(HostStreamRef::calling_thread(), zero::Broadcast<float>{.buffer = &value, .count = 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

int run(std::string_view how, int argc, char** argv) {
  zero::MpiOptions const options{.deadline_ms = how == "stopped" || how == "late" ? 1000 : 20'000};
  if (how == "late") {
    zero::MpiEnvironment const environment(argc, argv);
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == size - 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    try {
      MpiCommunicator const world(MPI_COMM_WORLD, options);
    } catch (...) {
      report(rank);
    }
    return 0;
  }
  if (how == "escapes") {  // As without run_mpi.
    zero::MpiEnvironment const environment(argc, argv);
    MpiCommunicator world(MPI_COMM_WORLD, options);
    try {
      train(how, world);
    } catch (...) {
      report(world.rank());
      throw;
    }
    return 0;
  }
  return zero::run_mpi(
      argc, argv,
      [&](MpiCommunicator& world) {
        try {
          if (how == "mismatch") mismatch(world);
          else if (how == "leaves") leave(world);
          else if (how == "broadcasts") broadcast(world);
          else train(how, world);
        } catch (...) {
          report(world.rank());
          if (how == "swallowed") {
            world.abort(std::current_exception());
            return;
          }
          throw;
        }
      },
      options);
}

/// MPI_Init instead of MPI_Init_thread.
int run_without_threads(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int level = 0;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) std::puts("this MPI always has threads");
  try {
    MpiCommunicator const world(MPI_COMM_WORLD);
  } catch (...) {
    report(0);
  }
  MPI_Finalize();
  try {
    MpiCommunicator const world(MPI_COMM_WORLD);
  } catch (...) {
    report(0);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view const how = argc > 1 ? argv[1] : "";
  if (how == "no_threads") return run_without_threads(argc, argv);
  try {
    return run(how, argc, argv);
  } catch (std::exception const& error) {
    std::printf("main got: %s\n", error.what());
    return 4;
  }
}
