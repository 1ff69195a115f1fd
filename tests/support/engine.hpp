// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Engines: what the ranks of a test are, how they are started, and with which communicator, device, streams and memory they train. The grid of
/// train/engine_grid.hpp runs over each of them.

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>

#include <zero/comm/communicator.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/operations.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>
#include <zero/device/memory.hpp>

#include "support/model_of.hpp"
#include "support/training_passes.hpp"

namespace zero::test {

/// What an engine gives to a rank.
template <class Group>
struct Seat {
  Group& group;
  Streams<typename Group::Device> streams;
  MemoryResource& memory;
  Traffic& traffic;             ///< what the program calls
  Traffic const& moved;         ///< what moves below `Ordered`; the same as `traffic` where there is none
  ThreadCommunicator* threads;  ///< between the hosts of ranks that share a process; else null
};

/// Stages that an engine has models of.
template <StageNumber... numbers>
struct StageList {
  static constexpr StageNumber all[] = {numbers...};

  template <class P, class... Arguments>
  static auto make(Arguments&&... arguments) {
    return make_one_of<P, numbers...>(arguments...);
  }
};

/// Two stages with names and two without whose gradients are added in one order, and two whose are added in another.
using GridStages = StageList<stage0, stage1, 7, 4, stage2, stage3>;

/// An engine's `run` calls `body(seat)` on all ranks of this process. It joins them, or ends by a deadline.
template <class E>
concept Engine = Communicator<typename E::Group> && requires(Setting const& setting, void (*body)(Seat<typename E::Group> const&)) {
  E::run(setting, body);
  E::Stages::all[0];
};

/// Threads of one process: what the others are compared with, at one stage of each kind of sums.
struct ThreadEngine {
  using Group = CountedThreads;
  using Stages = StageList<stage0, stage2>;

  template <class Body>
  static void run(Setting const& setting, Body const& body) {
    run_ranks(setting.ranks, [&](ThreadCommunicator& threads) {
      Traffic traffic;
      CountedThreads group{Borrowed{threads}, traffic};
      PoisoningResource memory{host_memory()};
      HostStreams const streams(setting, threads.rank());
      body(Seat<Group>{group, streams.streams(), memory, traffic, traffic, &threads});
    });
  }
};

/// What a rank's code gets of an engine.
template <class D>
struct EngineRank : BasicRank<D> {
  Traffic const& moved;
  ThreadCommunicator* threads;

  /// Where ranks share a process they wait for each other: CUDA frees memory when all streams of the process are idle, so nobody may do that
  /// while a peer's stream waits for what this rank has not called.
  void meet() const {
    if (threads != nullptr) threads->enqueue(HostStreamRef::calling_thread(), Barrier{});
  }
};

/// Runs `body(rank)` on all ranks of this process.
template <Engine E, class Body>
void run_models_on(Setting const& setting, ParameterLayout const& layout, Body const& body) {
  E::run(setting, [&](Seat<typename E::Group> const& seat) {
    using D = typename E::Group::Device;
    CountingResource memory{seat.memory};
    auto const make = [&]<class P>(P const*) {
      return E::Stages::template make<P>(setting.stage, layout, seat.group, seat.streams, memory, setting.model);
    };
    auto const model = setting.precision == PrecisionName::fp32 ? make(static_cast<PrecisionOf<PrecisionName::fp32> const*>(nullptr))
                                                                : make(static_cast<PrecisionOf<PrecisionName::bf16> const*>(nullptr));
    EngineRank<D> const rank{{seat.group.rank(), *model, seat.traffic, memory}, seat.moved, seat.threads};
    body(rank);
    model->synchronize();
    rank.meet();
  });
}

}  // namespace zero::test
