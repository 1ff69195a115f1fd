// SPDX-License-Identifier: Apache-2.0
/// @file
/// Bytes: what the transport really copied is what is counted and what was planned; what is held is what was planned, by purpose; nothing is
/// allocated in the steady state.

#include "support/allocations.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "support/accounts.hpp"
#include "support/odd_layouts.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/training_loop.hpp"

namespace {

using namespace zero::test;
using zero::ParameterLayout;
using zero::Purpose;
using zero::Subject;

std::vector<Account> accounts_of(Setting const& setting, ParameterLayout const& layout, zero::Schedule schedule, bool reserved = false) {
  schedule.overlapped = setting.streams != StreamMode::calling && setting.streams != StreamMode::one_worker;
  schedule.prefetch_bytes = setting.model.prefetch_bytes;
  std::vector<Account> result(static_cast<std::size_t>(setting.ranks));
  run_models(setting, layout, [&](Rank rank) {
    Account& mine = result[static_cast<std::size_t>(rank.rank)];
    mine = account_of(rank, schedule, reserved);
    mine.copied = rank.threads.bytes_copied();
  });
  return result;
}

void check(std::vector<Account> const& accounts) {
  for (std::size_t r = 0; r < accounts.size(); ++r) {
    INFO("rank ", r);
    zero::test::check(accounts[r], static_cast<int>(accounts.size()));
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

TEST_CASE("what is reserved for a loop is what it takes, to the byte, and nothing is allocated from its first pass on") {
  int const ranks = zero::test::ranks();
  struct Arrangement {
    StreamMode streams;
    std::int64_t prefetch_bytes;
  };
  constexpr Arrangement arrangements[] = {
      {StreamMode::calling, -1}, {StreamMode::two_workers, -1}, {StreamMode::two_workers, 0}, {StreamMode::two_workers, 5000}};
  std::uint64_t variation = 0;
  for (int stage = 0; stage < stage_count; ++stage) {
    for (Arrangement const& arrangement : arrangements) {
      for (bool backward_gathers : {false, true}) {
        ++variation;
        PrecisionName const precision = precisions()[variation / 8 % std::size(precisions())];
        zero::Schedule const schedule{.micro_batches = 1 + static_cast<std::int64_t>(variation % 2),
                                      .inference_passes = static_cast<std::int64_t>(variation / 2 % 2),
                                      .backward_gathers = backward_gathers};
        INFO(name(precision), ", ", stage_name(stage), ", streams ", static_cast<int>(arrangement.streams), ", ",
             arrangement.prefetch_bytes, " bytes ahead, ", schedule.micro_batches, " micro-batches, ", schedule.inference_passes,
             " inference passes, backward gathers ", backward_gathers);
        Setting const setting{.precision = precision,
                              .stage = stage,
                              .ranks = ranks,
                              .streams = arrangement.streams,
                              .model = {.prefetch_bytes = arrangement.prefetch_bytes}};
        check(accounts_of(setting, odd_layout(variation + 31 * static_cast<std::uint64_t>(ranks)), schedule, true));
        check(accounts_of(setting, tied_layout(), schedule, true));
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

namespace {

/// Blocks that this process allocates in four steps where the buffers are reserved; else after the first one.
std::int64_t blocks_allocated(Setting const& setting, bool reserved) {
  zero::Schedule const schedule{.micro_batches = 2};
  std::int64_t before = -1;
  std::int64_t after = -2;
  run_models(setting, small_layout(), [&](Rank rank) {
    Passes const passes = plain_passes(schedule);
    // Between two barriers all ranks are here.
    auto const count = [&](std::int64_t& blocks) {
      rank.model.synchronize();
      rank.threads.enqueue(zero::HostStreamRef::calling_thread(), zero::Barrier{});
      if (rank.rank == 0) blocks = zero::test::allocations();
      rank.threads.enqueue(zero::HostStreamRef::calling_thread(), zero::Barrier{});
    };
    rank.model.initialize(3, zero::InitialValue::normal(0, 1));
    if (reserved) {
      rank.model.reserve(schedule);
      count(before);
    }
    for (int step = 0; step < 4; ++step) {
      run_passes(rank, passes);
      static_cast<void>(rank.model.step({.max_norm = 1}).wait());
      count(step == 0 && !reserved ? before : after);
    }
  });
  return after - before;
}

}  // namespace

TEST_CASE("after the first step, and in it where buffers were reserved, nothing is allocated, by any thread") {
  PrecisionName const precision = precisions_of({PrecisionName::fp32_bf16, PrecisionName::bf16}).front();
  for (int stage = 0; stage < stage_count; ++stage) {
    for (StreamMode mode : {StreamMode::calling, StreamMode::two_workers}) {
      for (bool reserved : {false, true}) {
        INFO(stage_name(stage), ", streams ", static_cast<int>(mode), ", reserved ", reserved);
        CHECK(blocks_allocated({.precision = precision, .stage = stage, .ranks = zero::test::ranks(), .streams = mode}, reserved) == 0);
      }
    }
  }
}
