// SPDX-License-Identifier: Apache-2.0
#include <zero/train/sharded_parameters.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/self.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/plan.hpp>

#include "support/odd_layouts.hpp"
#include "support/ranks.hpp"

namespace {

using zero::ParameterId;
using zero::ParameterLayout;
using zero::Unit;
using zero::test::small_layout;

using Group = zero::Counting<zero::Borrowed<zero::ThreadCommunicator>>;
using Bf16 = zero::Precision<zero::bf16>;

zero::HostStreamRef here() { return zero::HostStreamRef::calling_thread(); }
zero::Streams<zero::HostDevice> streams() { return {here(), here()}; }

/// How many elements are not the initial value rounded to bf16 (through the fp32 master).
template <class Parameters>
std::int64_t wrong_initial_values(Parameters& parameters, std::uint64_t seed, zero::InitialValue what) {
  std::int64_t wrong = 0;
  auto const all = parameters.gather_all();
  for (ParameterId id : parameters.layout().parameters()) {
    auto const key = zero::initial_key(seed, zero::Hasher{}.add(parameters.layout().name(id)).value());
    for (std::size_t i = 0; i < all[id].size(); ++i) {
      auto const expected =
          zero::element_cast<zero::bf16>(static_cast<float>(zero::initial_value(what, key, static_cast<std::int64_t>(i))));
      wrong += all[id][i].bits != expected.bits ? 1 : 0;
    }
  }
  return wrong;
}

template <class S>
void check_stage() {
  ParameterLayout const layout = small_layout();
  zero::run_ranks(zero::test::ranks(), [&](zero::ThreadCommunicator& comm) {
    zero::Traffic traffic;
    Group group{zero::Borrowed{comm}, traffic};
    auto parameters = zero::shard_parameters<S, Bf16>(layout, group, streams(), zero::host_memory());
    CHECK(parameters.layout().hash() == layout.hash());
    CHECK(parameters.partition().ranks() == comm.size());
    CHECK(&parameters.group() == &group);
    CHECK(&parameters.memory() == &zero::host_memory());
    auto const calls = traffic.calls();

    parameters.initialize(42, [](ParameterId) { return zero::InitialValue::normal(1, 2); });
    CHECK(traffic.calls() == calls);  // each rank computes what it holds
    CHECK(wrong_initial_values(parameters, 42, zero::InitialValue::normal(1, 2)) == 0);

    ParameterId const id = layout.find("a.shared");
    std::vector<float> values(131);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + static_cast<float>(i) * 0x1p-9f;
    parameters.assign(id, values);
    zero::SegmentId const segment = parameters.partition().segment_of(id);
    auto const masters = parameters.masters(segment);
    for (std::size_t i = 0; i < masters.local().size(); ++i) {
      CHECK(masters.local()[i] == values[static_cast<std::size_t>(masters.first()) + i]);
    }
    {
      auto const all = parameters.gather_all();
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(all[id][i].bits == zero::bf16(values[i]).bits);
      CHECK(all[layout.unit(id)].data(id) == all[id].data());
      // The tied unit sees the same storage, other parameters are as before.
      CHECK(all[Unit{1}].data(id) == all[id].data());
    }
    values.pop_back();
    CHECK_THROWS_AS(parameters.assign(id, values), zero::UsageError);
    CHECK_THROWS_AS(parameters.assign(ParameterId{99}, values), zero::LayoutError);
    CHECK_THROWS_AS(parameters.publish(), zero::UsageError);
    CHECK(static_cast<int>(traffic.calls()) ==
          static_cast<int>(calls) + (comm.size() > 1 && std::is_same_v<typename S::parameters, zero::Sharded> ? 8 : 0));
  });
}

}  // namespace

TEST_CASE("initial values and assigned ones are the same on all ranks, at every stage; Replicated gathers make no call") {
  check_stage<zero::Stage0>();
  check_stage<zero::Stage1>();
  check_stage<zero::Stage3>();
}

TEST_CASE("field cases 58, 61: ranks that start with another layout, cut, or stage get a MismatchError each") {
  int const ranks = zero::test::ranks();
  if (ranks == 1) return;
  ParameterLayout const layout = small_layout();
  ParameterLayout renamed;
  renamed.add(renamed.add_unit("u"), "other", {131});
  enum What { other_layout, other_cut, other_stage };
  for (What what : {other_layout, other_cut, other_stage}) {
    std::vector<std::string> messages(static_cast<std::size_t>(ranks));
    zero::run_ranks(ranks, [&](zero::ThreadCommunicator& comm) {
      zero::Traffic traffic;
      Group group{zero::Borrowed{comm}, traffic};
      bool const odd_one = comm.rank() == ranks - 1;
      auto& message = messages[static_cast<std::size_t>(comm.rank())];
      try {
        zero::ParametersOptions options;
        if (odd_one && what == other_cut) options.partition.shard_alignment = 256;
        ParameterLayout const& mine = odd_one && what == other_layout ? renamed : layout;
        if (odd_one && what == other_stage) {
          auto parameters = zero::shard_parameters<zero::Stage1, Bf16>(mine, group, streams(), zero::host_memory(), options);
        } else {
          auto parameters = zero::shard_parameters<zero::Stage0, Bf16>(mine, group, streams(), zero::host_memory(), options);
        }
      } catch (zero::MismatchError const& error) {
        message = error.what();
      }
    });
    for (std::string const& message : messages) {
      INFO(message);
      CHECK(message.find(what == other_stage ? "different stages" : "different layouts") != std::string::npos);
      CHECK(message.find("ranks 0 and " + std::to_string(ranks - 1)) != std::string::npos);
    }
  }
}

TEST_CASE("one rank without a transport trains as any other") {
  zero::SelfCommunicator self;
  auto parameters = zero::shard_parameters<zero::Stage3, zero::Precision<float>>(small_layout(), self, streams(), zero::host_memory());
  parameters.initialize(1, [](ParameterId) { return zero::InitialValue::constant(2); });
  auto pass = parameters.training_pass({.last = true});
  for (Unit unit : parameters.layout().units().reversed()) {
    auto weights = pass.gather(unit);
    CHECK(weights[0][0] == 2);
    // On one rank every conversion is an alias: the gathered weights are the stored ones.
    CHECK(weights.data(parameters.layout().find("a.shared")) ==
          parameters.stored(parameters.partition().segment_of(parameters.layout().find("a.shared"))).data());
    pass.no_gradient(unit);
  }
  pass.finish();
  CHECK(parameters.reduce().wait().norm == 0);
  parameters.publish();
}

namespace {

template <class S>
using Reserving = zero::ShardedParameters<S, Bf16, Group>;

/// Runs `body(parameters, memory)` on all ranks; `memory` counts.
template <class S, class Body>
void with_parameters(Body const& body) {
  zero::run_ranks(zero::test::ranks(), [&](zero::ThreadCommunicator& comm) {
    zero::Traffic traffic;
    Group group{zero::Borrowed{comm}, traffic};
    zero::CountingResource memory(zero::host_memory());
    auto parameters = zero::shard_parameters<S, Bf16>(small_layout(), group, streams(), memory);
    std::int64_t const calls = traffic.calls();
    body(parameters, memory);
    CHECK(traffic.calls() == calls);
  });
}

/// Bytes of buffers that passes use.
std::int64_t pass_bytes(zero::CountingResource const& memory) {
  return memory.live(zero::Purpose::gathered) + memory.live(zero::Purpose::gradient_scratch);
}

}  // namespace

TEST_CASE("reserve adds what is missing, for the loop that it is told of") {
  with_parameters<zero::Stage3>([](Reserving<zero::Stage3>& parameters, zero::CountingResource& memory) {
    auto const planned = [&](zero::Schedule const& schedule) {
      return zero::plan<zero::Stage3, Bf16, zero::SGD>(parameters.partition(), schedule);
    };
    auto const default_plan = planned({});
    auto const held_plan = planned({.backward_gathers = false});
    CHECK(pass_bytes(memory) == 0);
    parameters.reserve({.micro_batches = 0});
    CHECK(pass_bytes(memory) == 0);
    parameters.reserve({.micro_batches = 0, .inference_passes = 1});  // No gradients.
    CHECK(memory.live(zero::Purpose::gathered) == default_plan.bytes(zero::Purpose::gathered));
    CHECK(memory.live(zero::Purpose::gradient_scratch) == 0);
    parameters.reserve();
    CHECK(memory.live(zero::Purpose::gathered) == default_plan.bytes(zero::Purpose::gathered));
    CHECK(memory.live(zero::Purpose::gradient_scratch) == default_plan.bytes(zero::Purpose::gradient_scratch));
    parameters.reserve({.backward_gathers = false});
    CHECK(memory.live(zero::Purpose::gathered) == held_plan.bytes(zero::Purpose::gathered));
    CHECK(memory.live(zero::Purpose::gradient_scratch) == held_plan.bytes(zero::Purpose::gradient_scratch));
    auto const blocks = memory.allocations();
    parameters.reserve();
    parameters.reserve({.micro_batches = 7, .inference_passes = 3, .backward_gathers = false, .step = {.max_norm = 1}});
    CHECK(memory.allocations() == blocks);
  });
}

TEST_CASE("reserve is refused in a pass or a step, where weights are in use, and for what is no number of passes") {
  zero::SelfCommunicator self;
  zero::CountingResource memory(zero::host_memory());
  auto parameters = zero::shard_parameters<zero::Stage3, Bf16>(small_layout(), self, streams(), memory);
  auto const refuses = [&](char const* what, zero::Schedule const& schedule = {}) {
    std::int64_t const blocks = memory.allocations();
    CHECK_THROWS_WITH_AS(parameters.reserve(schedule), doctest::Contains(what), zero::UsageError);
    CHECK(memory.allocations() == blocks);
  };
  refuses("negative number of passes", {.micro_batches = -1});
  refuses("negative number of passes", {.inference_passes = -1});
  {
    auto const pass = parameters.training_pass({.last = true});
    refuses("reserve: a pass is still open");
  }
  refuses("a pass was not finished");
  parameters.discard_gradients();
  {
    auto const pass = parameters.inference_pass();
    refuses("reserve: a pass is still open");
  }
  {
    auto const all = parameters.gather_all();
    refuses("the weights of unit 'a' are still in use");
  }
  static_cast<void>(parameters.reduce());
  refuses("publish() has not ended the step before");
  parameters.publish();
  CHECK(pass_bytes(memory) == 0);
  REQUIRE_NOTHROW(parameters.reserve());
  CHECK(pass_bytes(memory) > 0);
}

TEST_CASE("a reserve that gets no memory changes nothing") {
  zero::run_ranks(zero::test::ranks(), [](zero::ThreadCommunicator& comm) {
    std::int64_t blocks = 0;
    std::int64_t start = 0;
    for (std::int64_t failing = 0; failing <= blocks; ++failing) {
      zero::CountingResource memory(zero::host_memory());
      zero::FailingResource counted(memory, failing == 0 ? 0 : start + failing);
      zero::Borrowed group{comm};
      auto parameters = zero::shard_parameters<zero::Stage3, Bf16>(small_layout(), group, streams(), counted);
      start = counted.calls();
      if (failing > 0) {
        CHECK_THROWS_AS(parameters.reserve({.backward_gathers = false}), zero::MemoryError);
        CHECK(pass_bytes(memory) == 0);
      }
      parameters.reserve({.backward_gathers = false});
      if (failing == 0) blocks = counted.calls() - start;
      auto const plan = zero::plan<zero::Stage3, Bf16, zero::SGD>(parameters.partition(), {.backward_gathers = false});
      CHECK(memory.live(zero::Purpose::gathered) == plan.bytes(zero::Purpose::gathered));
      CHECK(memory.live(zero::Purpose::gradient_scratch) == plan.bytes(zero::Purpose::gradient_scratch));
    }
    CHECK(blocks > 1);
  });
}
