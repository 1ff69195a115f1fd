// SPDX-License-Identifier: Apache-2.0
/// @file
/// The same training over MPI processes and over threads of one process: equal losses, norms and weights to the bit, at every stage.

#include <zero/comm/mpi.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/ordered.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/separate_communicators.hpp>
#include <zero/core/hash.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/ranks.hpp"

namespace {

using zero::HostDevice;
using zero::HostStreamRef;
using Streams = zero::Streams<HostDevice>;

using Single = zero::Precision<float>;
using Mixed = zero::Precision<zero::bf16>;

zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  auto const first = layout.add_unit("first");
  auto const table = layout.add(first, "table", {37, 11});
  auto const middle = layout.add_unit("middle");
  layout.add(middle, "middle.weight", {41, 7});
  layout.add(middle, "middle.frozen", {9}, {.trainable = false});
  auto const last = layout.add_unit("last");
  layout.add(last, "last.weight", {513});
  layout.tie(table, last);
  return layout;
}

/// What a rank saw and ended with.
struct Outcome {
  std::vector<std::uint64_t> losses;
  std::vector<std::uint64_t> norms;
  std::uint64_t weights = 0;
  std::int64_t model_bytes = 0;

  friend bool operator==(Outcome const&, Outcome const&) = default;
};

/// Some micro-batches and steps with gradients whose sums are rounded.
template <class S, class P, class Group>
Outcome train(Group& group, zero::Traffic const& traffic, Streams streams) {
  using Gradient = typename P::gradient;
  auto const layout = make_layout();
  Outcome outcome;
  auto parameters = zero::shard_parameters<S, P>(layout, group, streams, zero::host_memory());
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.01}};
  parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::normal(0, 0.3f); });
  for (int step = 0; step < 4; ++step) {
    double loss = 0;
    for (int m = 0; m < 2; ++m) {
      auto pass = parameters.training_pass({.last = m == 1});
      for (zero::Unit unit : layout.units()) static_cast<void>(pass.gather(unit));
      for (zero::Unit unit : layout.units().reversed()) {
        auto const weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        for (int i = 0; i < gradients.size(); ++i) {
          if (gradients[i] == nullptr) continue;
          auto const key = static_cast<std::uint64_t>(((step * 2 + m) * 64 + group.rank()) * 64 + i);
          HostDevice::run(streams.compute, [to = gradients[i], from = weights[i], n = gradients.elements(i), key] {
            for (std::int64_t k = 0; k < n; ++k) {
              auto const noise =
                  static_cast<float>(static_cast<std::int64_t>(zero::mixed_bits(key + static_cast<std::uint64_t>(k)) >> 40)) * 0x1p-24f;
              to[k] = Gradient(float(to[k]) + float(from[k]) * 0.1f + noise - 0.5f);
            }
          });
        }
        HostDevice::synchronize(streams.compute);
        loss += double(float(weights[0][0]));
        gradients.hand_over();
      }
      pass.finish();
    }
    auto const report = optimizer.step(parameters, {.max_norm = 0.5, .micro_batches = 2}).wait();
    outcome.norms.push_back(std::bit_cast<std::uint64_t>(report.norm));
    group.enqueue(streams.communication, zero::AllReduce<double>{.send = &loss, .receive = &loss, .count = 1});
    HostDevice::synchronize(streams.communication);
    outcome.losses.push_back(std::bit_cast<std::uint64_t>(loss));
  }
  auto const whole = parameters.gather_all();
  HostDevice::synchronize(streams.compute);
  HostDevice::synchronize(streams.communication);
  zero::Hasher hasher;
  for (zero::ParameterId id : layout.parameters()) {
    for (auto const& value : whole[id]) hasher.add(std::bit_cast<std::uint32_t>(float(value)));
  }
  outcome.weights = hasher.value();
  outcome.model_bytes = traffic.model_bytes();
  return outcome;
}

constexpr std::int64_t deadline_ms = 60'000;

int rank_in_job() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

template <class S, class P>
Outcome train_with_threads() {
  Outcome outcome;
  zero::run_ranks(zero::test::ranks(), [&](zero::ThreadCommunicator& threads) {
    zero::Traffic traffic;
    zero::Counting group{zero::Borrowed{threads}, traffic};
    HostStreamRef const here = HostStreamRef::calling_thread();
    Outcome const mine = train<S, P>(group, traffic, {here, here});
    if (threads.rank() == rank_in_job()) outcome = mine;
  });
  return outcome;
}

template <class S, class P>
Outcome train_with_mpi(bool workers) {
  zero::Traffic traffic;
  zero::Counting group{
      zero::Ordered{zero::MpiCommunicator(MPI_COMM_WORLD, {.deadline_ms = deadline_ms}), zero::host_memory(), {.staging_bytes = 4096}},
      traffic};
  std::optional<zero::HostStream> streams[2];
  if (!workers) return train<S, P>(group, traffic, {HostStreamRef::calling_thread(), HostStreamRef::calling_thread()});
  auto const seed = static_cast<std::uint64_t>(2 * group.rank() + 1);
  return train<S, P>(group, traffic,
                     {streams[0].emplace(zero::HostStreamOptions{.delay_seed = seed}),
                      streams[1].emplace(zero::HostStreamOptions{.delay_seed = seed + 1})});
}

/// Gathers and reductions over a communicator and a stream each.
template <class S, class P>
Outcome train_with_two_communicators() {
  zero::Traffic traffic;
  zero::MpiCommunicator gathers(MPI_COMM_WORLD, {.deadline_ms = deadline_ms});
  zero::MpiCommunicator reductions = gathers.split(0, gathers.rank());
  zero::Counting group{
      zero::SeparateCommunicators{std::move(gathers), zero::Ordered{std::move(reductions), zero::host_memory(), {.staging_bytes = 4096}}},
      traffic};
  auto const seed = static_cast<std::uint64_t>(3 * group.rank() + 1);
  zero::HostStream const streams[] = {zero::HostStream({.delay_seed = seed}), zero::HostStream({.delay_seed = seed + 1}),
                                      zero::HostStream({.delay_seed = seed + 2})};
  return train<S, P>(group, traffic, {streams[0], streams[1], streams[2]});
}

template <class S, class P>
void check() {
  Outcome const expected = train_with_threads<S, P>();
  CHECK(expected.losses.size() == 4);
  CHECK(train_with_mpi<S, P>(false) == expected);
  CHECK(train_with_mpi<S, P>(true) == expected);
  Outcome const separate = train_with_two_communicators<S, P>();
  CHECK(separate == expected);
}

}  // namespace

TEST_CASE("training over MPI gives the bits of training over threads, and the same bytes: Stage0") { check<zero::Stage0, Single>(); }
TEST_CASE("training over MPI gives the bits of training over threads, and the same bytes: Stage1") { check<zero::Stage1, Mixed>(); }
TEST_CASE("training over MPI gives the bits of training over threads, and the same bytes: Stage2") { check<zero::Stage2, Mixed>(); }
TEST_CASE("training over MPI gives the bits of training over threads, and the same bytes: Stage3") { check<zero::Stage3, Single>(); }
TEST_CASE("training over MPI gives the bits of training over threads, and the same bytes: Stage3 in bf16") { check<zero::Stage3, Mixed>(); }
