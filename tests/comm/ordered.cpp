// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/ordered.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/self.hpp>
#include <zero/core/hash.hpp>

#include "comm/conformance.hpp"
#include "support/allocations.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Barrier;
using zero::bf16;
using zero::Borrowed;
using zero::Counting;
using zero::half;
using zero::HostDevice;
using zero::HostStream;
using zero::HostStreamRef;
using zero::Max;
using zero::Ordered;
using zero::ReduceScatter;
using zero::Subject;
using zero::Sum;
using zero::ThreadCommunicator;
using zero::test::allocations;
using zero::test::counts_allocations;

using OrderedThreads = Ordered<Borrowed<ThreadCommunicator>>;
static_assert(zero::Communicator<OrderedThreads> && zero::check_communicator<OrderedThreads>());
static_assert(zero::Communicator<Counting<zero::Checked<OrderedThreads>>> &&
              zero::Communicator<Ordered<Counting<Borrowed<ThreadCommunicator>>>>);
static_assert(!std::is_copy_constructible_v<OrderedThreads> && std::is_nothrow_move_constructible_v<OrderedThreads>);
static_assert(zero::detail::ReducesInOrder<ThreadCommunicator, AllReduce<bf16>>);
static_assert(!zero::detail::ReducesInOrder<ThreadCommunicator, AllReduce<std::int64_t>>);
static_assert(!zero::detail::ReducesInOrder<ThreadCommunicator, AllGather<float>>);

/// What the smallest transport can do: no reductions at all.
template <class D>
class Mover {
public:
  using Device = D;
  explicit Mover(ThreadCommunicator& inner) noexcept : inner_(&inner) {}
  [[nodiscard]] int rank() const noexcept { return inner_->rank(); }
  [[nodiscard]] int size() const noexcept { return inner_->size(); }
  void abort(std::exception_ptr cause) noexcept { inner_->abort(std::move(cause)); }
  template <zero::Element T>
  void enqueue(HostStreamRef stream, AllGather<T> const& operation) {
    inner_->enqueue(stream, operation);
  }
  template <zero::Element T>
  void enqueue(HostStreamRef stream, AllToAll<T> const& operation) {
    inner_->enqueue(stream, operation);
  }

private:
  ThreadCommunicator* inner_;
};

/// A device that is not known to be the host: it gets functors and events, no passes over pointers.
struct OtherDevice : HostDevice {};

static_assert(zero::ReduceScatters<Ordered<Mover<OtherDevice>>, bf16> && zero::AllReduces<Ordered<Mover<OtherDevice>>, std::int32_t, Sum>);
static_assert(!zero::Synchronizes<Ordered<Mover<OtherDevice>>> && !zero::Splits<Ordered<Mover<OtherDevice>>>);

struct OrderedModel {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
      Ordered ordered{Borrowed{comm}, zero::host_memory(), {.staging_bytes = 3000}};
      body(ordered);
    });
  }
};

/// Real numbers of mixed sign and magnitude, so that the order of adding shows.
template <class T>
std::vector<T> noise(int rank, std::int64_t count) {
  std::vector<T> result(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t const bits = zero::mixed_bits(static_cast<std::uint64_t>(rank) * 1'000'003u + static_cast<std::uint64_t>(i));
    if constexpr (zero::RealElement<T>) {
      auto const mantissa = static_cast<float>(static_cast<std::int32_t>(bits >> 40)) / 16777216.0f - 0.5f;
      result[static_cast<std::size_t>(i)] = static_cast<T>(std::ldexp(mantissa, static_cast<int>(bits % 12)));
    } else {
      result[static_cast<std::size_t>(i)] = static_cast<T>(bits);
    }
  }
  return result;
}

/// The reductions of both communicators over the same data, in place and not, differ in no bit.
template <class T, class Op, class A, class B>
bool equal_reductions(A& a, B& b, HostStreamRef stream, std::int64_t count, float factor) {
  std::int64_t const n = a.size();
  std::vector<T> const data = noise<T>(a.rank(), count * n);
  std::vector<T> from_a(static_cast<std::size_t>(count));
  std::vector<T> from_b(from_a);
  std::vector<T> in_place_a(data);
  std::vector<T> in_place_b(data);
  a.enqueue(stream, ReduceScatter<T, Op>{.send = data.data(), .receive = from_a.data(), .count = count, .factor = factor});
  b.enqueue(stream, ReduceScatter<T, Op>{.send = data.data(), .receive = from_b.data(), .count = count, .factor = factor});
  a.enqueue(stream, ReduceScatter<T, Op>{
                        .send = in_place_a.data(), .receive = in_place_a.data() + a.rank() * count, .count = count, .factor = factor});
  b.enqueue(stream, ReduceScatter<T, Op>{
                        .send = in_place_b.data(), .receive = in_place_b.data() + a.rank() * count, .count = count, .factor = factor});
  stream.synchronize();
  bool passed =
      zero::test::same_bits(from_a.data(), from_b.data(), count) && zero::test::same_bits(in_place_a.data(), in_place_b.data(), count * n);
  a.enqueue(stream, AllReduce<T, Op>{.send = data.data(), .receive = from_a.data(), .count = count, .factor = factor});
  b.enqueue(stream, AllReduce<T, Op>{.send = data.data(), .receive = from_b.data(), .count = count, .factor = factor});
  in_place_a = data;
  a.enqueue(stream, AllReduce<T, Op>{.send = in_place_a.data(), .receive = in_place_a.data(), .count = count, .factor = factor});
  stream.synchronize();
  return passed && zero::test::same_bits(from_a.data(), from_b.data(), count) &&
         zero::test::same_bits(from_a.data(), in_place_a.data(), count);
}

constexpr std::int64_t counts[] = {0, 1, 5, 7, 8, 64, 100, 333, 1000};

template <class T, class A, class B>
void check_equal(A& a, B& b, HostStreamRef stream) {
  bool passed = true;
  for (std::int64_t const count : counts) {
    passed = equal_reductions<T, Sum>(a, b, stream, count, 1.0f) && passed;
    passed = equal_reductions<T, Max>(a, b, stream, count, 1.0f) && passed;
    if constexpr (zero::RealElement<T>) passed = equal_reductions<T, Sum>(a, b, stream, count, 1.0f / 3) && passed;
  }
  CAPTURE(zero::element_traits<T>::name);
  CHECK(passed);
}

template <class A, class B>
void check_all_types(A& a, B& b, HostStreamRef stream) {
  check_equal<float>(a, b, stream);
  check_equal<double>(a, b, stream);
  check_equal<bf16>(a, b, stream);
  check_equal<half>(a, b, stream);
  check_equal<std::int8_t>(a, b, stream);
  check_equal<std::uint32_t>(a, b, stream);
  check_equal<std::int64_t>(a, b, stream);
}

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("ordered threads conform") { zero::test::conformance<OrderedModel>(zero::test::ranks()); }

TEST_CASE("field cases 51, 112, 113: reductions equal those of the threads to the bit, whatever is staged at a time") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    for (bool const worker : {false, true}) {
      HostStream stream({.worker = worker});
      for (std::int64_t const staging : {0, 3000, 1 << 20}) {
        Ordered ordered{Borrowed{comm}, zero::host_memory(), {.staging_bytes = staging}};
        check_all_types(comm, ordered, stream);
      }
      Ordered movers{Mover<HostDevice>{comm}, zero::host_memory(), {.staging_bytes = 2000}};
      check_all_types(comm, movers, stream);  // Integers too are added here.
    }
  });
}

TEST_CASE("the functor for other devices gives the bits of the host's pass") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    HostStream stream;
    Ordered other{Mover<OtherDevice>{comm}, zero::host_memory(), {.staging_bytes = 2000}};
    check_all_types(comm, other, stream);
  });
  for (int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 64, 100}) {
    std::int64_t const count = 500;
    std::vector<float> const parts = noise<float>(3, count * ranks);
    std::vector<float> pass(static_cast<std::size_t>(count));
    std::vector<float> elements(pass);
    std::vector<std::byte> pointers(static_cast<std::size_t>(ranks) * sizeof(void*));
    zero::detail::OrderedElement<Sum, float> functor{parts.data(), nullptr, pass.data(), count, ranks, ranks, 0.3f};
    zero::detail::OrderedPass<Sum, float>{functor, pointers.data()}();
    functor.to = elements.data();
    for (std::int64_t i = 0; i < count; ++i) functor(i);
    CHECK(zero::test::same_bits(pass.data(), elements.data(), count));
    // One rank's part is where it was, and receives the result.
    for (int const rank : {0, ranks / 2, ranks - 1}) {
      std::vector<float> own(parts.begin() + rank * count, parts.begin() + (rank + 1) * count);
      std::vector<float> others(parts);
      others.erase(others.begin() + rank * count, others.begin() + (rank + 1) * count);
      for (bool const by_pass : {true, false}) {
        std::vector<float> result(own);
        functor = {others.data(), result.data(), result.data(), count, ranks, rank, 0.3f};
        if (by_pass) zero::detail::OrderedPass<Sum, float>{functor, pointers.data()}();
        for (std::int64_t i = 0; i < count && !by_pass; ++i) functor(i);
        CHECK(zero::test::same_bits(result.data(), pass.data(), count));
      }
    }
  }
}

TEST_CASE("received are the bytes of the formulas: the same counted outside and inside, and moved by the threads") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    zero::Traffic program;
    zero::Traffic transport;
    Counting counting{Ordered{Counting{Borrowed{comm}, transport}, zero::host_memory(), {.staging_bytes = 5000}}, program};
    HostStreamRef const here = HostStreamRef::calling_thread();
    std::int64_t const n = comm.size();
    std::vector<float> values(static_cast<std::size_t>(n * 4096), 1.0f);
    std::vector<float> part(4096);
    for (std::int64_t const count : {1, 77, 4096}) {
      counting.enqueue(
          here, ReduceScatter<float>{.send = values.data(), .receive = part.data(), .count = count, .label = {Subject::gradients, 3}});
      CHECK(program.received_bytes(Subject::gradients) == 4 * (n - 1) * count);
      CHECK(transport.received_bytes(Subject::gradients) == 4 * (n - 1) * count);
      program.reset();
      transport.reset();
    }
    // Ranges of whole cache lines: the library's own states.
    counting.enqueue(
        here, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = n * 4096, .label = {Subject::gradients, 3}});
    CHECK(program.model_bytes() == 2 * 4 * (n - 1) * 4096);
    CHECK(transport.model_bytes() == program.model_bytes());
    CHECK(program.calls() == 1);
    program.reset();
    transport.reset();
    // Others: what N divides moves evenly, the rest is gathered from all.
    std::int64_t const odd = n * 100 + n - 1;
    counting.enqueue(here, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = odd});
    CHECK(transport.received_bytes() == 4 * (2 * (n - 1) * 100 + (n - 1) * (n - 1)));
    comm.enqueue(here, Barrier{});
    comm.enqueue(here, Barrier{});
  });
}

TEST_CASE("staging memory is what was asked for, at least 64 bytes a rank, none at one rank, and given back") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    zero::CountingResource memory(zero::host_memory());
    std::int64_t const n = comm.size();
    {
      Ordered ordered{Borrowed{comm}, memory, {.staging_bytes = 10'000}};
      CHECK(memory.live(zero::Purpose::staging) == (n == 1 ? 0 : 10'000));
      CHECK(memory.live() == memory.live(zero::Purpose::staging));
      auto child = ordered.split(comm.rank() % 2);
      CHECK(memory.allocations() == (n == 1 ? 0 : child.size() == 1 ? 1 : 2));
    }
    CHECK(memory.live() == 0);
    Ordered least{Borrowed{comm}, memory, {.staging_bytes = 0}};
    CHECK(memory.live() == (n == 1 ? 0 : 64 * n));
    CHECK_THROWS_AS((Ordered{Borrowed{comm}, memory, {.staging_bytes = -1}}), zero::UsageError);
    zero::FailingResource failing(memory, 1);
    if (n > 1) CHECK_THROWS_AS((Ordered{Borrowed{comm}, failing}), zero::MemoryError);
  });
}

TEST_CASE("no reduction allocates") {
  if (!counts_allocations) {
    MESSAGE("skipped: allocations cannot be counted under this sanitizer");
    return;
  }
  std::atomic<std::int64_t> counted = -1;
  zero::run_ranks(zero::test::ranks(), [&](ThreadCommunicator& comm) {
    HostStream stream;
    HostStreamRef const here = HostStreamRef::calling_thread();
    Ordered ordered{Borrowed{comm}, zero::host_memory(), {.staging_bytes = 4096}};
    std::vector<bf16> send(static_cast<std::size_t>(3000 * comm.size()));
    // One for each stream: one rank does not order them.
    std::vector<bf16> receive[2] = {send, send};
    auto const all_of_them = [&](HostStreamRef on) {
      bf16* const to = receive[on == here ? 1 : 0].data();
      ordered.enqueue(on, ReduceScatter<bf16>{.send = send.data(), .receive = to, .count = 3000});
      ordered.enqueue(on, AllReduce<bf16>{.send = send.data(), .receive = send.data(), .count = 2999});
    };
    all_of_them(stream);
    all_of_them(here);
    comm.enqueue(here, Barrier{});
    std::int64_t const before = allocations();
    comm.enqueue(here, Barrier{});
    for (int i = 0; i < 20; ++i) all_of_them(i % 2 == 0 ? HostStreamRef(stream) : here);
    stream.synchronize();
    comm.enqueue(here, Barrier{});
    if (comm.rank() == 0) counted = allocations() - before;
    comm.enqueue(here, Barrier{});
  });
  CHECK(counted.load() == 0);
}

TEST_CASE("reductions on two streams take turns with the staging memory, and a stream may end before the next reduction") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    Ordered ordered{Borrowed{comm}, zero::host_memory(), {.staging_bytes = 256}};
    int const n = comm.size();
    bool passed = true;
    for (int round = 0; round < 10; ++round) {
      auto first =
          std::make_unique<HostStream>(zero::HostStreamOptions{.delay_seed = static_cast<std::uint64_t>(100 * round + comm.rank() + 1)});
      HostStream second({.delay_seed = static_cast<std::uint64_t>(100 * round + comm.rank() + 50)});
      std::vector<float> a(300, 1.0f);
      std::vector<float> b(300, 2.0f);
      std::vector<float> c(300, 3.0f);
      ordered.enqueue(*first, AllReduce<float>{.send = a.data(), .receive = a.data(), .count = 300, .label = {.index = 1}});
      ordered.enqueue(second, AllReduce<float>{.send = b.data(), .receive = b.data(), .count = 300, .label = {.index = 2}});
      std::vector<float> part(static_cast<std::size_t>(300 / n));
      ordered.enqueue(*first, ReduceScatter<float>{.send = c.data(), .receive = part.data(), .count = 300 / n, .label = {.index = 3}});
      if (round % 2 == 0) first.reset();
      ordered.enqueue(second, AllReduce<float>{.send = b.data(), .receive = b.data(), .count = 300, .label = {.index = 4}});
      second.synchronize();
      if (first) first->synchronize();
      for (float value : a) passed = passed && value == static_cast<float>(n);
      for (float value : b) passed = passed && value == static_cast<float>(2 * n * n);
      for (float value : part) passed = passed && value == static_cast<float>(3 * n);
    }
    CHECK(passed);
  });
}

TEST_CASE("work in the queue is done before the staging memory goes") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    HostStream stream({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 1)});
    std::vector<float> values(1000, 1.0f);
    {
      zero::PoisoningResource memory(zero::host_memory());
      Ordered ordered{Borrowed{comm}, memory, {.staging_bytes = 512}};
      Ordered moved = std::move(ordered);
      for (int i = 0; i < 3; ++i) moved.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 1000});
    }
    stream.synchronize();
    float const n = static_cast<float>(comm.size());
    CHECK(values[999] == n * n * n);
  });
}

TEST_CASE("field case 67: a rank that throws wakes peers in the middle of a reduction, on both kinds of streams") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  for (bool const worker : {false, true}) {
    std::atomic<int> told = 0;
    auto const body = [&](ThreadCommunicator& comm) {
      HostStream stream({.worker = worker});
      HostStream other;
      std::vector<float> values(5000, 1.0f);
      Ordered ordered{Borrowed{comm}, zero::host_memory(), {.staging_bytes = 1024}};
      if (comm.rank() == ranks - 1) throw std::runtime_error("injected");
      try {
        ordered.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 5000});
        ordered.enqueue(other, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 5000});
        stream.synchronize();
        other.synchronize();
      } catch (zero::PeerError const& error) {
        told += error.peer() == ranks - 1 && contains(error.what(), "injected") ? 1 : 0;
        throw;
      }
    };
    CHECK_THROWS_WITH_AS(zero::run_ranks(ranks, body, {.deadline_ms = 20'000}), "injected", std::runtime_error);
    CHECK(told.load() == ranks - 1);
  }
}

TEST_CASE("wrong arguments are refused with the caller's line, and nothing is enqueued") {
  zero::run_ranks(zero::test::ranks(), [](ThreadCommunicator& comm) {
    Ordered ordered{Borrowed{comm}, zero::host_memory()};
    float value = 1;
    int line = 0;
    try {
      line = __LINE__ + 1;
      ordered.enqueue(HostStreamRef::calling_thread(), AllReduce<float>{.send = &value, .receive = &value, .count = -1});
    } catch (zero::UsageError const& error) {
      CHECK(error.where().line == line);
      CHECK(contains(error.what(), "all-reduce: the count is -1"));
      line = 0;
    }
    CHECK(line == 0);
    CHECK(comm.bytes_copied() == 0);
  });
}

TEST_CASE("one rank: a copy and the factor, and an aborted group throws") {
  zero::SelfCommunicator comm;
  Ordered ordered{Borrowed{comm}, zero::host_memory()};
  HostStreamRef const here = HostStreamRef::calling_thread();
  bf16 value(3.0f);
  ordered.enqueue(here, AllReduce<bf16>{.send = &value, .receive = &value, .count = 1, .factor = 0.5f});
  CHECK(float(value) == 1.5f);
  ordered.abort(std::make_exception_ptr(std::runtime_error("gone")));
  CHECK_THROWS_WITH_AS(ordered.enqueue(here, AllReduce<bf16>{.send = &value, .receive = &value, .count = 1}), "gone", std::runtime_error);
  CHECK(float(value) == 1.5f);
}
