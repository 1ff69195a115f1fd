// SPDX-License-Identifier: Apache-2.0
/// @file
/// The parts inside a host stream: progress counts, frames, delays.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <zero/device/host_stream.hpp>
#include <zero/device/host_stream_core.hpp>

namespace {

using zero::detail::Progress;
using zero::detail::random_delay;
using zero::detail::StreamClaims;

std::int64_t elapsed_us(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

TEST_CASE("progress_is_reached_up_to_its_count") {
  Progress progress;
  CHECK(progress.reached(0));
  CHECK_FALSE(progress.reached(1));
  progress.wait(0);
  progress.advance(3);
  CHECK(progress.reached(3));
  CHECK_FALSE(progress.reached(4));
  progress.wait(2);
}

TEST_CASE("progress_wakes_every_waiter_at_its_own_value") {
  constexpr std::uint64_t waiters = 16;
  constexpr int rounds = 60;
  int early = 0;
  for (int round = 0; round < rounds; ++round) {
    Progress progress;
    std::atomic<std::uint64_t> advanced = 0;
    std::atomic<int> too_early = 0;
    std::vector<std::thread> crowd;
    for (std::uint64_t w = 0; w < waiters; ++w) {
      crowd.emplace_back([&, w] {
        std::uint64_t const value = (w * 7) % waiters + 1;
        progress.wait(value);
        if (advanced.load() < value) ++too_early;
      });
    }
    for (std::uint64_t value = 1; value <= waiters; ++value) {
      advanced.store(value);
      progress.advance(value);
      if (value % 5 == 0) std::this_thread::yield();
    }
    for (std::thread& thread : crowd) thread.join();  // hangs if a wake-up is lost
    early += too_early;
  }
  CHECK(early == 0);
}

TEST_CASE("progress_loses_no_wake_up_between_two_threads") {
  Progress ping;
  Progress pong;
  constexpr std::uint64_t rounds = 5000;
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      ping.wait(i);
      pong.advance(i);
    }
  });
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    ping.advance(i);
    pong.wait(i);
  }
  other.join();
  CHECK(pong.reached(rounds));
}

TEST_CASE("delays_are_mostly_none_and_sometimes_long") {
  constexpr std::uint64_t count = 8000;
  int none = 0;
  int yields = 0;
  int long_sleeps = 0;
  bool in_range = true;
  for (std::uint64_t i = 0; i < count; ++i) {
    zero::detail::Delay const delay = random_delay(11, i, 100);
    none += !delay.yields && delay.microseconds == 0;
    yields += delay.yields;
    long_sleeps += delay.microseconds > 50;
    in_range = in_range && delay.microseconds >= 0 && delay.microseconds <= 100;
  }
  CHECK(in_range);
  CHECK(none > 4500);
  CHECK(yields > 1500);
  CHECK(long_sleeps > 300);
}

TEST_CASE("delays_follow_from_the_seed") {
  bool same = true;
  int different = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    same = same && random_delay(5, i, 1000).microseconds == random_delay(5, i, 1000).microseconds;
    different += random_delay(5, i, 1000).microseconds != random_delay(6, i, 1000).microseconds;
  }
  CHECK(same);
  CHECK(different > 20);
  static_assert(random_delay(1, 0, 0).microseconds == 0);
  for (std::uint64_t i = 0; i < 200; ++i) CHECK(random_delay(1, i, 0).microseconds == 0);
}

TEST_CASE("a_seed_delays_tasks_and_the_points_inside_them") {
  constexpr std::uint64_t seed = 99;
  constexpr std::int32_t max_us = 4000;
  struct Work {
    std::uint64_t tasks;
    std::uint64_t points;  // in each task
  };
  for (Work const work : {Work{100, 0}, Work{1, 99}}) {
    std::int64_t least_us = 0;  // sleeping takes at least the time asked for
    for (std::uint64_t i = 0; i < 100; ++i) least_us += random_delay(seed, i, max_us).microseconds;
    REQUIRE(least_us > 10000);
    for (bool const worker : {true, false}) {
      zero::HostStream stream{{.worker = worker, .delay_seed = seed, .max_delay_us = max_us}};
      auto const begin = std::chrono::steady_clock::now();
      for (std::uint64_t i = 0; i < work.tasks; ++i) {
        stream.enqueue([points = work.points] {
          for (std::uint64_t p = 0; p < points; ++p) zero::detail::delay_point();
        });
      }
      stream.synchronize();
      CHECK(elapsed_us(begin) >= least_us);
    }
  }
  zero::detail::delay_point();  // outside a task: nothing
}

TEST_CASE("frames_know_the_streams_whose_tasks_run_on_this_thread") {
  using zero::detail::TaskFrame;
  auto* const a = reinterpret_cast<zero::detail::HostStreamCore*>(0x1000);  // only compared
  auto* const b = reinterpret_cast<zero::detail::HostStreamCore*>(0x2000);
  CHECK_FALSE(TaskFrame::runs(a));
  {
    TaskFrame const outer(a);
    CHECK(TaskFrame::runs(a));
    {
      TaskFrame const inner(b);
      CHECK(TaskFrame::runs(a));
      CHECK(TaskFrame::runs(b));
      CHECK(TaskFrame::innermost()->core == b);
    }
    CHECK_FALSE(TaskFrame::runs(b));
    bool elsewhere = true;
    std::thread([&elsewhere, a] { elsewhere = TaskFrame::runs(a); }).join();
    CHECK_FALSE(elsewhere);
  }
  CHECK(TaskFrame::innermost() == nullptr);
}

TEST_CASE("a stream holds collectives of one rank at a time, and those of other domains are not its business") {
  StreamClaims claims;
  bool claimed = false;
  CHECK(claims.claim(1, 7, claimed) == StreamClaims::none);
  CHECK(claimed);
  CHECK(claims.claim(1, 7, claimed) == StreamClaims::none);
  CHECK(claimed);
  CHECK(claims.claim(1, 8, claimed) == 7);
  CHECK_FALSE(claimed);
  CHECK(claims.claim(2, 8, claimed) == StreamClaims::none);
  CHECK_FALSE(claimed);
  claims.release();
  CHECK(claims.claim(1, 0, claimed) == 7);
  claims.release();
  CHECK(claims.claim(1, 0, claimed) == StreamClaims::none);
  CHECK(claimed);
  CHECK(claims.claim(1, 7, claimed) == 0);
}
