// SPDX-License-Identifier: Apache-2.0
/// @file
/// One rank fails, anywhere in a training loop: what its peers see, what is left, and what must not happen on the way out.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/held_values.hpp"
#include "support/outcomes.hpp"
#include "support/same_bits.hpp"
#include "support/sanitized.hpp"
#include "support/stages.hpp"

namespace {

// A heap that refuses, for the thread that asks for it.
struct HeapOrders {
  std::int64_t allowed = -1;  // allocations until the first refusal; -1: no refusals
  bool for_good = false;
};
thread_local HeapOrders heap_orders;
thread_local std::int64_t heap_calls = 0;

[[gnu::noinline]] void* block_of(std::size_t bytes, std::size_t alignment) {
  ++heap_calls;
  if (heap_orders.allowed == 0) {
    if (!heap_orders.for_good) heap_orders.allowed = -1;
    throw std::bad_alloc();
  }
  if (heap_orders.allowed > 0) --heap_orders.allowed;
  std::size_t const whole = (bytes + alignment - 1) / alignment * alignment;
  if (void* const block = std::aligned_alloc(alignment, whole == 0 ? alignment : whole)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* block_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  try {
    return block_of(bytes, alignment);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}
[[gnu::noinline]] void free_block(void* block) noexcept { std::free(block); }

}  // namespace

void* operator new(std::size_t bytes) { return block_of(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return block_of(bytes, static_cast<std::size_t>(alignment)); }
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept { return block_or_null(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment, std::nothrow_t const&) noexcept {
  return block_or_null(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { free_block(block); }
void operator delete(void* block, std::size_t) noexcept { free_block(block); }
void operator delete(void* block, std::align_val_t) noexcept { free_block(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { free_block(block); }
void operator delete(void* block, std::nothrow_t const&) noexcept { free_block(block); }
void operator delete(void* block, std::align_val_t, std::nothrow_t const&) noexcept { free_block(block); }

namespace {

using zero::HostStreamRef;
using zero::test::is;
using zero::test::Outcomes;
using zero::test::same_bits;
using zero::test::what_of;

constexpr int ranks = 3;
constexpr zero::RunOptions patience{.deadline_ms = 20'000};
#ifdef ZERO_TEST_SANITIZED
constexpr int stride = 5;  // every so many of the places where a rank may fail
#else
constexpr int stride = 1;
#endif

using ShardedPartialSharded = zero::test::Triple<zero::Sharded, zero::Partial, zero::Sharded>;
using AllReplicated = zero::test::Triple<zero::Replicated, zero::Replicated, zero::Replicated>;
using Single = zero::Precision<float>;
using Mixed = zero::Precision<zero::bf16, zero::bf16, zero::bf16, float>;

/// What the failing rank throws.
struct Planned : std::runtime_error {
  explicit Planned(int at) : std::runtime_error("planned at " + std::to_string(at)), place(at) {}
  int place;
};

enum class How { throws, returns, task_throws };

/// Counts the places a rank comes by, and makes it fail at one of them. One a rank.
struct Probe {
  How how = How::throws;
  int target = -1;
  int places = 0;
  std::atomic<int> task_places = 0;
  bool failed = false;
  int late_collectives = 0;  // asked for after the failure, or while an exception passes through

  /// A place in the loop; true where the rank shall return.
  bool place() {
    int const here = places++;
    if (how == How::task_throws || here != target) return false;
    failed = true;
    if (how == How::throws) throw Planned(here);
    return true;
  }
  /// A place in a task of a stream.
  void task_place() {
    int const here = task_places.fetch_add(1);
    if (how == How::task_throws && here == target) throw Planned(here);
  }
};

/// A communicator under observation.
class Watched {
public:
  using Device = zero::HostDevice;

  Watched(zero::ThreadCommunicator& inner, Probe& probe) : inner_(&inner), probe_(&probe) {}

  [[nodiscard]] int rank() const noexcept { return inner_->rank(); }
  [[nodiscard]] int size() const noexcept { return inner_->size(); }
  void abort(std::exception_ptr cause) noexcept { inner_->abort(std::move(cause)); }

  template <class Operation>
    requires zero::Performs<zero::ThreadCommunicator, Operation>
  void enqueue(HostStreamRef stream, Operation const& operation, zero::SourceLocation where = zero::SourceLocation::current()) {
    if (probe_->failed || std::uncaught_exceptions() > 0) ++probe_->late_collectives;
    inner_->enqueue(stream, operation, where);
  }
  template <class Body>
  void group(HostStreamRef stream, Body&& body) {
    inner_->group(stream, std::forward<Body>(body));
  }
  [[nodiscard]] zero::ThreadCommunicator split(int color, int key = 0) { return inner_->split(color, key); }

private:
  zero::ThreadCommunicator* inner_;
  Probe* probe_;
};

zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  auto const first = layout.add_unit("first");
  auto const table = layout.add(first, "table", {7, 3});
  auto const middle = layout.add_unit("middle");
  layout.add(middle, "middle.weight", {41});
  layout.add(middle, "middle.frozen", {2}, {.trainable = false});
  auto const last = layout.add_unit("last");
  layout.add(last, "last.weight", {5});
  layout.tie(table, last);
  return layout;
}

/// What a rank stores of parameters and masters, without gaps and padding.
template <class Parameters>
std::vector<double> stored_values(Parameters& parameters) {
  std::vector<double> values;
  auto const& partition = parameters.partition();
  for (zero::SegmentId segment : partition.segments()) {
    zero::test::append_held(partition, segment, parameters.stored(segment), values);
    if (partition.segment(segment).trainable) zero::test::append_held(partition, segment, parameters.masters(segment), values);
  }
  return values;
}

/// Where the steps of the loop stand among the places.
struct Landmarks {
  int initialized = -1;
  int before_reduce[2] = {-1, -1};
  int published[2] = {-1, -1};
  std::vector<double> values[3];  // after so many steps
  std::int64_t allocations = 0;   // until the end of the steps
};

struct Rank {
  Probe probe;
  std::int64_t failing_allocation = 0;
  HeapOrders heap;
  std::optional<std::vector<double>> values;  // when the loop was left, if there were parameters
  std::int64_t live = -1;
  std::int64_t allocations = 0;
  std::int64_t heap_calls = 0;  // of a program that ended
};

#define ZERO_TEST_PLACE \
  if (probe.place()) return

/// One rank's program: parameters, optimizer, two steps, the whole model; places to fail between any two calls, and between any two writes.
template <class S, class P>
void train(zero::ThreadCommunicator& comm, bool workers, Rank& rank, Landmarks* landmarks) {
  using Gradient = typename P::gradient;
  Probe& probe = rank.probe;
  zero::CountingResource counting(zero::host_memory());
  zero::PoisoningResource poisoning(counting);
  zero::FailingResource memory(poisoning, rank.failing_allocation);
  struct AtEnd {
    Rank& rank;
    zero::CountingResource& counting;
    zero::FailingResource& memory;
    ~AtEnd() {
      rank.live = counting.live();
      rank.allocations = memory.calls();
    }
  } const at_end{rank, counting, memory};
  zero::HostStream communication({.worker = workers});
  zero::HostStream compute({.worker = workers});
  Watched group(comm, probe);
  auto const layout = make_layout();

  ZERO_TEST_PLACE;
  auto parameters = zero::shard_parameters<S, P>(layout, group, {compute, communication}, memory,
                                                 {.partition = {.shard_alignment = 4, .parameter_alignment = 4}, .poison_released = true});
  ZERO_TEST_PLACE;
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.1}};

  auto const write = [&](auto const& gradients, auto const& weights, float data) {
    for (int i = 0; i < gradients.size(); ++i) {
      if (gradients[i] == nullptr) continue;
      zero::HostDevice::run(compute, [to = gradients[i], from = weights[i], n = gradients.elements(i), data, &probe] {
        for (std::int64_t k = 0; k < n; ++k) {
          if (k == n / 2) probe.task_place();
          to[k] = Gradient(float(to[k]) + 0.5f * float(from[k]) + data);
        }
      });
    }
  };
  auto const loop = [&] {
    ZERO_TEST_PLACE;
    parameters.initialize(3, [&](zero::ParameterId) {
      if (probe.how == How::throws) static_cast<void>(probe.place());  // one cannot return from the loop here
      return zero::InitialValue::normal(0, 1);
    });
    if (landmarks) landmarks->initialized = probe.places, landmarks->values[0] = stored_values(parameters);
    for (int step = 0; step < 2; ++step) {
      for (int m = 0; m < 2 - step; ++m) {
        ZERO_TEST_PLACE;
        auto pass = parameters.training_pass({.last = step == 0 && m == 1});
        for (zero::Unit unit : layout.units()) {
          ZERO_TEST_PLACE;
          [[maybe_unused]] auto const weights = pass.gather(unit);
          ZERO_TEST_PLACE;
          zero::HostDevice::run(compute, [&probe] { probe.task_place(); });
        }
        for (zero::Unit unit : layout.units().reversed()) {
          ZERO_TEST_PLACE;
          auto const weights = pass.gather(unit);
          ZERO_TEST_PLACE;
          auto gradients = pass.gradients(unit);
          ZERO_TEST_PLACE;
          write(gradients, weights, static_cast<float>(comm.rank() + m));
          ZERO_TEST_PLACE;
          write(gradients, weights, 1);
          ZERO_TEST_PLACE;
          gradients.hand_over();
        }
        ZERO_TEST_PLACE;
        pass.finish();
      }
      if (landmarks) landmarks->before_reduce[step] = probe.places;
      ZERO_TEST_PLACE;
      auto const decision = parameters.reduce({.max_norm = 1.0});
      ZERO_TEST_PLACE;
      optimizer.apply(parameters, decision);
      ZERO_TEST_PLACE;
      parameters.publish();
      if (landmarks) {
        landmarks->published[step] = probe.places;
        landmarks->values[step + 1] = stored_values(parameters);
        landmarks->allocations = memory.calls();
      }
      ZERO_TEST_PLACE;
      static_cast<void>(decision.wait());
    }
    ZERO_TEST_PLACE;
    auto const all = parameters.gather_all();
    ZERO_TEST_PLACE;
    zero::HostDevice::synchronize(compute);
  };
  auto const keep_values = [&] {
    try {
      zero::HostDevice::synchronize(compute);
    } catch (...) {
    }
    rank.values = stored_values(parameters);
  };
  try {
    loop();
  } catch (...) {
    heap_orders = {};
    keep_values();
    throw;
  }
  keep_values();
}

template <class Body>
Outcomes outcomes_of(Body const& body) {
  return zero::test::outcomes_of(ranks, body, patience);
}

struct Result {
  std::array<Rank, ranks> rank;
  Outcomes outcomes;
};

/// Runs the program on all ranks. `prepare(rank, state)` says what shall go wrong.
template <class S, class P, class Prepare>
std::unique_ptr<Result> run(bool workers, Prepare prepare, std::array<Landmarks, ranks>* landmarks = nullptr) {
  auto result = std::make_unique<Result>();
  for (int r = 0; r < ranks; ++r) prepare(r, result->rank[static_cast<std::size_t>(r)]);
  result->outcomes = outcomes_of([&](zero::ThreadCommunicator& comm) {
    struct EndOfOrders {
      ~EndOfOrders() { heap_orders = {}; }
    } const end_of_orders;
    auto const r = static_cast<std::size_t>(comm.rank());
    Rank& rank = result->rank[r];
    heap_calls = 0;
    heap_orders = rank.heap;
    train<S, P>(comm, workers, rank, landmarks == nullptr ? nullptr : &(*landmarks)[r]);
    rank.heap_calls = heap_calls;
  });
  return result;
}

/// "" if it is a PeerError about that rank, with what that rank threw, if it is given.
std::string what_if_not_peer_error(std::exception_ptr const& error, int peer, std::exception_ptr const& reason = nullptr) {
  if (!is<zero::PeerError>(error)) return "another kind: " + what_of(error);
  try {
    std::rethrow_exception(error);
  } catch (zero::PeerError const& e) {
    if (e.peer() != peer) return std::string("about another rank: ") + e.what();
    std::string const text = e.what();
    return reason == nullptr || text.find(zero::detail::text_of(reason)) != std::string::npos ? "" : "not what the rank threw: " + text;
  }
}

int place_of(std::exception_ptr const& error) {
  if (error == nullptr) return -1;
  try {
    std::rethrow_exception(error);
  } catch (Planned const& planned) {
    return planned.place;
  } catch (...) {
    return -2;
  }
}

/// What holds whatever failed on rank `bad`: all ranks end, the peers with a PeerError about it or without needing it, and nothing leaks.
void check_ends(Result& result, int bad) {
  for (int r = 0; r < ranks; ++r) {
    Rank& rank = result.rank[static_cast<std::size_t>(r)];
    CAPTURE(r);
    CHECK(rank.live == 0);
    CHECK(rank.probe.late_collectives == 0);
    auto const& error = result.outcomes.rank[static_cast<std::size_t>(r)];
    auto const& reason = result.outcomes.rank[static_cast<std::size_t>(bad)];
    if (r != bad && error != nullptr) CHECK(what_if_not_peer_error(error, bad, reason) == "");
  }
}

/// The run that all others are compared with.
template <class S, class P>
std::array<Landmarks, ranks> reference() {
  std::array<Landmarks, ranks> landmarks;
  auto const result = run<S, P>(
      false, [](int, Rank&) {}, &landmarks);
  REQUIRE(result->outcomes.run == nullptr);
  for (auto const& marks : landmarks) {
    REQUIRE(!same_bits(marks.values[0], marks.values[1]));
    REQUIRE(!same_bits(marks.values[1], marks.values[2]));
  }
  return landmarks;
}

/// Parameters and masters are those of a whole number of steps where the failure was before a decision: `known` of them.
void check_values(Result& result, std::array<Landmarks, ranks> const& landmarks, int known) {
  if (known < 0) return;
  for (std::size_t r = 0; r < ranks; ++r) {
    CAPTURE(r);
    if (result.rank[r].values) CHECK(same_bits(*result.rank[r].values, landmarks[r].values[known]));
  }
}

/// How many steps are certainly done everywhere when a rank fails at that place, -1 if that is open.
int steps_done(Landmarks const& marks, int place, bool workers) {
  if (place >= marks.initialized && place <= marks.before_reduce[0]) return 0;
  // With workers the first step may still be queued, and is given up with the group.
  if (!workers && place >= marks.published[0] && place <= marks.before_reduce[1]) return 1;
  return -1;
}

template <class S, class P>
void check_throws_and_returns(bool workers) {
  auto const landmarks = reference<S, P>();
  for (How const how : {How::throws, How::returns}) {
    bool reached = true;
    for (int place = 0; reached; place += stride) {
      int const bad = place % ranks;
      auto const result = run<S, P>(workers, [&](int r, Rank& rank) {
        if (r == bad) rank.probe.target = place, rank.probe.how = how;
        else rank.probe.how = how;
      });
      auto const& outcome = result->outcomes.rank[static_cast<std::size_t>(bad)];
      reached = result->rank[static_cast<std::size_t>(bad)].probe.failed;
      CAPTURE(place);
      CAPTURE(static_cast<int>(how));
      check_ends(*result, bad);
      if (!reached) {
        CHECK(result->outcomes.run == nullptr);
      } else if (how == How::throws) {
        CHECK(place_of(outcome) == place);
        CHECK(place_of(result->outcomes.run) == place);  // and not what the library said on the way
      } else {
        CHECK(outcome == nullptr);
        if (result->outcomes.run != nullptr) CHECK(what_if_not_peer_error(result->outcomes.run, bad) == "");
      }
      // The places of the callbacks exist only where one may throw there.
      Landmarks const& marks = landmarks[static_cast<std::size_t>(bad)];
      int const callbacks = how == How::throws ? 0 : marks.initialized - 3;
      if (reached) check_values(*result, landmarks, steps_done(marks, place + callbacks, workers));
    }
  }
}

template <class S, class P>
void check_tasks_that_throw(bool workers) {
  auto const landmarks = reference<S, P>();
  int const first_step = 2 * (3 + 2 * 4);  // two micro-batches: a forward of three tasks, four gradients written twice
  bool reached = true;
  for (int place = 0; reached; place += stride) {
    int const bad = place % ranks;
    auto const result = run<S, P>(workers, [&](int r, Rank& rank) {
      rank.probe.how = How::task_throws;
      if (r == bad) rank.probe.target = place;
    });
    reached = result->rank[static_cast<std::size_t>(bad)].probe.task_places.load() > place;
    CAPTURE(place);
    check_ends(*result, bad);
    CHECK(place_of(result->outcomes.rank[static_cast<std::size_t>(bad)]) == (reached ? place : -1));
    CHECK(place_of(result->outcomes.run) == (reached ? place : -1));
    if (reached && place < first_step) check_values(*result, landmarks, 0);
  }
}

template <class S, class P>
void check_failing_allocations(bool workers) {
  auto const landmarks = reference<S, P>();
  bool reached = true;
  for (std::int64_t n = 1; reached; ++n) {
    int const bad = static_cast<int>(n % ranks);
    auto const result = run<S, P>(workers, [&](int r, Rank& rank) { rank.failing_allocation = r == bad ? n : 0; });
    Rank const& failing = result->rank[static_cast<std::size_t>(bad)];
    reached = failing.allocations >= n;
    CAPTURE(n);
    check_ends(*result, bad);
    CHECK(is<zero::MemoryError>(result->outcomes.rank[static_cast<std::size_t>(bad)]) == reached);
    CHECK(is<zero::MemoryError>(result->outcomes.run) == reached);
    // All memory for the steps is had before the first is decided. The whole model needs some more.
    bool const in_the_steps = n <= landmarks[static_cast<std::size_t>(bad)].allocations;
    if (reached && failing.values) check_values(*result, landmarks, in_the_steps ? 0 : workers ? -1 : 2);
    CHECK((reached || n > 5));
  }
}

/// Each call of operator new on one rank's thread fails, once or from then on.
template <class S, class P>
void check_failing_heap(bool workers) {
  for (bool const for_good : {false, true}) {
    bool reached = true;
    for (std::int64_t n = 0; reached; n += stride) {
      int const bad = static_cast<int>(n % ranks);
      auto const result = run<S, P>(workers, [&](int r, Rank& rank) {
        if (r == bad) rank.heap = {.allowed = n, .for_good = for_good};
      });
      reached = result->outcomes.rank[static_cast<std::size_t>(bad)] != nullptr;
      CAPTURE(n);
      CAPTURE(for_good);
      check_ends(*result, bad);
      CHECK((result->outcomes.run != nullptr) == reached);
      if (!reached) CHECK(result->rank[static_cast<std::size_t>(bad)].heap_calls <= n);
    }
  }
}

template <class S, class P>
void check_faults() {
  for (bool const workers : {false, true}) {
    CAPTURE(workers);
    check_throws_and_returns<S, P>(workers);
    check_tasks_that_throw<S, P>(workers);
    check_failing_allocations<S, P>(workers);
  }
}

}  // namespace

TEST_CASE("field cases 67, 75: one rank fails at every call, callback and allocation: Stage0") { check_faults<zero::Stage0, Single>(); }
TEST_CASE("field cases 67, 75: one rank fails at every call, callback and allocation: Stage1") { check_faults<zero::Stage1, Mixed>(); }
TEST_CASE("field cases 67, 75: one rank fails at every call, callback and allocation: Stage2") { check_faults<zero::Stage2, Mixed>(); }
TEST_CASE("field cases 67, 75: one rank fails at every call, callback and allocation: Stage3") { check_faults<zero::Stage3, Single>(); }
TEST_CASE("field cases 67, 75: one rank fails at every call, callback and allocation: (S,P,S)") {
  check_faults<ShardedPartialSharded, Single>();
}
TEST_CASE("field cases 67, 75: one rank fails at every call, callback and allocation: (R,R,R)") { check_faults<AllReplicated, Single>(); }

TEST_CASE("one rank's heap is exhausted at every call of operator new") {
  check_failing_heap<zero::Stage1, Mixed>(false);
  check_failing_heap<zero::Stage3, Single>(true);
}

namespace {

/// A micro-batch whose gradients are written by slow tasks of the compute stream. @returns false if it was left after `until` hand-overs.
template <class Parameters>
bool slow_micro_batch(Parameters& parameters, HostStreamRef compute, int until = 3) {
  auto const& layout = parameters.layout();
  auto pass = parameters.training_pass({.last = true});
  int handed_over = 0;
  for (zero::Unit unit : layout.units().reversed()) {
    auto const weights = pass.gather(unit);
    auto gradients = pass.gradients(unit);
    for (int i = 0; i < gradients.size(); ++i) {
      if (gradients[i] == nullptr) continue;
      zero::HostDevice::run(compute, [to = gradients[i], from = weights[i], n = gradients.elements(i)] {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        for (std::int64_t k = 0; k < n; ++k) to[k] = typename Parameters::gradient(float(to[k]) + float(from[k]) + 1.0f);
      });
    }
    if (handed_over++ == until) return false;
    gradients.hand_over();
  }
  pass.finish();
  return true;
}

/// Everything goes while the streams are busy, without an exception. The streams end afterwards, in the order they are given.
template <class S, class P>
void leave_while_busy(zero::ThreadCommunicator& comm, bool communication_ends_first, int until, Rank& rank) {
  zero::CountingResource counting(zero::host_memory());
  zero::PoisoningResource memory(counting);
  std::optional<zero::HostStream> communication(std::in_place);
  std::optional<zero::HostStream> compute(std::in_place);
  Watched group(comm, rank.probe);
  {
    auto parameters = zero::shard_parameters<S, P>(make_layout(), group, {*compute, *communication}, memory);
    parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::constant(1); });
    {
      zero::ShardedOptimizer<zero::AdamW, S> replaced{parameters};
      slow_micro_batch(parameters, *compute);
      static_cast<void>(replaced.step(parameters));
    }
    zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters};
    if (slow_micro_batch(parameters, *compute, until)) static_cast<void>(optimizer.step(parameters));
  }
  rank.live = counting.live();
  // What the library enqueued is done, what the caller enqueues still is not: streams that wait for each other end in any order.
  compute->enqueue([] { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
  communication->wait(compute->record());
  compute->wait(communication->record());
  if (communication_ends_first) communication.reset();
  compute.reset();
}

template <class S, class P>
void check_leaving_while_busy() {
  for (int run = 0; run < 16; ++run) {
    std::array<Rank, ranks> state;
    CHECK_NOTHROW(zero::run_ranks(
        ranks,
        [&](zero::ThreadCommunicator& comm) {
          Rank& rank = state[static_cast<std::size_t>(comm.rank())];
          leave_while_busy<S, P>(comm, run % 2 == 0, run / 2 % 4, rank);
        },
        patience));
    for (Rank const& rank : state) CHECK(rank.live == 0);
  }
}

/// Two steps; the pass before them is left early on all ranks, without an exception.
template <class S, class P>
std::vector<double> train_after_leaving_a_pass(zero::ThreadCommunicator& comm, int until, std::string& said) {
  zero::HostStream communication;
  zero::HostStream compute;
  Probe probe;
  Watched group(comm, probe);
  auto parameters = zero::shard_parameters<S, P>(make_layout(), group, {compute, communication}, zero::host_memory());
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters};
  parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
  if (until < 3) {
    slow_micro_batch(parameters, compute, until);
    try {
      static_cast<void>(optimizer.step(parameters));
    } catch (zero::UsageError const& error) {
      said = error.what();
    }
    parameters.discard_gradients();
  }
  for (int step = 0; step < 2; ++step) {
    slow_micro_batch(parameters, compute);
    static_cast<void>(optimizer.step(parameters));
  }
  zero::HostDevice::synchronize(communication);
  zero::HostDevice::synchronize(compute);
  return stored_values(parameters);
}

template <class S, class P>
void check_leaving_a_pass() {
  char const* const units[] = {"last", "middle", "first"};
  std::array<std::vector<double>, ranks> expected;
  for (int until = 3; until >= 0; --until) {
    std::array<std::vector<double>, ranks> values;
    std::array<std::string, ranks> said;
    zero::run_ranks(
        ranks,
        [&](zero::ThreadCommunicator& comm) {
          auto const r = static_cast<std::size_t>(comm.rank());
          values[r] = train_after_leaving_a_pass<S, P>(comm, until, said[r]);
        },
        patience);
    if (until == 3) expected = values;
    for (std::size_t r = 0; r < ranks; ++r) {
      CHECK(same_bits(values[r], expected[r]));
      if (until < 3) CHECK(said[r].find("the gradients of unit '" + std::string(units[until]) + "'") != std::string::npos);
    }
  }
}

}  // namespace

TEST_CASE("field case 48: parameters and optimizers may go while the streams are busy, and the streams in any order") {
  check_leaving_while_busy<zero::Stage2, Mixed>();
  check_leaving_while_busy<zero::Stage3, Single>();
  check_leaving_while_busy<zero::Stage0, Single>();
}

TEST_CASE("a pass that all ranks leave early sends nothing, is named by the step, and leaves no trace once it is discarded") {
  check_leaving_a_pass<zero::Stage2, Mixed>();
  check_leaving_a_pass<zero::Stage3, Single>();
  check_leaving_a_pass<zero::Stage0, Single>();
}

TEST_CASE("field case 67: one rank aborts by itself") {
  for (bool const workers : {false, true}) {
    auto const outcomes = outcomes_of([&](zero::ThreadCommunicator& comm) {
      zero::HostStream stream({.worker = workers});
      Probe probe;
      Watched group(comm, probe);
      auto parameters = zero::shard_parameters<zero::Stage3, Single>(make_layout(), group, {stream, stream}, zero::host_memory());
      parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::constant(1); });
      if (comm.rank() == 1) comm.abort(std::make_exception_ptr(Planned(0)));
      auto const all = parameters.gather_all();
      zero::HostDevice::synchronize(stream);
    });
    CHECK(is<Planned>(outcomes.run));
    CHECK(place_of(outcomes.rank[1]) == 0);
    CHECK(what_if_not_peer_error(outcomes.rank[0], 1, outcomes.rank[1]) == "");
    CHECK(what_if_not_peer_error(outcomes.rank[2], 1, outcomes.rank[1]) == "");
  }
}

TEST_CASE("an allocation that fails on all ranks changes nothing: the call can be made again") {
  std::array<std::int64_t, ranks> before{};
  std::array<std::vector<float>, ranks> first;
  for (std::int64_t failing = 0; failing <= 3; ++failing) {
    zero::run_ranks(
        ranks,
        [&](zero::ThreadCommunicator& comm) {
          auto const r = static_cast<std::size_t>(comm.rank());
          zero::FailingResource memory(zero::host_memory(), failing == 0 ? 0 : before[r] + failing);
          zero::HostStream communication;
          zero::HostStream compute;
          Probe probe;
          Watched group(comm, probe);
          auto parameters = zero::shard_parameters<zero::Stage3, Single>(make_layout(), group, {compute, communication}, memory);
          zero::ShardedOptimizer<zero::AdamW, zero::Stage3> optimizer{parameters};
          parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
          before[r] = memory.calls();
          if (failing != 0) CHECK_THROWS_AS(static_cast<void>(parameters.gather_all()), zero::MemoryError);
          std::vector<float> values;
          {
            auto const all = parameters.gather_all();
            zero::HostDevice::synchronize(compute);
            for (zero::ParameterId id : parameters.layout().parameters()) values.insert(values.end(), all[id].begin(), all[id].end());
          }
          CHECK_NOTHROW(static_cast<void>(optimizer.step(parameters)));  // nothing is held any more
          if (failing == 0) first[r] = values;
          CHECK(values == first[r]);
        },
        patience);
  }
}

TEST_CASE("an exception that leaves gradients, a pass, an optimizer or parameters has aborted the group before anybody catches it") {
  enum class Leaves { gradients, pass, optimizer, parameters };
  for (Leaves const leaves : {Leaves::gradients, Leaves::pass, Leaves::optimizer, Leaves::parameters}) {
    CAPTURE(static_cast<int>(leaves));
    std::atomic<int> peers_ended = 0;
    bool ended_meanwhile = false;
    auto const peers_end = [&] {
      for (int ms = 0; peers_ended.load() < ranks - 1 && ms < 10'000; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ended_meanwhile = peers_ended.load() == ranks - 1;
    };
    auto const body = [&](zero::ThreadCommunicator& comm) {
      auto const fail_at = [&](Leaves here) {
        if (comm.rank() == 1 && here == leaves) throw Planned(0);
      };
      zero::HostStream communication;
      zero::HostStream compute;
      Probe probe;
      Watched group(comm, probe);
      try {
        auto parameters = zero::shard_parameters<zero::Stage3, Single>(make_layout(), group, {compute, communication}, zero::host_memory());
        parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::constant(1); });
        fail_at(Leaves::parameters);
        try {
          zero::ShardedOptimizer<zero::AdamW, zero::Stage3> optimizer{parameters};
          fail_at(Leaves::optimizer);
          try {
            auto pass = parameters.training_pass();
            {
              auto gradients = pass.gradients(parameters.layout().find_unit("middle"));
              fail_at(Leaves::gradients);
              gradients.hand_over();
            }
            fail_at(Leaves::pass);
            pass.finish();
          } catch (Planned const&) {
            peers_end();
            throw;
          }
          static_cast<void>(optimizer.step(parameters));
          zero::HostDevice::synchronize(compute);
        } catch (Planned const&) {
          peers_end();
          throw;
        }
      } catch (Planned const&) {
        peers_end();
        throw;
      }
    };
    auto const outcomes = outcomes_of([&](zero::ThreadCommunicator& comm) {
      try {
        body(comm);
      } catch (...) {
        if (comm.rank() != 1) peers_ended.fetch_add(1);
        throw;
      }
    });
    CHECK(is<Planned>(outcomes.run));
    CHECK(ended_meanwhile);
    CHECK(what_if_not_peer_error(outcomes.rank[0], 1) == "");
    CHECK(what_if_not_peer_error(outcomes.rank[2], 1) == "");
  }
}
