// SPDX-License-Identifier: Apache-2.0
/// @file
/// A stage of one's own: three type names. This one shards parameters like Stage3 and reduces gradients once a step like Stage1 (FSDP with
/// deferred reduction). The plan prices it before it runs; counters agree afterwards.

#include <cstdio>
#include <zero/comm/counting.hpp>
#include <zero/zero.hpp>

struct DeferredReduction {
  using parameters = zero::Sharded;
  using gradients = zero::Partial;
  using optimizer_states = zero::Sharded;
};

constexpr zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("first"), "first.weight", {64, 64});
  layout.add(layout.add_unit("second"), "second.weight", {64, 64});
  layout.add(layout.add_unit("third"), "third.weight", {64, 64});
  return layout;
}

using Precision = zero::Precision<float>;
constexpr zero::Schedule four_passes{.micro_batches = 4};

// Known to the compiler: 2 M gathers and one reduction of Psi (N-1)/N elements each, and Psi/N of everything but the gradients.
constexpr std::int64_t psi = 3 * 64 * 64;
constexpr auto planned = [](auto stage) { return zero::plan<decltype(stage), Precision, zero::AdamW>(make_layout(), 4, four_passes); };
static_assert(planned(DeferredReduction{}).received_bytes() == (2 * 4 + 1) * psi * 4 * 3 / 4);
static_assert(planned(zero::Stage3{}).received_bytes() == 3 * 4 * psi * 4 * 3 / 4);

int main() {
  zero::ParameterLayout const layout = make_layout();
  zero::run_ranks(4, [&](zero::ThreadCommunicator& comm) {
    zero::Traffic traffic;
    zero::Counting group{zero::Borrowed{comm}, traffic};
    zero::CountingResource memory{zero::host_memory()};
    auto const here = zero::HostStreamRef::calling_thread();
    auto parameters = zero::shard_parameters<DeferredReduction, Precision>(layout, group, {here, here}, memory);
    zero::ShardedOptimizer<zero::AdamW, DeferredReduction> optimizer{parameters};
    parameters.initialize(7, [](zero::ParameterId) { return zero::InitialValue::normal(0, 0.02f); });

    for (std::int64_t m = 0; m < four_passes.micro_batches; ++m) {
      auto pass = parameters.training_pass({.last = m + 1 == four_passes.micro_batches});
      for (zero::Unit unit : layout.units()) auto weights = pass.gather(unit);
      for (zero::Unit unit : layout.units().reversed()) {
        auto weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        for (std::int64_t i = 0; i < gradients.elements(0); ++i) gradients[0][i] += weights[0][i];
        gradients.hand_over();
      }
      pass.finish();
    }
    optimizer.step(parameters);

    std::int64_t const received = traffic.model_bytes();
    if (received != planned(DeferredReduction{}).received_bytes() || memory.peak() != planned(DeferredReduction{}).bytes()) {
      throw zero::Error("the plan was wrong", comm.rank());
    }
    if (comm.rank() == 0) {
      std::printf("planned and counted: %lld bytes held, %lld bytes received\n", static_cast<long long>(memory.peak()),
                  static_cast<long long>(received));
    }
  });
}
