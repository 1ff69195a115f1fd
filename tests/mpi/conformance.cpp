// SPDX-License-Identifier: Apache-2.0
/// @file
/// What every communicator must do, done by MPI processes.

#include <zero/comm/mpi.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/ordered.hpp>

#include "comm/conformance.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::bf16;
using zero::Borrowed;
using zero::Broadcast;
using zero::half;
using zero::HostStream;
using zero::HostStreamRef;
using zero::Max;
using zero::MpiCommunicator;
using zero::MpiOptions;
using zero::Ordered;
using zero::ReduceScatter;

static_assert(zero::Communicator<MpiCommunicator> && zero::Communicator<Ordered<MpiCommunicator>>);
static_assert(zero::Communicator<zero::Counting<zero::Checked<Ordered<Borrowed<MpiCommunicator>>>>>);
static_assert(!std::is_copy_constructible_v<MpiCommunicator> && std::is_nothrow_move_constructible_v<MpiCommunicator>);
static_assert(!std::is_convertible_v<MPI_Comm, MpiCommunicator>);
// Sums that MPI would round at each hop are not offered; largest values are exact.
static_assert(!zero::ReduceScatters<MpiCommunicator, bf16> && !zero::AllReduces<MpiCommunicator, half, zero::Sum>);
static_assert(zero::AllReduces<MpiCommunicator, bf16, Max> && zero::AllGather<bf16>::kind == zero::OperationKind::all_gather);
static_assert(zero::ReduceScatters<Ordered<MpiCommunicator>, bf16> && zero::AllReduces<Ordered<MpiCommunicator>, half, zero::Sum>);

constexpr MpiOptions options{.deadline_ms = 30'000};
/// Everything larger than this takes the ways that counts over 2^31 take.
constexpr MpiOptions small_counts{.deadline_ms = 30'000, .largest_count = 10007};

struct Mpi {
  static constexpr bool one_rank_a_process = true;
  static constexpr bool no_16_bit_sums = true;
  template <class Body>
  static void run(int, Body const& body) {
    MpiCommunicator comm(MPI_COMM_WORLD, options);
    body(comm);
  }
};

struct MpiInParts : Mpi {
  template <class Body>
  static void run(int, Body const& body) {
    MpiCommunicator comm(MPI_COMM_WORLD, small_counts);
    body(comm);
  }
};

struct OrderedMpi {
  static constexpr bool one_rank_a_process = true;
  template <class Body>
  static void run(int, Body const& body) {
    Ordered comm{MpiCommunicator(MPI_COMM_WORLD, options), zero::host_memory(), {.staging_bytes = 3000}};
    body(comm);
  }
};

struct CheckedOrderedMpiInParts {
  static constexpr bool one_rank_a_process = true;
  template <class Body>
  static void run(int, Body const& body) {
    zero::Checked comm{Ordered{MpiCommunicator(MPI_COMM_WORLD, small_counts), zero::host_memory()}};
    body(comm);
  }
};

/// All processes but the last, or all if there is only one.
struct Split {
  static constexpr bool one_rank_a_process = true;
  static constexpr bool no_16_bit_sums = true;
  template <class Body>
  static void run(int ranks, Body const& body) {
    MpiCommunicator world(MPI_COMM_WORLD, options);
    MpiCommunicator part = world.split(world.rank() < ranks ? 0 : 1, -world.rank());
    CHECK(part.rank() == (world.rank() < ranks ? ranks - 1 - world.rank() : 0));
    if (world.rank() < ranks) body(part);
  }
};

}  // namespace

TEST_CASE("MPI processes conform") { zero::test::conformance<Mpi>(zero::test::ranks()); }
TEST_CASE("field case 108: counts beyond what MPI counts in") { zero::test::conformance<MpiInParts>(zero::test::ranks()); }
TEST_CASE("ordered MPI processes conform") { zero::test::conformance<OrderedMpi>(zero::test::ranks()); }
TEST_CASE("checked and ordered MPI processes conform, also in parts") {
  zero::test::conformance<CheckedOrderedMpiInParts>(zero::test::ranks());
}
TEST_CASE("groups made by split conform") {
  if (zero::test::ranks() < 3) return;
  MPI_Barrier(MPI_COMM_WORLD);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == zero::test::ranks() - 1) {
    for (int i = 0; i < 2; ++i) Split::run(zero::test::ranks() - 1, [](MpiCommunicator&) {});
  } else {
    zero::test::conformance<Split>(zero::test::ranks() - 1);
  }
}

TEST_CASE("operations of one communicator keep the order of their calls over two streams") {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  HostStream first({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 1)});
  HostStream second({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 100)});
  int const n = comm.size();
  bool passed = true;
  for (int round = 0; round < 20; ++round) {
    std::int64_t a = 1;
    std::int64_t b = 2;
    std::int64_t c = 3;
    float both = 1;  // Written by each stream: the thread sanitizer would see it if the one did not wait for the other.
    comm.enqueue(first, AllReduce<std::int64_t>{.send = &a, .receive = &a, .count = 1});
    comm.enqueue(first, AllReduce<float>{.send = &both, .receive = &both, .count = 1, .factor = 2});
    comm.enqueue(second, AllReduce<float>{.send = &both, .receive = &both, .count = 1, .factor = 2});
    comm.enqueue(second, AllReduce<std::int64_t, Max>{.send = &b, .receive = &b, .count = 1});
    comm.enqueue(first, AllReduce<std::int64_t>{.send = &c, .receive = &c, .count = 1});
    first.synchronize();
    second.synchronize();
    passed = passed && a == n && b == 2 && c == 3 * n && both == static_cast<float>(4 * n * n);
  }
  CHECK(passed);
}

TEST_CASE("field case 63: two communicators used from two threads at a time do not meet") {
  MpiCommunicator near(MPI_COMM_WORLD, options);
  MpiCommunicator far = near.split(0);
  HostStream first;
  HostStream second;
  std::int64_t a = 0;
  std::int64_t b = 0;
  bool passed = true;
  for (int round = 0; round < 50; ++round) {
    a = 1;
    b = 2;
    near.enqueue(first, AllReduce<std::int64_t>{.send = &a, .receive = &a, .count = 1});
    far.enqueue(second, AllReduce<std::int64_t>{.send = &b, .receive = &b, .count = 1});
    first.synchronize();
    second.synchronize();
    passed = passed && a == near.size() && b == 2 * near.size();
  }
  CHECK(passed);
}

TEST_CASE("a collective on a worker goes on while the program's own thread computes and does not call MPI") {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  // Too much to be sent before anybody asks for it.
  std::int64_t const count = std::int64_t{1} << 18;
  std::vector<float> values(static_cast<std::size_t>(count * comm.size()), static_cast<float>(comm.rank()));
  HostStream const stream({.worker = true});
  comm.enqueue(stream, AllGather<float>{.send = values.data() + comm.rank() * count, .receive = values.data(), .count = count});
  auto const event = HostStreamRef(stream).record();
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(25);
  int volatile computed = 0;
  while (!event.ready() && std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 1000; ++i) computed = computed + 1;
    std::this_thread::yield();  // The ranks of a test share few cores.
  }
  CHECK(event.ready());
  stream.synchronize();
  for (int rank = 0; rank < comm.size(); ++rank) CHECK(values[static_cast<std::size_t>(rank * count)] == static_cast<float>(rank));
}

TEST_CASE("messages of the program do not meet those of the group") {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  int const next = (comm.rank() + 1) % comm.size();
  int const previous = (comm.rank() + comm.size() - 1) % comm.size();
  int sent = comm.rank();
  int received = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&received, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
  std::vector<float> values(1000, 1.0f);
  comm.enqueue(HostStreamRef::calling_thread(), AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 1000});
  MPI_Send(&sent, 1, MPI_INT, next, 1, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  CHECK(received == previous);
  CHECK(values[999] == static_cast<float>(comm.size()));
}

TEST_CASE("a NaN on any rank makes the maximum NaN") {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  for (int who = 0; who < comm.size(); ++who) {
    std::vector<float> values(5, comm.rank() == who ? std::numeric_limits<float>::quiet_NaN() : 7.0f);
    bf16 narrow(values[0]);
    comm.enqueue(HostStreamRef::calling_thread(), AllReduce<float, Max>{.send = values.data(), .receive = values.data(), .count = 5});
    comm.enqueue(HostStreamRef::calling_thread(), AllReduce<bf16, Max>{.send = &narrow, .receive = &narrow, .count = 1});
    CHECK(std::isnan(values[4]));
    CHECK(std::isnan(float(narrow)));
  }
}

TEST_CASE_TEMPLATE("sums of integers wrap around, negative ones too", T, std::int8_t, std::uint8_t, std::int32_t, std::uint32_t,
                   std::int64_t, std::uint64_t) {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  std::vector<T> values(1000, static_cast<T>(-1));  // So many that MPI uses whatever instructions it has for many at once.
  comm.enqueue(HostStreamRef::calling_thread(), AllReduce<T>{.send = values.data(), .receive = values.data(), .count = 1000});
  CHECK((values == std::vector<T>(1000, static_cast<T>(-comm.size()))));
}

TEST_CASE("128 bytes from one rank to all: how an identifier is handed out") {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  std::vector<std::uint8_t> bytes(128, static_cast<std::uint8_t>(comm.rank() + 3));
  comm.enqueue(HostStreamRef::calling_thread(), Broadcast<std::uint8_t>{.buffer = bytes.data(), .count = 128, .root = comm.size() - 1});
  CHECK(bytes[127] == comm.size() + 2);
}

TEST_CASE("a communicator that is moved is the same rank, and operations on a stream may outlive it") {
  MpiCommunicator comm(MPI_COMM_WORLD, options);
  HostStream stream({.delay_seed = static_cast<std::uint64_t>(comm.rank() + 1)});
  std::int64_t value = 1;
  {
    MpiCommunicator child = comm.split(0);
    child.enqueue(stream, AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
    MpiCommunicator moved = std::move(child);
    moved.enqueue(stream, AllReduce<std::int64_t>{.send = &value, .receive = &value, .count = 1});
    moved = comm.split(0);
    CHECK(moved.rank() == comm.rank());
    for (int i = 0; i < 5; ++i) moved.enqueue(stream, AllReduce<std::int64_t, Max>{.send = &value, .receive = &value, .count = 1});
  }
  stream.synchronize();
  CHECK(value == comm.size() * comm.size());
}

TEST_CASE("what cannot be a group is refused in a sentence") {
  CHECK_THROWS_AS(MpiCommunicator(MPI_COMM_NULL), zero::UsageError);
  CHECK_THROWS_AS(MpiCommunicator(MPI_COMM_WORLD, {.deadline_ms = -1}), zero::UsageError);
  CHECK_THROWS_AS(MpiCommunicator(MPI_COMM_WORLD, {.largest_count = 0}), zero::UsageError);
}
