// SPDX-License-Identifier: Apache-2.0
/// @file
/// Bytes: what the transport really copied is what is counted and what was planned; what is held is what was planned, by purpose; nothing is
/// allocated in the steady state.

#include "support/allocations.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/odd_layouts.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace zero::test;
using zero::ParameterId;
using zero::ParameterLayout;
using zero::Purpose;
using zero::Subject;
using zero::Unit;

constexpr Purpose purposes[] = {Purpose::parameters,       Purpose::gradients, Purpose::optimizer_states, Purpose::gathered,
                                Purpose::gradient_scratch, Purpose::staging,   Purpose::control};
constexpr Subject subjects[] = {Subject::user, Subject::parameters, Subject::gradients, Subject::optimizer_states, Subject::control};

/// What one rank saw, and what was planned for it.
struct Account {
  zero::Plan plan;
  std::int64_t received[zero::subject_count] = {};  ///< in the second step
  std::int64_t calls = 0;                           ///< in all steps
  std::int64_t counted = 0;                         ///< bytes of all steps and the start
  std::int64_t copied = 0;
  std::int64_t live[zero::purpose_count] = {};  ///< after each step; of the last
  std::int64_t peak[zero::purpose_count] = {};
  bool at_baseline = true;       ///< after the third step as after the second
  std::int64_t allocations = 0;  ///< in the second and third step
};

Passes plain_passes(zero::Schedule const& schedule) {
  Passes passes;
  passes.micro_batches = schedule.micro_batches;
  passes.inference_passes = schedule.inference_passes;
  passes.backward_gathers = schedule.backward_gathers;
  passes.rule = [](int, std::int64_t, Unit, ParameterId) { return GradientRule::constant(0.25); };
  return passes;
}

std::vector<Account> accounts_of(Setting const& setting, ParameterLayout const& layout, zero::Schedule schedule) {
  schedule.overlapped = setting.streams != StreamMode::calling && setting.streams != StreamMode::one_worker;
  std::vector<Account> result(static_cast<std::size_t>(setting.ranks));
  run_models(setting, layout, [&](Rank rank) {
    Account& mine = result[static_cast<std::size_t>(rank.rank)];
    Passes const passes = plain_passes(schedule);
    rank.model.initialize(3, zero::InitialValue::normal(0, 1));
    std::int64_t allocations = 0;
    for (int step = 0; step < 3; ++step) {
      std::int64_t before[zero::subject_count];
      for (Subject s : subjects) before[static_cast<int>(s)] = rank.traffic.received_bytes(s);
      run_passes(rank, passes);
      static_cast<void>(rank.model.step(schedule.step).wait());
      rank.model.synchronize();
      if (step == 0) allocations = rank.memory.allocations();
      for (Subject s : subjects) {
        std::int64_t const bytes = rank.traffic.received_bytes(s) - before[static_cast<int>(s)];
        if (step > 0) mine.at_baseline = mine.at_baseline && (step == 1 || bytes == mine.received[static_cast<int>(s)]);
        mine.received[static_cast<int>(s)] = bytes;
      }
      for (Purpose p : purposes) {
        std::int64_t const bytes = rank.memory.live(p);
        mine.at_baseline = mine.at_baseline && (step == 0 || bytes == mine.live[static_cast<int>(p)]);
        mine.live[static_cast<int>(p)] = bytes;
        mine.peak[static_cast<int>(p)] = rank.memory.peak(p);
      }
    }
    mine.plan = rank.model.plan(schedule, rank.rank);
    mine.calls = rank.traffic.calls();
    mine.counted = rank.traffic.received_bytes();
    mine.copied = rank.threads.bytes_copied();
    mine.allocations = rank.memory.allocations() - allocations;
  });
  return result;
}

void check(std::vector<Account> const& accounts) {
  for (std::size_t r = 0; r < accounts.size(); ++r) {
    INFO("rank ", r);
    Account const& mine = accounts[r];
    CHECK(mine.copied == mine.counted);
    CHECK(mine.at_baseline);
    CHECK(mine.allocations == 0);
    for (Subject s : subjects) {
      INFO(std::string(zero::name(s)));
      CHECK(mine.received[static_cast<int>(s)] == mine.plan.received_bytes(s));
    }
    for (Purpose p : purposes) {
      INFO(std::string(zero::name(p)));
      CHECK(mine.live[static_cast<int>(p)] == mine.plan.bytes(p));
      CHECK(mine.peak[static_cast<int>(p)] == mine.plan.bytes(p));
    }
    if (accounts.size() == 1) {
      CHECK(mine.calls == 0);
      CHECK(mine.counted == 0);
    }
  }
}

}  // namespace

TEST_CASE("bytes moved and held are the planned ones, at every stage and precision, on odd layouts with ties and frozen parameters") {
  int const ranks = zero::test::ranks();
  std::uint64_t variation = 0;
  for (PrecisionName precision : precisions()) {
    for (int stage = 0; stage < stage_count; ++stage) {
      for (StreamMode mode : {StreamMode::calling, StreamMode::two_workers}) {
        ++variation;
        zero::Schedule schedule;
        schedule.micro_batches = 1 + static_cast<std::int64_t>(variation % 3);
        schedule.inference_passes = static_cast<std::int64_t>(variation / 2 % 2);
        schedule.backward_gathers = variation % 4 != 1;
        schedule.step.max_norm = variation % 2 == 0 ? 1.0 : 0.0;
        schedule.step.skip_non_finite = variation % 5 != 0;
        INFO(name(precision), ", ", stage_name(stage), ", streams ", static_cast<int>(mode), ", ", schedule.micro_batches,
             " micro-batches, ", schedule.inference_passes, " inference passes, backward gathers ", schedule.backward_gathers);
        Setting const setting{.precision = precision, .stage = stage, .ranks = ranks, .streams = mode};
        check(accounts_of(setting, odd_layout(variation + 17 * static_cast<std::uint64_t>(ranks)), schedule));
      }
    }
  }
}

TEST_CASE("the tied layout's bytes are the planned ones in every arrangement of streams") {
  int const ranks = zero::test::ranks();
  for (int stage = 0; stage < stage_count; ++stage) {
    for (StreamMode mode : {StreamMode::one_worker, StreamMode::worker_compute, StreamMode::worker_communication}) {
      for (bool backward_gathers : {false, true}) {
        INFO(stage_name(stage), ", streams ", static_cast<int>(mode), ", backward gathers ", backward_gathers);
        zero::Schedule const schedule{.micro_batches = 2, .backward_gathers = backward_gathers};
        check(accounts_of({.stage = stage, .ranks = ranks, .streams = mode}, small_layout(), schedule));
      }
    }
  }
}

TEST_CASE("many ranks in one process receive and hold what the ZeRO paper says") {
  if (zero::test::ranks() != 8) return;  // once among the registered runs is enough
#ifdef ZERO_TEST_SANITIZED
  constexpr std::int64_t n = 16;
#else
  constexpr std::int64_t n = 64;
#endif
  // No padding: every parameter is a multiple of n shards of 128 elements.
  ParameterLayout layout;
  for (int u = 0; u < 3; ++u) {
    std::string const unit = "u" + std::to_string(u);
    layout.add(layout.add_unit(unit), unit + ".w", {2 - u % 2, n, 128});
  }
  std::int64_t const psi = layout.elements();
  for (std::int64_t m : {1, 2}) {
    // arXiv 1910.02054: figure 1 for bf16 with AdamW, K = 12; section 7 for the volume, [Psi (N-1)/N elements] of 2 bytes.
    struct Row {
      int stage;
      std::int64_t model_state_bytes;
      std::int64_t volume;
    };
    Row const rows[] = {{stage0, 16 * psi, 2},
                        {stage1, 4 * psi + 12 * psi / n, 2},
                        {stage2, 2 * psi + 14 * psi / n, m + 1},
                        {stage3, 16 * psi / n, 3 * m},
                        {7, 2 * psi + 14 * psi / n, 2 * m + 1},   // (S,P,S): FSDP that reduces once a step
                        {5, 4 * psi + 12 * psi / n, 2 * m + 1}};  // (R,R,S): the classic mistake
    for (Row const& row : rows) {
      INFO(stage_name(row.stage), ", ", m, " micro-batches");
      auto const accounts =
          accounts_of({.precision = PrecisionName::bf16, .stage = row.stage, .ranks = static_cast<int>(n)}, layout, {.micro_batches = m});
      check(accounts);
      for (Account const& mine : accounts) {
        std::int64_t const model =
            mine.received[static_cast<int>(Subject::parameters)] + mine.received[static_cast<int>(Subject::gradients)];
        std::int64_t const states = mine.live[static_cast<int>(Purpose::parameters)] + mine.live[static_cast<int>(Purpose::gradients)] +
                                    mine.live[static_cast<int>(Purpose::optimizer_states)];
        CHECK(model == row.volume * 2 * psi * (n - 1) / n);
        CHECK(states == row.model_state_bytes);
        CHECK(mine.plan.model_state_bytes() == row.model_state_bytes);
      }
    }
  }
}

TEST_CASE("after the first step nothing is allocated, by any thread") {
  int const ranks = zero::test::ranks();
  zero::Schedule const schedule{.micro_batches = 2};
  PrecisionName const precision = precisions_of({PrecisionName::fp32_bf16, PrecisionName::bf16}).front();
  for (int stage = 0; stage < stage_count; ++stage) {
    for (StreamMode mode : {StreamMode::calling, StreamMode::two_workers}) {
      std::int64_t before = -1;
      std::int64_t after = -2;
      run_models({.precision = precision, .stage = stage, .ranks = ranks, .streams = mode}, small_layout(), [&](Rank rank) {
        Passes const passes = plain_passes(schedule);
        zero::HostStreamRef const here = zero::HostStreamRef::calling_thread();
        rank.model.initialize(3, zero::InitialValue::normal(0, 1));
        for (int step = 0; step < 4; ++step) {
          run_passes(rank, passes);
          static_cast<void>(rank.model.step({.max_norm = 1}).wait());
          rank.model.synchronize();
          // Between two barriers all ranks are here.
          rank.threads.enqueue(here, zero::Barrier{});
          if (rank.rank == 0) (step == 0 ? before : after) = zero::test::allocations();
          rank.threads.enqueue(here, zero::Barrier{});
        }
      });
      INFO(stage_name(stage), ", streams ", static_cast<int>(mode));
      CHECK(after == before);
    }
  }
}
