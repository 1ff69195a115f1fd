// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The canonical loop of training on ranks that are threads, in every arrangement of streams, at all stages and precisions of this build.

#include <zero/comm/run_ranks.hpp>

#include "support/precisions.hpp"
#include "support/training_passes.hpp"

namespace zero::test {

/// On ranks that are threads.
struct Rank : BasicRank<HostDevice> {
  ThreadCommunicator& threads;
};

/// Runs `body(rank)` on all ranks. Memory is poisoned when it is handed out and when it comes back.
template <class Body>
void run_models(Setting const& setting, ParameterLayout const& layout, Body const& body) {
  run_ranks(setting.ranks, [&](ThreadCommunicator& threads) {
    Traffic traffic;
    CountedThreads group{Borrowed{threads}, traffic};
    PoisoningResource poisoned{host_memory()};
    CountingResource memory{poisoned};
    HostStreams const streams(setting, threads.rank());
    auto const model = make_model(setting.precision, setting.stage, layout, group, streams.streams(), memory, setting.model);
    body(Rank{{threads.rank(), *model, traffic, memory}, threads});
    model->synchronize();
  });
}

}  // namespace zero::test
