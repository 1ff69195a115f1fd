// SPDX-License-Identifier: Apache-2.0
/// @file
/// Host streams: order, events, failure, life time, and that the steady state allocates nothing.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/device/host_stream.hpp>

#include "support/allocations.hpp"
#include "support/gate.hpp"

namespace {

using zero::HostEvent;
using zero::HostStream;
using zero::HostStreamRef;
using zero::test::Gate;
using zero::test::OpenAtEnd;

static_assert(std::is_trivially_copyable_v<HostStreamRef> && std::is_trivially_copyable_v<HostEvent>);
static_assert(sizeof(HostStreamRef) == sizeof(void*) && sizeof(HostEvent) == 16);
static_assert(!std::is_default_constructible_v<HostStreamRef>);  // no hidden stream
static_assert(!std::is_constructible_v<HostStreamRef, std::nullptr_t> && !std::is_constructible_v<HostStreamRef, int>);
static_assert(std::is_convertible_v<HostStream&, HostStreamRef> && std::is_convertible_v<HostStream const&, HostStreamRef>);
static_assert(!std::is_convertible_v<HostStream, HostStreamRef>);  // a view of a temporary
static_assert(!std::is_copy_constructible_v<HostStream> && std::is_nothrow_move_constructible_v<HostStream>);
static_assert(std::is_nothrow_destructible_v<HostStream>);
static_assert(std::is_nothrow_default_constructible_v<HostEvent>);

std::exception_ptr cause_of(auto call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::string text_of(std::exception_ptr const& cause) {
  try {
    if (cause) std::rethrow_exception(cause);
  } catch (std::exception const& error) {
    return error.what();
  }
  return "";
}

/// Lets a stream fail with this text, and waits until it has.
void fail(HostStreamRef stream, char const* text) {
  stream.enqueue([text] { throw zero::Error(text); });
  CHECK_THROWS_AS(stream.synchronize(), zero::Error);
}

}  // namespace

TEST_CASE("runs_tasks_in_order_through_a_queue_of_any_size") {
  for (std::int32_t const capacity : {1, 2, 3, 7, 256}) {
    HostStream stream{{.capacity = capacity}};
    std::vector<int> order;
    order.reserve(1000);
    for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i] { order.push_back(i); });
    stream.synchronize();
    REQUIRE(order.size() == 1000);
    bool in_order = true;
    for (int i = 0; i < 1000; ++i) in_order = in_order && order[static_cast<std::size_t>(i)] == i;
    CHECK(in_order);
  }
}

TEST_CASE("a_worker_runs_tasks_on_one_thread_of_its_own") {
  HostStream stream;
  std::thread::id first;
  std::thread::id second;
  stream.enqueue([&first] { first = std::this_thread::get_id(); });
  stream.enqueue([&second] { second = std::this_thread::get_id(); });
  stream.synchronize();
  CHECK(first == second);
  CHECK(first != std::this_thread::get_id());
}

TEST_CASE("enqueue_returns_before_the_task_ran") {
  Gate gate;
  HostStream stream;
  OpenAtEnd const end{gate};
  stream.enqueue([&gate] { gate.pass(); });
  HostEvent const event = stream.record();
  gate.wait_for_arrival();
  CHECK_FALSE(event.ready());
  gate.open();
  event.synchronize();
  CHECK(event.ready());
}

TEST_CASE("field case 54: two streams run at the same time") {
  HostStream a;
  HostStream b;
  Gate in_a;
  Gate in_b;
  a.enqueue([&] {
    in_a.open();
    in_b.pass();
  });
  b.enqueue([&] {
    in_b.open();
    in_a.pass();
  });
  a.synchronize();  // hangs if one task is finished before the other begins
  b.synchronize();
  CHECK(a.record().ready());
}

TEST_CASE("a_full_queue_blocks_the_producer_and_loses_nothing") {
  Gate gate;
  HostStream stream{{.capacity = 4}};
  OpenAtEnd const end{gate};
  std::atomic<int> enqueued = 0;
  int ran = 0;
  stream.enqueue([&gate] { gate.pass(); });
  gate.wait_for_arrival();
  std::thread producer([&] {
    for (int i = 0; i < 10; ++i) {
      stream.enqueue([&ran] { ++ran; });
      ++enqueued;
    }
  });
  while (enqueued.load() < 3) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  int const while_closed = enqueued.load();
  gate.open();
  producer.join();
  stream.synchronize();
  CHECK(while_closed == 3);  // and the one at the gate
  CHECK(ran == 10);
}

TEST_CASE("several_producers_keep_their_own_order") {
  constexpr int producers = 4;
  constexpr int tasks = 2000;
  for (std::int32_t const capacity : {1, 8, 256}) {
    HostStream stream{{.capacity = capacity}};
    std::array<int, producers> next{};
    int disordered = 0;
    std::vector<std::thread> crowd;
    for (std::size_t p = 0; p < producers; ++p) {
      crowd.emplace_back([&, p] {
        for (int i = 0; i < tasks; ++i) {
          stream.enqueue([&next, &disordered, p, i] { disordered += next[p]++ != i; });
        }
      });
    }
    for (std::thread& thread : crowd) thread.join();
    stream.synchronize();
    CHECK(disordered == 0);
    for (int const n : next) CHECK(n == tasks);
  }
}

TEST_CASE("a_wait_orders_two_streams") {
  for (int round = 0; round < 200; ++round) {
    HostStream a{{.delay_seed = static_cast<std::uint64_t>(round % 4), .max_delay_us = 50}};
    HostStream b{{.capacity = 2, .delay_seed = static_cast<std::uint64_t>(round % 3), .max_delay_us = 50}};
    std::int64_t x = 0;
    std::int64_t expected = 0;
    for (int i = 0; i < 20; ++i) {
      a.enqueue([&x] { x += 1; });
      b.wait(a.record());
      b.enqueue([&x] { x = x * 3 % 1000003; });
      a.wait(b.record());
      expected = (expected + 1) * 3 % 1000003;
    }
    b.synchronize();
    CHECK(x == expected);
  }
}

TEST_CASE("field case 55: a gather on another stream waits for the update, however late") {
  Gate gate;
  HostStream compute;
  HostStream communication;
  OpenAtEnd const end{gate};
  std::vector<float> parameter(8, 1.0f);
  std::vector<float> gathered(8, 0.0f);
  compute.enqueue([&] {
    gate.pass();
    for (float& p : parameter) p = 2.0f;
  });
  communication.wait(compute.record());
  communication.enqueue([&] { gathered = parameter; });
  gate.wait_for_arrival();
  CHECK_FALSE(communication.record().ready());
  gate.open();
  communication.synchronize();
  CHECK(gathered == std::vector<float>(8, 2.0f));
}

TEST_CASE("a_wait_holds_for_the_event_and_not_for_what_comes_after_it") {
  Gate gate;
  HostStream a;
  HostStream b;
  OpenAtEnd const end{gate};
  int x = 0;
  a.enqueue([&x] { x = 1; });
  HostEvent const event = a.record();
  a.enqueue([&gate] { gate.pass(); });
  b.wait(event);
  int seen = 0;
  b.enqueue([&] { seen = x; });
  b.synchronize();  // returns although the gate is closed
  CHECK(seen == 1);
}

TEST_CASE("the_calling_thread_waits_for_a_worker_s_event") {
  HostStream a;
  int x = 0;
  a.enqueue([&x] {
    std::this_thread::yield();
    x = 4;
  });
  HostStreamRef const here = HostStreamRef::calling_thread();
  here.wait(a.record());
  CHECK(x == 4);
  HostStream with_options{{.worker = false}};
  a.enqueue([&x] {
    std::this_thread::yield();
    x = 5;
  });
  with_options.wait(a.record());
  CHECK(x == 5);
}

TEST_CASE("the_calling_thread_runs_tasks_at_once_and_lets_exceptions_pass") {
  HostStream owner{{.worker = false}};
  for (HostStreamRef const stream : {HostStreamRef::calling_thread(), HostStreamRef(owner)}) {
    std::thread::id where;
    stream.enqueue([&where] { where = std::this_thread::get_id(); });
    CHECK(where == std::this_thread::get_id());
    CHECK(stream.record() == HostEvent{});
    CHECK_THROWS_WITH(stream.enqueue([] { throw zero::Error("here"); }), "zero: here");
    CHECK(stream.failure() == nullptr);
    CHECK_NOTHROW(stream.synchronize());
    CHECK_NOTHROW(stream.enqueue([] {}));
  }
}

TEST_CASE("a_default_event_is_complete") {
  HostEvent const none;
  CHECK(none.ready());
  none.synchronize();
  HostStream a;
  CHECK(a.record().ready());  // nothing was enqueued
  a.wait(none);
  a.wait(a.record());
  int x = 0;
  a.enqueue([&x] { x = 1; });
  a.wait(a.record());  // an event of its own
  a.synchronize();
  CHECK(x == 1);
}

TEST_CASE("a_task_that_throws_fails_the_stream_with_the_first_cause") {
  Gate gate;
  HostStream stream;
  OpenAtEnd const end{gate};
  int ran = 0;
  stream.enqueue([&gate] { gate.pass(); });
  stream.enqueue([&ran] { ++ran; });
  HostEvent const before = stream.record();
  stream.enqueue([] { throw zero::Error("first"); });
  HostEvent const at = stream.record();
  stream.enqueue([&ran] { ran += 100; });
  stream.enqueue([] { throw zero::Error("second"); });
  HostEvent const behind = stream.record();
  CHECK(stream.failure() == nullptr);
  gate.open();
  std::exception_ptr const cause = cause_of([&] { stream.synchronize(); });
  CHECK(text_of(cause) == "zero: first");
  CHECK(ran == 1);  // what was queued behind did not run
  CHECK(stream.failure() == cause);
  CHECK(cause_of([&] { stream.synchronize(); }) == cause);  // every time
  CHECK(cause_of([&] { stream.enqueue([&ran] { ran += 1000; }); }) == cause);
  CHECK(cause_of([&] { stream.wait(HostEvent{}); }) == cause);
  CHECK_NOTHROW(before.synchronize());  // completed before the failure
  CHECK(cause_of([&] { at.synchronize(); }) == cause);
  CHECK(cause_of([&] { behind.synchronize(); }) == cause);
  CHECK(at.ready());
  CHECK(behind.ready());
  CHECK(cause_of([&] { stream.record().synchronize(); }) == cause);
  CHECK(ran == 1);
}

TEST_CASE("a_failure_travels_along_waits_and_keeps_its_cause") {
  for (bool const late : {false, true}) {
    Gate gate;
    HostStream a;
    HostStream b;
    HostStream c;
    OpenAtEnd const end{gate};
    int ran = 0;
    a.enqueue([&gate] { gate.pass(); });
    a.enqueue([] { throw zero::Error("in a"); });
    HostEvent const in_a = a.record();
    if (late) {
      gate.open();
      CHECK_THROWS(in_a.synchronize());
    }
    b.wait(in_a);
    HostEvent const in_b = b.record();
    c.enqueue([&ran] { ran += 1; });
    c.wait(in_b);
    try {
      c.enqueue([&ran] { ran += 10; });
    } catch (zero::Error const&) {  // the failure may have arrived already
    }
    gate.open();
    std::exception_ptr const cause = cause_of([&] { c.synchronize(); });
    CHECK(text_of(cause) == "zero: in a");
    CHECK(cause == a.failure());
    CHECK(cause == b.failure());
    CHECK(ran == 1);
    CHECK(cause_of([&] { HostStreamRef::calling_thread().wait(in_b); }) == cause);
  }
}

TEST_CASE("an_event_before_the_failure_fails_nobody") {
  HostStream a;
  int x = 0;
  a.enqueue([&x] { x = 3; });
  HostEvent const good = a.record();
  fail(a, "later");
  HostStream b;
  int seen = 0;
  b.wait(good);
  b.enqueue([&] { seen = x; });
  CHECK_NOTHROW(b.synchronize());
  CHECK(seen == 3);
  CHECK_NOTHROW(HostStreamRef::calling_thread().wait(good));
}

TEST_CASE("a_stream_that_failed_keeps_its_own_cause_when_it_waits_for_another") {
  HostStream a;
  HostStream b;
  Gate gate;
  OpenAtEnd const end{gate};
  fail(a, "of a");
  b.enqueue([&gate] { gate.pass(); });
  b.enqueue([] { throw zero::Error("of b"); });
  b.wait(a.record());
  gate.open();
  CHECK_THROWS_WITH(b.synchronize(), "zero: of b");
}

TEST_CASE("tasks_that_do_not_run_are_destroyed") {
  auto const content = std::make_shared<int>(1);
  Gate gate;
  HostStream stream;
  OpenAtEnd const end{gate};
  stream.enqueue([&gate] {
    gate.pass();
    throw zero::Error("x");
  });
  for (int i = 0; i < 5; ++i) stream.enqueue([content] {});
  CHECK(content.use_count() == 6);
  gate.open();
  CHECK_THROWS(stream.synchronize());
  CHECK(content.use_count() == 1);
}

TEST_CASE("tasks_are_destroyed_as_soon_as_they_ran") {
  auto const content = std::make_shared<int>(1);
  HostStream stream;
  stream.enqueue([content] {});
  stream.synchronize();
  CHECK(content.use_count() == 1);
}

TEST_CASE("tasks_may_be_move_only_and_hold_256_bytes") {
  HostStream stream;
  auto number = std::make_unique<int>(5);
  int seen = 0;
  stream.enqueue([number = std::move(number), &seen] { seen = *number; });
  std::array<std::int32_t, 62> numbers{};
  numbers[61] = 9;
  auto task = [numbers, &seen] { seen += numbers[61]; };
  static_assert(sizeof task == 256);
  stream.enqueue(task);
  stream.synchronize();
  CHECK(seen == 14);
}

TEST_CASE("using_its_own_stream_inside_a_task_is_an_error_and_no_deadlock") {
  int const line = __LINE__ + 5;
  for (int call = 0; call < 4; ++call) {
    HostStream stream{{.capacity = 1}};
    HostStreamRef const view = stream;
    stream.enqueue([view, call] {
      if (call == 0) view.enqueue([] {});
      if (call == 1) view.wait(HostEvent{});
      if (call == 2) view.synchronize();
      if (call == 3) view.record().synchronize();
    });
    try {
      stream.synchronize();
      CHECK_MESSAGE(false, call);
    } catch (zero::UsageError const& error) {
      CHECK(error.where().line == line + call);
      CHECK(std::string(error.what()).find("host_stream.cpp") != std::string::npos);
    }
  }
}

TEST_CASE("a_stream_without_a_worker_refuses_its_own_tasks_too") {
  HostStream stream{{.worker = false}};
  HostStreamRef const view = stream;
  CHECK_THROWS_AS(stream.enqueue([view] { view.enqueue([] {}); }), zero::UsageError);
  CHECK_THROWS_AS(stream.enqueue([view] { view.wait(HostEvent{}); }), zero::UsageError);
  CHECK_THROWS_AS(stream.enqueue([view] { view.synchronize(); }), zero::UsageError);
  CHECK_NOTHROW(stream.enqueue([] {}));
}

TEST_CASE("a_task_run_by_another_stream_still_knows_the_outer_one") {
  HostStream worker;
  HostStream here{{.worker = false}};
  HostStreamRef const view = worker;
  HostStreamRef const inner = here;
  worker.enqueue([view, inner] { inner.enqueue([view] { view.synchronize(); }); });
  CHECK_THROWS_AS(worker.synchronize(), zero::UsageError);
}

TEST_CASE("a_task_may_use_another_stream") {
  HostStream a;
  HostStream b;
  HostStreamRef const other = b;
  int x = 0;
  a.enqueue([other, &x] {
    other.enqueue([&x] { x = 8; });
    other.synchronize();
    x += 1;
  });
  a.synchronize();
  CHECK(x == 9);
}

TEST_CASE("an_earlier_event_of_its_own_stream_may_be_asked_inside_a_task") {
  HostStream stream;
  int x = 0;
  stream.enqueue([&x] { x = 1; });
  HostEvent const earlier = stream.record();
  stream.enqueue([earlier, &x] {
    earlier.synchronize();
    x += 1;
  });
  CHECK_NOTHROW(stream.synchronize());
  CHECK(x == 2);
}

TEST_CASE("the_destructor_runs_what_is_queued") {
  int ran = 0;
  {
    HostStream stream{{.capacity = 8, .delay_seed = 5, .max_delay_us = 100}};
    for (int i = 0; i < 50; ++i) stream.enqueue([&ran] { ++ran; });
  }
  CHECK(ran == 50);
}

TEST_CASE("the_destructor_of_a_failed_stream_does_not_throw") {
  int ran = 0;
  {
    HostStream stream;
    stream.enqueue([] { throw 1; });
    try {
      for (int i = 0; i < 20; ++i) stream.enqueue([&ran] { ++ran; });
    } catch (int) {
    }
  }
  CHECK(ran == 0);
}

TEST_CASE("streams_that_wait_for_each_other_may_end_in_any_order") {
  for (int round = 0; round < 300; ++round) {
    std::optional<HostStream> a;
    std::optional<HostStream> b;
    std::uint64_t const seed = static_cast<std::uint64_t>(round % 5);
    a.emplace(zero::HostStreamOptions{.delay_seed = seed, .max_delay_us = 40});
    b.emplace(zero::HostStreamOptions{.delay_seed = seed, .max_delay_us = 80});
    int x = 0;
    a->enqueue([&x] { x = 1; });
    b->wait(a->record());
    b->enqueue([&x] { x += 1; });
    if (round % 2 == 0) a.reset();  // b may not have looked at the event yet
    b.reset();
    CHECK(x == 2);
  }
}

TEST_CASE("a_moved_stream_keeps_its_worker_and_its_views") {
  HostStream a;
  HostStreamRef const view = a;
  int x = 0;
  HostStream b{std::move(a)};
  view.enqueue([&x] { x += 1; });
  b.enqueue([&x] { x += 1; });
  b.synchronize();
  CHECK(x == 2);
  CHECK(view == b);
  CHECK(a == HostStreamRef::calling_thread());  // NOLINT(bugprone-use-after-move): what is left is specified
  HostStream c;
  c.enqueue([&x] { x += 10; });
  c = std::move(b);
  CHECK(x == 12);  // the former worker has finished
  CHECK(view == c);
  HostStream& same = c;
  c = std::move(same);
  c.enqueue([&x] { x += 1; });
  c.synchronize();
  CHECK(x == 13);
}

TEST_CASE("refuses_impossible_options") {
  CHECK_THROWS_AS(HostStream({.capacity = 0}), zero::UsageError);
  CHECK_THROWS_AS(HostStream({.capacity = -7}), zero::UsageError);
  CHECK_THROWS_AS(HostStream({.delay_seed = 1, .max_delay_us = -1}), zero::UsageError);
}

TEST_CASE("allocates_nothing_after_construction") {
  if (!zero::test::counts_allocations) {
    MESSAGE("skipped: allocations cannot be counted under this sanitizer");
    return;
  }
  HostStream a{{.capacity = 16, .delay_seed = 1, .max_delay_us = 1}};
  HostStream b;
  HostStream c{{.worker = false}};
  std::array<std::int32_t, 60> large{};
  std::int64_t sum = 0;
  auto const step = [&] {
    a.enqueue([large, &sum] { sum += large[3] + 1; });
    b.wait(a.record());
    b.enqueue([&sum] {
      sum *= 2;
      sum %= 1009;
    });
    a.wait(b.record());
    c.wait(a.record());
    c.enqueue([] {});
    HostStreamRef::calling_thread().wait(a.record());
    a.synchronize();
  };
  step();
  std::int64_t const before = zero::test::allocations();
  for (int i = 0; i < 300; ++i) step();
  std::int64_t const after = zero::test::allocations();
  CHECK(before > 0);
  CHECK(after == before);
}

TEST_CASE("128_streams_make_progress_on_few_processors") {
  constexpr std::size_t ranks = 64;
  constexpr int rounds = 20;
  std::vector<HostStream> compute;
  std::vector<HostStream> communication;
  for (std::size_t r = 0; r < ranks; ++r) {
    compute.emplace_back(zero::HostStreamOptions{.capacity = 8});
    communication.emplace_back(zero::HostStreamOptions{.capacity = 8});
  }
  // A ring: every rank's communication stream waits for its own compute stream and for its neighbour's.
  std::vector<std::int64_t> value(ranks, 0);
  std::vector<std::int64_t> received(ranks, 0);
  for (int round = 0; round < rounds; ++round) {
    std::vector<HostEvent> computed(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      compute[r].enqueue([&value, &received, r] { value[r] += received[r] + 1; });
      computed[r] = compute[r].record();
    }
    std::vector<HostEvent> moved(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      std::size_t const left = (r + ranks - 1) % ranks;
      communication[r].wait(computed[left]);
      communication[r].wait(computed[r]);
      communication[r].enqueue([&value, &received, r, left] { received[r] = value[left] % 1000; });
      moved[r] = communication[r].record();
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      compute[r].wait(moved[r]);
      compute[r].wait(moved[(r + 1) % ranks]);
    }
  }
  for (HostStream const& stream : compute) stream.synchronize();
  std::int64_t expected_value = 0;
  std::int64_t expected_received = 0;
  for (int round = 0; round < rounds; ++round) {
    expected_value += expected_received + 1;
    expected_received = expected_value % 1000;
  }
  bool right = true;
  for (std::size_t r = 0; r < ranks; ++r) right = right && value[r] == expected_value && received[r] == expected_received;
  CHECK(right);
}

TEST_CASE("delays_change_no_result") {
  std::vector<std::int64_t> results;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    HostStream a{{.delay_seed = seed, .max_delay_us = 60}};
    HostStream b{{.delay_seed = seed * 31, .max_delay_us = 60}};
    std::int64_t x = 1;
    for (int i = 0; i < 30; ++i) {
      a.enqueue([&x, i] { x = x * 5 + i; });
      b.wait(a.record());
      b.enqueue([&x] {
        zero::detail::delay_point();
        x = x % 100003 + 7;
      });
      a.wait(b.record());
    }
    a.synchronize();
    results.push_back(x);
  }
  CHECK(results == std::vector<std::int64_t>(results.size(), results[0]));
}
