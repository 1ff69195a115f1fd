// SPDX-License-Identifier: Apache-2.0
/// @file
/// Gathers that start before their weights are asked for: in which order, how far ahead, and that they overlap with computation.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/plan.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/odd_layouts.hpp"

namespace {

using zero::HostDevice;
using zero::HostStreamRef;
using zero::ParameterLayout;
using zero::Purpose;
using zero::SourceLocation;
using zero::Stage3;
using zero::Subject;
using zero::ThreadCommunicator;
using zero::Unit;

using P = zero::Precision<float>;
constexpr int ranks = 2;

/// Writes down what training asks for: "g2" for a gather, "r2" for a reduction of segment 2.
class Log : public zero::Borrowed<ThreadCommunicator> {
public:
  /// @param gathered  counts the gathers that are done.
  Log(ThreadCommunicator& inner, std::string& calls, std::atomic<int>* gathered = nullptr)
      : Borrowed(inner), calls_(&calls), gathered_(gathered) {}

  template <class Operation>
    requires zero::Performs<ThreadCommunicator, Operation>
  void enqueue(HostStreamRef stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    if (operation.label.subject == Subject::parameters) *calls_ += "g" + std::to_string(operation.label.index) + " ";
    if (operation.label.subject == Subject::gradients) *calls_ += "r" + std::to_string(operation.label.index) + " ";
    Borrowed::enqueue(stream, operation, where);
    if (gathered_ != nullptr && operation.label.subject == Subject::parameters) stream.enqueue([done = gathered_] { ++*done; });
  }

private:
  std::string* calls_;
  std::atomic<int>* gathered_;
};

static_assert(zero::check_communicator<Log>());

ParameterLayout chain(int units) {
  ParameterLayout layout;
  for (int u = 0; u < units; ++u) layout.add(layout.add_unit("u" + std::to_string(u)), "p" + std::to_string(u), {256});
  return layout;
}

/// The calls of a second pass, and what is held for gathered weights then [bytes].
template <class Loop>
std::pair<std::string, std::int64_t> second_pass(ParameterLayout const& layout, std::int64_t prefetch_bytes, bool overlapped,
                                                 Loop const& loop) {
  std::string result[ranks];
  std::int64_t held[ranks] = {};
  zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
    auto const r = static_cast<std::size_t>(threads.rank());
    std::string calls;
    Log comm(threads, calls);
    zero::HostStream compute({.worker = true});
    zero::HostStream communication({.worker = true});
    zero::CountingResource memory(zero::host_memory());
    auto parameters =
        zero::shard_parameters<Stage3, P>(layout, comm, {compute, overlapped ? HostStreamRef(communication) : HostStreamRef(compute)},
                                          memory, {.prefetch_bytes = prefetch_bytes});
    parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
    for (int pass = 0; pass < 2; ++pass) {
      calls.clear();
      loop(parameters, pass);
    }
    result[r] = calls;
    held[r] = memory.live(Purpose::gathered);
  });
  CHECK(result[0] == result[1]);
  return {result[0], held[0]};
}

template <class Parameters>
void canonical(Parameters& parameters, int) {
  auto pass = parameters.training_pass();
  for (Unit unit : parameters.layout().units()) static_cast<void>(pass.gather(unit));
  for (Unit unit : parameters.layout().units().reversed()) {
    auto const weights = pass.gather(unit);
    pass.no_gradient(unit);
  }
  pass.finish();
}

constexpr auto canonically = [](auto& parameters, int pass) { canonical(parameters, pass); };

}  // namespace

TEST_CASE("the next gather is issued before the current reduction, one unit ahead unless told otherwise") {
  auto const layout = chain(3);
  auto const [calls, held] = second_pass(layout, -1, true, canonically);
  CHECK(calls == "g0 g1 g2 g2 g1 r2 g0 r1 r0 ");
  CHECK(held == 2 * 256 * 4);
}

TEST_CASE("how far ahead is a matter of bytes, and nothing is gathered ahead where it would not overlap") {
  auto const layout = chain(4);
  std::string const in_turn = "g0 g1 g2 g3 g3 r3 g2 r2 g1 r1 g0 r0 ";
  for (auto const& [bytes, overlapped] : {std::pair<std::int64_t, bool>{0, true}, {256 * 4 - 1, true}, {-1, false}, {1 << 20, false}}) {
    auto const [calls, held] = second_pass(layout, bytes, overlapped, canonically);
    CHECK(calls == in_turn);
    CHECK(held == 256 * 4);
  }
  auto const [calls, held] = second_pass(layout, 2 * 256 * 4, true, canonically);
  CHECK(calls == "g0 g1 g2 g3 g3 g2 g1 r3 g0 r2 r1 r0 ");
  CHECK(held == 3 * 256 * 4);
}

TEST_CASE("a pass that gathers in another order goes on without, and lets go of what it does not use") {
  auto const layout = chain(4);
  auto const [calls, held] = second_pass(layout, -1, true, [](auto& parameters, int pass) {
    auto open = parameters.training_pass();
    for (int u : pass == 0 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0, 3, 2, 2})
      static_cast<void>(open.gather(static_cast<Unit>(u)));
    open.finish();
    if (pass == 1) {  // As the one before did; unit 1 was let go of.
      auto again = parameters.training_pass();
      for (int u : {0, 3, 2, 2}) static_cast<void>(again.gather(static_cast<Unit>(u)));
      again.finish();
    }
  });
  CHECK(calls ==
        "g0 g1 g3 g2 g2 "
        "g0 g3 g2 g2 ");
  CHECK(held == 2 * 256 * 4);
}

TEST_CASE("ranks may let go of their scopes at different times, and leave a pass by different ways") {
  auto const layout = chain(4);
  auto const calls = second_pass(layout, -1, true, [](auto& parameters, int) {
                       bool const other = parameters.group().rank() == 1;
                       auto const unit = [](int u) { return static_cast<Unit>(u); };
                       {
                         auto pass = parameters.inference_pass();
                         auto first = pass.gather(unit(0));
                         if (other) first.release();
                         auto second = pass.gather(unit(1));
                         first.release();
                         second.release();
                         for (int u : {0, 2, 3}) static_cast<void>(pass.gather(unit(u)));
                       }
                       try {
                         auto pass = parameters.inference_pass();
                         for (int u : {0, 1}) static_cast<void>(pass.gather(unit(u)));
                         if (other) throw zero::Error("of one rank alone");
                       } catch (zero::Error const&) {
                       }
                     }).first;
  // The pass that is cut short gathers unit 0 again, in vain, because that came next in the one before.
  CHECK(calls ==
        "g0 g1 g0 g2 g3 "
        "g0 g1 g0 ");
}

TEST_CASE("ranks of which only one gathers ahead are told apart at the start") {
  auto const layout = chain(2);
  std::atomic<int> refused = 0;
  zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
    zero::HostStream compute({.worker = true});
    zero::HostStream communication({.worker = true});
    HostStreamRef const second = comm.rank() == 0 ? HostStreamRef(communication) : HostStreamRef(compute);
    try {
      static_cast<void>(zero::shard_parameters<zero::Stage1, P>(layout, comm, {compute, second}, zero::host_memory()));
      static_cast<void>(zero::shard_parameters<Stage3, P>(layout, comm, {compute, second}, zero::host_memory(), {.prefetch_bytes = 0}));
    } catch (zero::Error const&) {
      FAIL_CHECK("these gather nothing ahead");
    }
    try {
      static_cast<void>(zero::shard_parameters<Stage3, P>(layout, comm, {compute, second}, zero::host_memory()));
    } catch (zero::MismatchError const&) {
      ++refused;
    }
  });
  CHECK(refused == ranks);
}

TEST_CASE("training and inference passes are remembered apart") {
  auto const layout = chain(3);
  auto const calls = second_pass(layout, -1, true, [](auto& parameters, int pass) {
                       canonical(parameters, pass);
                       auto inference = parameters.inference_pass();
                       for (Unit unit : parameters.layout().units().reversed()) static_cast<void>(inference.gather(unit));
                     }).first;
  CHECK(calls ==
        "g0 g1 g2 g2 g1 r2 g0 r1 r0 "
        "g2 g1 g0 ");
}

TEST_CASE("bytes gathered and held ahead are the planned ones, on layouts with ties and frozen parameters") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    auto const layout = zero::test::odd_layout(seed);
    for (std::int64_t const bytes : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3000}, std::int64_t{1} << 30}) {
      CAPTURE(bytes);
      zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
        zero::HostStream compute({.worker = true});
        zero::HostStream communication({.worker = true});
        zero::CountingResource memory(zero::host_memory());
        auto parameters = zero::shard_parameters<Stage3, P>(layout, comm, {compute, communication}, memory, {.prefetch_bytes = bytes});
        parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
        zero::Plan const plan =
            zero::plan<Stage3, P, zero::AdamW>(parameters.partition(), {.overlapped = true, .prefetch_bytes = bytes}, comm.rank());
        zero::Plan const in_turn = zero::plan<Stage3, P, zero::AdamW>(parameters.partition(), {}, comm.rank());
        canonical(parameters, 0);
        std::int64_t allocations = 0;
        for (int pass = 0; pass < 3; ++pass) {
          if (pass == 1) allocations = memory.allocations();
          canonical(parameters, 1);
        }
        CHECK(memory.live(Purpose::gathered) == plan.bytes(Purpose::gathered));
        CHECK(memory.allocations() == allocations);
        CHECK(plan.received_bytes() == in_turn.received_bytes());
      });
    }
  }
}

TEST_CASE("field case 54: a gather runs while the unit before computes") {
  auto const layout = chain(3);
  std::atomic<int> waited_in_vain = 0;
  zero::run_ranks(ranks, [&](ThreadCommunicator& threads) {
    std::string calls;
    std::atomic<int> gathered = 0;
    Log comm(threads, calls, &gathered);
    zero::HostStream compute({.worker = true});
    zero::HostStream communication({.worker = true});
    auto parameters = zero::shard_parameters<Stage3, P>(layout, comm, {compute, communication}, zero::host_memory());
    parameters.initialize(1, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
    for (int pass = 0; pass < 2; ++pass) {
      HostDevice::synchronize(compute);
      HostDevice::synchronize(communication);
      gathered = 0;
      auto open = parameters.training_pass();
      for (Unit unit : layout.units()) {
        auto const weights = open.gather(unit);
        int const next = zero::to_index(unit) + 1;
        if (pass == 0 || next == layout.unit_count()) continue;
        // The unit computes until the next one has been gathered.
        HostStreamRef(compute).enqueue([&, next] {
          auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
          while (gathered <= next && std::chrono::steady_clock::now() < end) std::this_thread::yield();
          if (gathered <= next) ++waited_in_vain;
        });
      }
      open.finish();
    }
    HostDevice::synchronize(compute);
  });
  CHECK(waited_in_vain == 0);
}
