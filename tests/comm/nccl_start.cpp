// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/nccl_start.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "support/nccl_ranks.hpp"

namespace {

using zero::AllReduce;
using zero::Barrier;
using zero::CudaStream;
using zero::NcclCommunicator;
using zero::ThreadCommunicator;
using zero::test::Elements;

/// A variable of the environment, for the length of a test.
struct Variable {
  Variable(char const* variable, char const* value) : name(variable) { ::setenv(name, value, 1); }
  Variable(Variable const&) = delete;
  Variable& operator=(Variable const&) = delete;
  ~Variable() { ::unsetenv(name); }
  char const* name;
};

}  // namespace

TEST_CASE("field case 72: ranks of a launch meet at an address, without another channel") {
  zero::test::need_devices(4);
  Variable const id("NCCL_COMM_ID", "host:1234");  // Set before threads use the environment; processes need not.
  for (int round = 0; round < 2; ++round) {        // The address can be used again.
    zero::run_ranks(4, [](ThreadCommunicator& threads) {
      zero::LaunchEnvironment const place{.rank = threads.rank(), .ranks = 4, .local_rank = 3 - threads.rank(), .address = "host:1234"};
      NcclCommunicator comm = zero::nccl_launched(place);
      CHECK(comm.rank() == threads.rank());
      CHECK(comm.device() == 3 - threads.rank());
      CudaStream const stream({.device = comm.device()});
      Elements<NcclCommunicator, float> values(1, 1.0f);
      comm.enqueue(stream, AllReduce<float>{.send = values.data(), .receive = values.data(), .count = 1});
      stream.synchronize();
      CHECK(values[0] == 4.0f);
    });
  }
}

TEST_CASE("field case 72: what a launch that failed has left at an address is nothing to the next launch there") {
  zero::test::need_devices(2);
  Variable const id("NCCL_COMM_ID", "host:1234");
  for (int const arriving : {1, 2}) {
    std::atomic<int> started = 0;
    zero::run_ranks(arriving, [&](ThreadCommunicator& threads) {
      zero::LaunchEnvironment const place{.rank = threads.rank(), .ranks = 2, .local_rank = threads.rank(), .address = "host:1234"};
      try {
        NcclCommunicator comm = zero::nccl_launched(place, {.deadline_ms = arriving == 2 ? 60'000 : 200});
        ++started;
      } catch (zero::DeadlineError const&) {
      }
    });
    CHECK(started.load() == (arriving == 2 ? 2 : 0));
  }
}

TEST_CASE("a process started by torchrun; the address is in the environment only while the ranks start") {
  zero::test::need_devices(2);
  Variable const variables[] = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}};
  NcclCommunicator const comm = zero::nccl_from_environment();
  CHECK(comm.size() == 1);
  CHECK(std::getenv("NCCL_COMM_ID") == nullptr);
  ::unsetenv("MASTER_PORT");
  CHECK_THROWS_WITH_AS(static_cast<void>(zero::nccl_from_environment()), doctest::Contains("MASTER_PORT is not set"), zero::UsageError);
  CHECK(std::getenv("NCCL_COMM_ID") == nullptr);
}

TEST_CASE("a process of a host takes the device of its number, or the only one that it is shown") {
  zero::test::need_devices(2);
  CHECK(zero::detail::device_of_local_rank(1, {}) == 1);
  CHECK_THROWS_WITH_AS(static_cast<void>(zero::detail::device_of_local_rank(2, {})),
                       doctest::Contains("number 2 of its host, counted from 0, which has 2 CUDA devices"), zero::UsageError);
  zero::test::need_devices(1);
  CHECK(zero::detail::device_of_local_rank(7, {}) == 0);
  zero::standin::reset({.devices = 0});
  CHECK_THROWS_AS(static_cast<void>(zero::detail::device_of_local_rank(0, {})), zero::DeviceError);
}

TEST_CASE("field case 68: where rank 0 has no id, all ranks of the other communicator learn why") {
  zero::test::need_devices(3);
  zero::standin::fail_nccl({.function = "ncclGetUniqueId", .call = 1});
  std::atomic<int> told = 0;
  zero::run_ranks(3, [&](ThreadCommunicator& threads) {
    try {
      static_cast<void>(zero::nccl_over(threads, {}, threads.rank()));
    } catch (zero::CommunicationError const& error) {
      if (std::string(error.what()).find("ncclGetUniqueId failed: unhandled system error") != std::string::npos) ++told;
    }
  });
  CHECK(told.load() == 3);
}

TEST_CASE("gathers by copy engines are asked for by an option, where NCCL is new enough") {
  zero::test::need_devices(1);
  zero::standin::reset_nccl();
  zero::run_ranks(1, [&](ThreadCommunicator& threads) {
    static_cast<void>(zero::nccl_over(threads));
    CHECK(zero::standin::nccl_cta_policy() == NCCL_CONFIG_UNDEF_INT);
#if NCCL_VERSION_CODE >= 22800
    static_cast<void>(zero::nccl_over(threads, {.copy_engines = true}));
    CHECK(zero::standin::nccl_cta_policy() == NCCL_CTA_POLICY_ZERO);
#endif
    zero::standin::reset_nccl({.version = 22705});
    CHECK_THROWS_WITH_AS(static_cast<void>(zero::nccl_over(threads, {.copy_engines = true})),
                         doctest::Contains("gathers by copy engines need 2.28; compiled with"), zero::UsageError);
    zero::standin::reset_nccl();
  });
}

TEST_CASE("two ranks on one device are NCCL's error") {
  zero::test::need_devices(2);
  std::atomic<int> refused = 0;
  zero::run_ranks(2, [&](ThreadCommunicator& threads) {
    try {
      static_cast<void>(zero::nccl_over(threads, {.deadline_ms = 500}, 0));
    } catch (zero::NcclError const& error) {
      if (std::string(error.what()).find("Duplicate GPU detected") != std::string::npos) ++refused;
    } catch (zero::DeadlineError const&) {
    }
  });
  CHECK(refused.load() == 1);
}

TEST_CASE("places and options that are none are refused before NCCL is called") {
  zero::test::need_devices(2);
  ncclUniqueId const id{};
  CHECK_THROWS_AS(NcclCommunicator(id, {.rank = 1, .ranks = 1}), zero::UsageError);
  CHECK_THROWS_AS(NcclCommunicator(id, {.rank = -1, .ranks = 1}), zero::UsageError);
  CHECK_THROWS_AS(NcclCommunicator(id, {.rank = 0, .ranks = 0}), zero::UsageError);
  CHECK_THROWS_AS(NcclCommunicator(id, {.device = 2}), zero::UsageError);
  CHECK_THROWS_AS(NcclCommunicator(id, {}, {.deadline_ms = 0}), zero::UsageError);
  CHECK(zero::standin::nccl_calls("ncclCommInitRankConfig") == 0);
  zero::standin::reset_nccl({.version = 21706});
  CHECK_THROWS_WITH_AS(NcclCommunicator(id, {}), doctest::Contains("version 2.17.6 runs here, 2.18 is needed"), zero::UsageError);
  zero::standin::reset({.driver_version = 0});
  zero::standin::reset_nccl();
  CHECK_THROWS_AS(NcclCommunicator(id, {}), zero::DeviceError);
}

TEST_CASE("field case 64: a second communicator is made only where NCCL orders launches") {
  zero::test::need_devices(2);
  zero::test::run_nccl(2, [](NcclCommunicator& comm) {
    CHECK_THROWS_WITH_AS(static_cast<void>(comm.duplicate()), doctest::Contains("NCCL_LAUNCH_ORDER_IMPLICIT=1"), zero::UsageError);
  });
  Variable const implicit("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  zero::standin::reset_nccl({.version = 22505});
  zero::test::run_nccl(2, [](NcclCommunicator& comm) {
    CHECK_THROWS_WITH_AS(static_cast<void>(comm.duplicate()), doctest::Contains("before NCCL 2.26; version 2.25.5 runs"), zero::UsageError);
  });
  zero::standin::reset_nccl();
  zero::test::run_nccl(2, [](NcclCommunicator& comm) {
    NcclCommunicator second = comm.duplicate();
    CHECK(second.rank() == comm.rank());
    CudaStream const stream;
    CudaStream const other;
    for (int i = 0; i < 20; ++i) {
      comm.enqueue(stream, Barrier{});
      second.enqueue(other, Barrier{});
    }
    stream.synchronize();
    other.synchronize();
  });
}

TEST_CASE("field case 111: one rank calls nothing of NCCL but to start and to end, at sizes around 16 bytes") {
  zero::test::need_devices(1);
  zero::test::run_nccl(1, [](NcclCommunicator& comm) {
    std::int64_t const before = zero::standin::nccl_calls();
    CudaStream const stream;
    bool passed = true;
    for (std::int64_t count = 0; count < 40; ++count) {
      Elements<NcclCommunicator, zero::bf16> const send(static_cast<std::size_t>(count), zero::bf16(3.0f));
      Elements<NcclCommunicator, zero::bf16> sum(send.size());
      Elements<NcclCommunicator, zero::bf16> part(send.size());
      comm.enqueue(stream, AllReduce<zero::bf16>{.send = send.data(), .receive = sum.data(), .count = count});
      comm.enqueue(stream, zero::ReduceScatter<zero::bf16>{.send = sum.data(), .receive = part.data(), .count = count});
      comm.enqueue(stream, zero::AllGather<zero::bf16>{.send = part.data(), .receive = part.data(), .count = count});
      comm.enqueue(stream, zero::Broadcast<zero::bf16>{.buffer = part.data(), .count = count});
      comm.enqueue(stream, Barrier{});
      comm.group(stream,
                 [&] { comm.enqueue(stream, zero::AllToAll<zero::bf16>{.send = send.data(), .receive = sum.data(), .count = count}); });
      stream.synchronize();
      for (zero::bf16 value : part) passed = passed && static_cast<float>(value) == 3.0f;
    }
    CHECK(passed);
    CHECK(zero::standin::nccl_calls() == before);
  });
}
