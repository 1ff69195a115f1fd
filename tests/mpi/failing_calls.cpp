// SPDX-License-Identifier: Apache-2.0
/// @file
/// A program in which one call of the communicator fails on one rank of a small training, and every rank says what it got. check_failing_calls
/// judges that, and runs it for one call after the other: a failure ends the job.
///
/// usage: failing_calls <stage: 1, 3> <how> <rank> <call>. How: `instead` of being enqueued the call throws, `behind` what it has enqueued, or
/// the `task` before it on the stream does. Calls are counted from 0; where there are fewer, all ranks say how many there were.

#include <zero/comm/mpi_environment.hpp>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#include <zero/comm/communicator.hpp>
#include <zero/comm/mpi.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "mpi/report.hpp"

namespace {

using zero::HostStreamRef;
using zero::MpiCommunicator;
using zero::SourceLocation;

struct Failure {
  std::string_view how;
  int rank = 0;
  std::int64_t call = 0;
};

/// Counts this rank's calls, of which one fails.
class Failing : public zero::Borrowed<MpiCommunicator> {
public:
  Failing(MpiCommunicator& world, Failure const& failure, std::int64_t& calls) : Borrowed(world), failure_(failure), calls_(&calls) {}

  template <class Operation>
    requires zero::Performs<MpiCommunicator, Operation>
  void enqueue(HostStreamRef stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    bool const fails = (*calls_)++ == failure_.call && rank() == failure_.rank;
    zero::CommunicationError const error("call " + std::to_string(failure_.call) + " was made to fail", rank());
    if (fails && failure_.how == "instead") throw error;
    if (fails && failure_.how == "task") stream.enqueue([error] { throw error; });
    Borrowed::enqueue(stream, operation, where);
    if (fails && failure_.how == "behind") throw error;
  }

private:
  Failure failure_;
  std::int64_t* calls_;
};

static_assert(zero::check_communicator<Failing>());

/// Two steps.
template <class S>
void train(MpiCommunicator& world, Failure const& failure, std::int64_t& calls) {
  zero::HostStream communication;
  zero::HostStream compute;
  zero::Ordered group{Failing{world, failure, calls}, zero::host_memory()};
  zero::ParameterLayout layout;
  for (int u = 0; u < 2; ++u) layout.add(layout.add_unit("unit" + std::to_string(u)), "weight" + std::to_string(u), {1000});
  auto parameters = zero::shard_parameters<S, zero::Precision<float>>(layout, group, {compute, communication}, zero::host_memory());
  zero::ShardedOptimizer<zero::SGD, S> optimizer{parameters};
  parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::constant(1); });
  for (int step = 0; step < 2; ++step) {
    auto pass = parameters.training_pass({.last = true});
    for (zero::Unit unit : layout.units()) static_cast<void>(pass.gather(unit));
    for (zero::Unit unit : layout.units().reversed()) {
      [[maybe_unused]] auto const weights = pass.gather(unit);
      pass.gradients(unit).hand_over();
    }
    pass.finish();
    static_cast<void>(optimizer.step(parameters, {.max_norm = 1}).wait());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::invalid_argument("usage: failing_calls <stage> <how> <rank> <call>");
    Failure const failure{argv[2], std::stoi(argv[3]), std::stoi(argv[4])};
    bool const stage3 = std::string_view(argv[1]) == "3";
    return zero::run_mpi(argc, argv,
                         [&](MpiCommunicator& world) {
                           try {
                             std::int64_t calls = 0;
                             if (stage3) train<zero::Stage3>(world, failure, calls);
                             else train<zero::Stage1>(world, failure, calls);
                             world.enqueue(HostStreamRef::calling_thread(),
                                           zero::Barrier{});  // Who is done learns here of a peer that is not.
                             std::printf("rank %d made %lld calls\n", world.rank(), static_cast<long long>(calls));
                             std::fflush(stdout);
                           } catch (...) {
                             zero::test::report(world.rank());
                             throw;
                           }
                         },
                         {.deadline_ms = 60'000});
  } catch (std::exception const& error) {
    std::printf("main got: %s\n", error.what());
    return 4;
  }
}
