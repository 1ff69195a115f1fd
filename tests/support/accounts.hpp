// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a rank received and held in three steps, against its plan, on any engine.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "support/training_passes.hpp"

namespace zero::test {

inline constexpr Purpose purposes[] = {Purpose::parameters,       Purpose::gradients, Purpose::optimizer_states, Purpose::gathered,
                                       Purpose::gradient_scratch, Purpose::staging,   Purpose::control};
inline constexpr Subject subjects[] = {Subject::user, Subject::parameters, Subject::gradients, Subject::optimizer_states, Subject::control};

/// What one rank saw, and what was planned for it.
struct Account {
  Plan plan;
  std::int64_t received[subject_count] = {};  ///< in the second step
  std::int64_t calls = 0;                     ///< in all steps
  std::int64_t counted = 0;                   ///< bytes of all steps and the start
  std::int64_t copied = -1;                   ///< by the transport, where it can say so
  std::int64_t live[purpose_count] = {};      ///< after each step; of the last
  std::int64_t peak[purpose_count] = {};
  bool at_baseline = true;       ///< after the third step as after the second; where all was reserved, from then on
  std::int64_t allocations = 0;  ///< in the second and third step; where all was reserved, in the first one too
};

inline Passes plain_passes(Schedule const& schedule) {
  Passes passes;
  passes.micro_batches = schedule.micro_batches;
  passes.inference_passes = schedule.inference_passes;
  passes.backward_gathers = schedule.backward_gathers;
  passes.rule = [](int, std::int64_t, Unit, ParameterId) { return GradientRule::constant(0.25); };
  return passes;
}

/// Trains for three steps.
/// @param reserved  with buffers that are all there before
template <class D>
Account account_of(BasicRank<D> const& rank, Schedule const& schedule, bool reserved = false) {
  Account mine;
  Passes const passes = plain_passes(schedule);
  rank.model.initialize(3, InitialValue::normal(0, 1));
  Schedule said = schedule;
  said.overlapped = !said.overlapped;  // It knows better.
  said.prefetch_bytes = said.prefetch_bytes == 0 ? -1 : 0;
  if (reserved) {
    rank.model.reserve(said);
    for (Purpose p : purposes) mine.live[static_cast<int>(p)] = rank.memory.live(p);
  }
  std::int64_t allocations = rank.memory.allocations();
  for (int step = 0; step < 3; ++step) {
    std::int64_t before[subject_count];
    for (Subject s : subjects) before[static_cast<int>(s)] = rank.traffic.received_bytes(s);
    run_passes(rank, passes);
    if (reserved) rank.model.reserve(said);  // All of it is there, also what a reduction still uses.
    static_cast<void>(rank.model.step(schedule.step).wait());
    rank.model.synchronize();
    if (step == 0 && !reserved) allocations = rank.memory.allocations();
    for (Subject s : subjects) {
      std::int64_t const bytes = rank.traffic.received_bytes(s) - before[static_cast<int>(s)];
      if (step > 0) mine.at_baseline = mine.at_baseline && (step == 1 || bytes == mine.received[static_cast<int>(s)]);
      mine.received[static_cast<int>(s)] = bytes;
    }
    for (Purpose p : purposes) {
      std::int64_t const bytes = rank.memory.live(p);
      mine.at_baseline = mine.at_baseline && ((step == 0 && !reserved) || bytes == mine.live[static_cast<int>(p)]);
      mine.live[static_cast<int>(p)] = bytes;
      mine.peak[static_cast<int>(p)] = rank.memory.peak(p);
    }
  }
  mine.plan = rank.model.plan(schedule, rank.rank);
  mine.calls = rank.traffic.calls();
  mine.counted = rank.traffic.received_bytes();
  mine.allocations = rank.memory.allocations() - allocations;
  return mine;
}

inline void check(Account const& mine, int ranks) {
  if (mine.copied >= 0) CHECK(mine.copied == mine.counted);
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
  if (ranks == 1) {
    CHECK(mine.calls == 0);
    CHECK(mine.counted == 0);
  }
}

}  // namespace zero::test
