// SPDX-License-Identifier: Apache-2.0
/// @file
/// What runs over the stand-in libnccl and over NCCL itself, one GPU a rank.

#include <zero/comm/nccl.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/separate_communicators.hpp>

#include "comm/conformance.hpp"
#include "support/nccl_ranks.hpp"
#include "support/ranks.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Barrier;
using zero::Broadcast;
using zero::CudaStream;
using zero::NcclCommunicator;
using zero::ReduceScatter;
using zero::test::Elements;
using zero::test::run_nccl;

struct Nccl {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::test::need_devices(ranks);
    run_nccl(ranks, body);
  }
};

struct CountingNccl {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::test::need_devices(ranks);
    run_nccl(ranks, [&](NcclCommunicator& comm) {
      zero::Traffic traffic;
      zero::Counting counting{zero::Borrowed{comm}, traffic};
      body(counting);
      CHECK(traffic.calls() > 0);
      CHECK((ranks > 1) == (traffic.received_bytes() > 0));
    });
  }
};

/// Before NCCL asks for it, which it does once. One communicator does not mind.
[[maybe_unused]] int const implicit_launch_order = ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);

struct SeparateNccl {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::test::need_devices(ranks);
    run_nccl(ranks, [&](NcclCommunicator& comm) {
      zero::SeparateCommunicators group{zero::Borrowed{comm}, comm.duplicate()};
      body(group);
    });
  }
};

static_assert(zero::Performs<NcclCommunicator, AllGather<zero::bf16>>);
static_assert(!zero::Performs<NcclCommunicator, zero::Announce>);
static_assert(zero::AllReduces<NcclCommunicator, std::int64_t, zero::Max>);
static_assert(!zero::AllReduces<NcclCommunicator, float, zero::Max>, "NCCL's largest of real numbers ignores NaN");
static_assert(zero::check_communicator<zero::Counting<NcclCommunicator>>());

}  // namespace

TEST_CASE("NCCL conforms; field case 118: in place equals out of place") { zero::test::conformance<Nccl>(zero::test::ranks()); }

TEST_CASE("counting NCCL conforms") { zero::test::conformance<CountingNccl>(zero::test::ranks()); }

TEST_CASE("two communicators over NCCL conform") {
  if (zero::nccl_version() >= 22600) zero::test::conformance<SeparateNccl>(zero::test::ranks());
  else MESSAGE("SKIPPED: two communicators at once need NCCL 2.26");
}

TEST_CASE("field case 64: one communicator over two streams keeps the order of the calls") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks, 17);
  run_nccl(ranks, [](NcclCommunicator& comm) {
    CudaStream const first;
    CudaStream const second;
    Elements<NcclCommunicator, std::int64_t> values(3);
    bool passed = true;
    for (int round = 0; round < 30; ++round) {
      values = {1, 2, 3};
      for (int i = 0; i < 3; ++i) {
        comm.enqueue(i == 1 ? second : first,
                     AllReduce<std::int64_t>{
                         .send = &values[static_cast<std::size_t>(i)], .receive = &values[static_cast<std::size_t>(i)], .count = 1});
      }
      first.synchronize();
      second.synchronize();
      for (std::size_t i = 0; i < 3; ++i) passed = passed && values[i] == comm.size() * static_cast<std::int64_t>(i + 1);
    }
    CHECK(passed);
  });
}

TEST_CASE("a chain of collectives in which each uses what the one before gave") {
  int const ranks = zero::test::ranks();
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    zero::test::need_devices(ranks, seed);
    run_nccl(ranks, [](NcclCommunicator& comm) {
      int const n = comm.size();
      std::int64_t const part = 333;
      CudaStream const stream;
      NcclCommunicator child = comm.split(comm.rank() % 2);
      Elements<NcclCommunicator, std::int64_t> whole(static_cast<std::size_t>(n * part));
      Elements<NcclCommunicator, std::int64_t> other(whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::int64_t>(i) % 7 + comm.rank();
      std::int64_t* const own = whole.data() + comm.rank() * part;
      comm.enqueue(stream, ReduceScatter<std::int64_t>{.send = whole.data(), .receive = own, .count = part});
      comm.enqueue(stream, AllGather<std::int64_t>{.send = own, .receive = whole.data(), .count = part});
      comm.enqueue(stream, AllToAll<std::int64_t>{.send = whole.data(), .receive = other.data(), .count = part});
      comm.enqueue(stream, Broadcast<std::int64_t>{.buffer = other.data(), .count = n * part, .root = n - 1});
      child.enqueue(stream, AllReduce<std::int64_t>{.send = other.data(), .receive = other.data(), .count = n * part});
      comm.enqueue(stream, Barrier{});
      stream.synchronize();
      // The all-to-all of equal vectors leaves part n - 1 of the sum in every part of rank n - 1, which is what is broadcast.
      bool passed = true;
      for (std::int64_t i = 0; i < n * part; ++i) {
        std::int64_t const k = (n - 1) * part + i % part;
        passed = passed && other[static_cast<std::size_t>(i)] == (n * (k % 7) + n * (n - 1) / 2) * child.size();
      }
      CHECK(passed);
    });
  }
}

TEST_CASE("an operation on a stream may outlive its communicator, which waits for it; moved ones are the same rank") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks, 5);
  run_nccl(ranks, [](NcclCommunicator& comm) {
    CudaStream const stream;
    Elements<NcclCommunicator, std::int64_t> value(1, 1);
    AllReduce<std::int64_t> const sum{.send = value.data(), .receive = value.data(), .count = 1};
    {
      NcclCommunicator child = comm.split(0);
      child.enqueue(stream, sum);
      NcclCommunicator moved = std::move(child);
      moved.enqueue(stream, sum);
      CHECK(moved.rank() == comm.rank());
      moved = comm.split(0);
    }
    stream.synchronize();
    CHECK(value[0] == comm.size() * comm.size());
  });
}

TEST_CASE("finalize waits for all ranks; afterwards nothing can be enqueued") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks, 3);
  run_nccl(ranks, [](NcclCommunicator& comm) {
    CudaStream const stream;
    Elements<NcclCommunicator, std::int64_t> value(1, 1);
    AllReduce<std::int64_t> const sum{.send = value.data(), .receive = value.data(), .count = 1};
    comm.enqueue(stream, sum);
    comm.finalize();
    CHECK(value[0] == comm.size());
    CHECK(comm.native() == nullptr);
    if (comm.size() > 1) CHECK_THROWS_WITH_AS(comm.enqueue(stream, sum), doctest::Contains("was finalized"), zero::UsageError);
  });
}

TEST_CASE("factors that NCCL cannot apply exactly are refused") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const stream;
    Elements<NcclCommunicator, zero::half> values(4);
    auto const refused = [&](float factor, char const* text) {
      AllReduce<zero::half> const sum{.send = values.data(), .receive = values.data(), .count = 4, .factor = factor};
      CHECK_THROWS_WITH_AS(comm.enqueue(stream, sum), doctest::Contains(text), zero::UsageError);
    };
    if (ranks == 1) return refused(0.5f, "one rank has nothing to add");
    for (float const factor : {0.3f, 0.0f, 3.0f, 0x1p-40f, 1.0f / 0.0f}) refused(factor, "only for powers of two");
  });
}

TEST_CASE("field case 79: sums of half that would overflow stay finite with a factor") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  if (ranks == 1) return;
  run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const stream;
    float factor = 1;
    for (int n = ranks; n > 1; n /= 2) factor /= 2;
    Elements<NcclCommunicator, zero::half> values(8, zero::half(32768.0f));
    comm.enqueue(stream, AllReduce<zero::half>{.send = values.data(), .receive = values.data(), .count = 8, .factor = factor});
    comm.enqueue(stream, AllReduce<zero::half>{.send = values.data(), .receive = values.data(), .count = 0, .factor = factor});
    stream.synchronize();
    CHECK(static_cast<float>(values[7]) == 32768.0f * static_cast<float>(ranks) * factor);
  });
}

TEST_CASE("a stream of another device is refused") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  if (ranks == 1) return;
  run_nccl(ranks, [&](NcclCommunicator& comm) {
    CudaStream const stream({.device = (comm.rank() + 1) % ranks});
    CHECK_THROWS_WITH_AS(comm.enqueue(stream, Barrier{}), doctest::Contains("the communicator's is"), zero::UsageError);
  });
}

TEST_CASE("all devices of one process") {
  int const ranks = zero::test::ranks();
  zero::test::need_devices(ranks);
  std::vector<int> devices;
  for (int device = ranks - 1; device >= 0; --device) devices.push_back(device);
  std::vector<NcclCommunicator> communicators = zero::nccl_all_devices(devices);
  REQUIRE(communicators.size() == devices.size());
  zero::run_ranks(ranks, [&](zero::ThreadCommunicator& threads) {
    NcclCommunicator comm = std::move(communicators[static_cast<std::size_t>(threads.rank())]);
    CHECK(comm.rank() == threads.rank());
    CHECK(comm.size() == ranks);
    CHECK(comm.device() == ranks - 1 - threads.rank());
    CudaStream const stream({.device = comm.device()});
    Elements<NcclCommunicator, float> values(5, 1.0f);
    comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 5});
    stream.synchronize();
    CHECK(values[4] == static_cast<float>(ranks));
  });
  CHECK_THROWS_AS(static_cast<void>(zero::nccl_all_devices({})), zero::UsageError);
}
