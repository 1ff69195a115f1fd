// SPDX-License-Identifier: Apache-2.0
/// @file
/// Training whose gathers and reductions have a communicator and a stream each, over threads: the bits, bytes and memory of one communicator, and
/// gathers that pass reductions.

#include "train/engine_grid.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/self.hpp>
#include <zero/comm/separate_communicators.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/train/plan.hpp>

#include "support/engine.hpp"
#include "support/gate.hpp"
#include "support/group_training.hpp"
#include "support/outcomes.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace {

using namespace zero::test;
using zero::Borrowed;
using zero::Counting;
using zero::HostDevice;
using zero::HostStreamRef;
using zero::Purpose;
using zero::SeparateCommunicators;
using zero::Stage3;
using zero::ThreadCommunicator;
using zero::Unit;

using Streams = zero::Streams<HostDevice>;
using Fp32 = zero::Precision<float>;
using Bf16 = zero::Precision<zero::bf16>;

/// Where streams are workers, reductions have one of their own.
struct SeparateThreads {
  using Group = Counting<SeparateCommunicators<Borrowed<ThreadCommunicator>, Borrowed<ThreadCommunicator>>>;
  using Stages = GridStages;

  template <class Body>
  static void run(Setting const& setting, Body const& body) {
    zero::run_ranks(setting.ranks, [&](ThreadCommunicator& threads) {
      ThreadCommunicator second = threads.split(0, threads.rank());
      zero::Traffic traffic;
      Group group{SeparateCommunicators{Borrowed{threads}, Borrowed{second}}, traffic};
      zero::PoisoningResource memory{zero::host_memory()};
      HostStreams const pair(setting, threads.rank());
      Streams streams = pair.streams();
      std::optional<zero::HostStream> own;
      if (setting.streams == StreamMode::two_workers) {
        std::uint64_t const seed = setting.delay_seed == 0 ? 0 : setting.delay_seed * 1000 + static_cast<std::uint64_t>(threads.rank());
        streams.reductions = own.emplace(zero::HostStreamOptions{.delay_seed = seed, .max_delay_us = 60});
      }
      body(Seat<Group>{group, streams, memory, traffic, traffic, &threads});
    });
  }
};

static_assert(Engine<SeparateThreads>);

/// Which of three streams are one.
enum class Sharing { none, gathers_compute, reductions_compute, one_worker, compute_is_caller, gathers_are_caller, reductions_are_caller };
constexpr Sharing sharings[] = {Sharing::none,
                                Sharing::gathers_compute,
                                Sharing::reductions_compute,
                                Sharing::one_worker,
                                Sharing::compute_is_caller,
                                Sharing::gathers_are_caller,
                                Sharing::reductions_are_caller};

class ThreeStreams {
public:
  ThreeStreams(Sharing sharing, std::uint64_t seed) : streams_(make(sharing, seed)) {}
  [[nodiscard]] Streams get() const { return streams_; }

private:
  Streams make(Sharing sharing, std::uint64_t seed) {
    for (std::size_t i = 0; i < 3; ++i) {
      workers_[i].emplace(zero::HostStreamOptions{.delay_seed = seed == 0 ? 0 : 3 * seed + i, .max_delay_us = 40});
    }
    HostStreamRef const here = HostStreamRef::calling_thread();
    HostStreamRef const a = *workers_[0];
    HostStreamRef const b = *workers_[1];
    HostStreamRef const c = *workers_[2];
    switch (sharing) {
      case Sharing::none: return {a, b, c};
      case Sharing::gathers_compute: return {a, a, c};
      case Sharing::reductions_compute: return {a, b, a};
      case Sharing::one_worker: return {here, b, b};
      case Sharing::compute_is_caller: return {here, b, c};
      case Sharing::gathers_are_caller: return {a, here, c};
      case Sharing::reductions_are_caller: return {a, b, here};
    }
    return {here, here};
  }

  std::optional<zero::HostStream> workers_[3];
  Streams streams_;
};

/// Every sharing of streams, one communicator and two, delayed and not.
template <class S, class P>
void check_streams() {
  int const ranks = zero::test::ranks();
  auto const expected = train_over_threads<S, P>(ranks, false);
  CHECK(expected[0].norms[0] > 1.0);
  for (Sharing const sharing : sharings) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      for (bool const separate : {false, true}) {
        INFO("sharing ", static_cast<int>(sharing), ", seed ", seed, ", separate ", separate);
        std::vector<GroupTrained> results(static_cast<std::size_t>(ranks));
        zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
          auto const r = static_cast<std::size_t>(threads.rank());
          ThreadCommunicator second = threads.split(0, threads.rank());
          ThreeStreams const streams(sharing, seed == 0 ? 0 : 10 * seed + r);
          zero::Traffic traffic;
          Counting group{SeparateCommunicators{Borrowed{threads}, Borrowed{separate ? second : threads}}, traffic};
          results[r] = train_group<S, P>(group, streams.get(), zero::host_memory(), traffic, false);
        });
        CHECK((results == expected));
      }
    }
  }
}

/// Units of equal size in a row.
zero::ParameterLayout chain(int units) {
  zero::ParameterLayout layout;
  for (int u = 0; u < units; ++u) layout.add(layout.add_unit("u" + std::to_string(u)), "p" + std::to_string(u), {256});
  return layout;
}

template <class Parameters>
void backward(Parameters& parameters, zero::TrainingPassOptions options = {}) {
  auto pass = parameters.training_pass(options);
  for (Unit unit : parameters.layout().units().reversed()) {
    auto const weights = pass.gather(unit);
    pass.gradients(unit).hand_over();
  }
  pass.finish();
}

}  // namespace

TEST_CASE("exact sums over two communicators are the unsharded ones") { check_grid_exact_sums<SeparateThreads>(zero::test::ranks()); }
TEST_CASE("sums that are rounded have the bits of one communicator") { check_grid_families<SeparateThreads>(zero::test::ranks()); }
TEST_CASE("bytes moved and held over two communicators are the planned ones") {
  check_grid_accounting<SeparateThreads>(zero::test::ranks());
}
TEST_CASE("the norm and the decision of a step over two communicators have the bits of one rank") {
  check_grid_norms<SeparateThreads>(zero::test::ranks());
}

TEST_CASE("any of the three streams may be another or the calling thread, with one communicator or two") {
  SUBCASE("Stage0") { check_streams<zero::Stage0, Bf16>(); }
  SUBCASE("Stage1") { check_streams<zero::Stage1, Fp32>(); }
  SUBCASE("Stage2") { check_streams<zero::Stage2, Bf16>(); }
  SUBCASE("Stage3") { check_streams<Stage3, Fp32>(); }
}

TEST_CASE("memory is the planned one, and reserved, where only reductions, or only gathers, overlap with computation") {
  for (Sharing const sharing : sharings) {
    CAPTURE(static_cast<int>(sharing));
    for (bool const reserved : {false, true})
      zero::run_ranks(zero::test::ranks(), [&](ThreadCommunicator& threads) {
        ThreeStreams const streams(sharing, 0);
        zero::CountingResource memory{zero::host_memory()};
        auto parameters = zero::shard_parameters<Stage3, Fp32>(chain(4), threads, streams.get(), memory);
        parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
        if (reserved) parameters.reserve();
        std::int64_t const allocations = memory.allocations();
        for (int i = 0; i < 2; ++i) {
          auto pass = parameters.training_pass();
          for (Unit unit : parameters.layout().units()) static_cast<void>(pass.gather(unit));
          for (Unit unit : parameters.layout().units().reversed()) {
            auto const weights = pass.gather(unit);
            pass.gradients(unit).hand_over();
          }
          pass.finish();
        }
        auto const plan =
            zero::plan<Stage3, Fp32, zero::AdamW>(parameters.partition(), {.overlapped = streams.get().overlap()}, threads.rank());
        if (reserved) CHECK(memory.allocations() == allocations);
        CHECK(memory.live(Purpose::gathered) == plan.bytes(Purpose::gathered));
        CHECK(memory.live(Purpose::gradient_scratch) == plan.bytes(Purpose::gradient_scratch));
      });
  }
}

TEST_CASE("weights come and are computed with while a reduction is held up, which one communicator or one stream would not let them") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  struct Case {
    bool communicators, streams;
  };
  for (Case const separate : {Case{true, true}, Case{false, true}, Case{true, false}}) {
    INFO("communicators ", separate.communicators, ", streams ", separate.streams);
    Gate gate;
    std::atomic<int> looked = 0;
    zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
      ThreadCommunicator second = threads.split(0, threads.rank());
      ThreadCommunicator control = threads.split(0, threads.rank());
      zero::HostStream compute({.worker = true});
      zero::HostStream gathers({.worker = true});
      zero::HostStream own({.worker = true});
      OpenAtEnd const open(gate);
      HostStreamRef const reductions = separate.streams ? HostStreamRef(own) : HostStreamRef(gathers);
      SeparateCommunicators group{Borrowed{threads}, Borrowed{separate.communicators ? second : threads}};
      // Nothing ahead: each gather is called after the reduction of the unit before.
      auto parameters =
          zero::shard_parameters<Stage3, Fp32>(chain(2), group, {compute, gathers, reductions}, zero::host_memory(), {.prefetch_bytes = 0});
      parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
      compute.synchronize();
      if (threads.rank() == 0) reductions.enqueue([&gate] { gate.pass(); });
      backward(parameters);  // Unit 1, and then unit 0, whose weights are gathered behind the call of unit 1's reduction.
      gate.wait_for_arrival();
      if (separate.communicators && separate.streams) CHECK(comes(compute.record()));
      else CHECK_FALSE(compute.record().ready());
      CHECK_FALSE(reductions.record().ready());
      ++looked;
      control.enqueue(HostStreamRef::calling_thread(), zero::Barrier{});
      gate.open();
      static_cast<void>(parameters.reduce().wait());
      parameters.publish();
    });
    CHECK(looked == ranks);
  }
}

TEST_CASE("parameters that are destroyed wait for what is queued for reductions") {
  zero::HostStream compute({.worker = true});
  zero::HostStream gathers({.worker = true});
  zero::HostStream reductions({.worker = true});
  zero::SelfCommunicator alone;
  std::atomic<bool> done = false;
  {
    auto parameters = zero::shard_parameters<Stage3, Fp32>(chain(2), alone, {compute, gathers, reductions}, zero::host_memory());
    parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
    backward(parameters);
    HostStreamRef(reductions).enqueue([&done] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      done = true;
    });
  }
  CHECK(done);
}

TEST_CASE("Checked compares calls of both, at every stage, and finds ranks that do different things") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  auto const loop = [](ThreadCommunicator& threads, bool different) {
    zero::HostStream compute({.worker = true});
    zero::HostStream gathers({.worker = true});
    zero::HostStream reductions({.worker = true});
    zero::Checked group{SeparateCommunicators{Borrowed{threads}, threads.split(0, threads.rank())}};
    auto parameters = zero::shard_parameters<Stage3, Fp32>(chain(3), group, {compute, gathers, reductions}, zero::host_memory());
    zero::ShardedOptimizer<zero::AdamW, Stage3> optimizer{parameters};
    parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
    backward(parameters);
    if (different && threads.rank() == 0) static_cast<void>(parameters.gather_all());
    backward(parameters, {.last = true});
    static_cast<void>(optimizer.step(parameters, {.max_norm = 1}).wait());
  };
  CHECK_NOTHROW(zero::run_ranks(ranks, [&](ThreadCommunicator& threads) { loop(threads, false); }));
  auto const outcomes = outcomes_of(ranks, [&](ThreadCommunicator& threads) { loop(threads, true); }, {.deadline_ms = 20'000});
  for (std::exception_ptr const& end : outcomes.rank) CHECK(is<zero::MismatchError>(end));
}

namespace {

struct Planned : std::runtime_error {
  Planned() : std::runtime_error("planned") {}
};

enum class How { throws, returns, task_of_gathers_throws, task_of_reductions_throws };

/// Two steps. The last rank fails at its place number `at`, if it has one. @returns how many places there are.
template <class S>
int train_until(ThreadCommunicator& threads, How how, int at) {
  ThreadCommunicator second = threads.split(0, threads.rank());
  zero::HostStream compute({.worker = true});
  zero::HostStream gathers({.worker = true});
  zero::HostStream reductions({.worker = true});
  SeparateCommunicators group{Borrowed{threads}, Borrowed{second}};
  auto parameters = zero::shard_parameters<S, Bf16>(chain(3), group, {compute, gathers, reductions}, zero::host_memory());
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters};
  parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
  int places = 0;
  struct Returned {};
  auto const place = [&] {
    if (places++ != at || threads.rank() != threads.size() - 1) return;
    switch (how) {
      case How::throws: throw Planned();
      case How::returns: throw Returned();
      case How::task_of_gathers_throws: HostStreamRef(gathers).enqueue([] { throw Planned(); }); break;
      case How::task_of_reductions_throws: HostStreamRef(reductions).enqueue([] { throw Planned(); }); break;
    }
  };
  auto const loop = [&] {
    for (int step = 0; step < 2; ++step) {
      place();
      auto pass = parameters.training_pass({.last = step == 1});
      for (Unit unit : parameters.layout().units()) static_cast<void>(pass.gather(unit));
      place();
      for (Unit unit : parameters.layout().units().reversed()) {
        [[maybe_unused]] auto const weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        place();
        gradients.hand_over();
        place();
      }
      pass.finish();
      place();
      auto const decision = parameters.reduce({.max_norm = 1});
      place();
      optimizer.apply(parameters, decision);
      place();
      parameters.publish();
      static_cast<void>(decision.wait());
    }
    place();
    auto const whole = parameters.gather_all();
    for (HostStreamRef stream : {HostStreamRef(compute), HostStreamRef(gathers), HostStreamRef(reductions)}) stream.synchronize();
  };
  if (how == How::returns) {
    try {
      loop();
    } catch (Returned const&) {  // As a return in the middle of the loop.
    }
  } else {
    loop();
  }
  return places;
}

template <class S>
void check_faults() {
  constexpr int fault_ranks = 3;
  std::atomic<int> places = 0;
  zero::run_ranks(fault_ranks, [&](ThreadCommunicator& threads) { places = train_until<S>(threads, How::throws, -1); });
  REQUIRE(places > 20);
#ifdef ZERO_TEST_SANITIZED
  constexpr int stride = 5;
#else
  constexpr int stride = 1;
#endif
  for (How const how : {How::throws, How::returns, How::task_of_gathers_throws, How::task_of_reductions_throws}) {
    for (int at = 0; at < places; at += stride) {
      INFO("fault ", static_cast<int>(how), " at place ", at);
      auto const outcomes = outcomes_of(
          fault_ranks, [&](ThreadCommunicator& threads) { static_cast<void>(train_until<S>(threads, how, at)); }, {.deadline_ms = 20'000});
      // Nobody waits until the deadline. Peers that need nothing of the rank any more end as if nothing had happened.
      for (int rank = 0; rank < fault_ranks; ++rank) {
        std::exception_ptr const& end = outcomes.rank[static_cast<std::size_t>(rank)];
        CAPTURE(rank);
        CAPTURE(what_of(end));
        if (rank == fault_ranks - 1) CHECK(is<Planned>(end) == (how != How::returns));
        else CHECK((end == nullptr || is<zero::PeerError>(end)));
      }
      if (how != How::returns) CHECK(is<Planned>(outcomes.run));
    }
  }
}

}  // namespace

TEST_CASE("a rank that fails anywhere ends what its peers wait for, on both communicators") {
  if (zero::test::ranks() != 3) return;  // once
  SUBCASE("Stage0") { check_faults<zero::Stage0>(); }
  SUBCASE("Stage2") { check_faults<zero::Stage2>(); }
  SUBCASE("Stage3") { check_faults<Stage3>(); }
}
