// SPDX-License-Identifier: Apache-2.0
/// @file
/// Ranks whose loops differ: found at every stage, where it would only be wrong as well as where it would hang, and said alike on all ranks.

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/checked.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/outcomes.hpp"
#include "support/same_bits.hpp"
#include "support/stages.hpp"

namespace {

using zero::HostStreamRef;
using zero::test::is;
using zero::test::Outcomes;
using zero::test::same_bits;
using zero::test::what_of;

constexpr int ranks = 3;
constexpr int odd_one = ranks - 1;  // the rank that does something else
constexpr zero::RunOptions patience{.deadline_ms = 20'000};

using ShardedPartialSharded = zero::test::Triple<zero::Sharded, zero::Partial, zero::Sharded>;
using AllReplicated = zero::test::Triple<zero::Replicated, zero::Replicated, zero::Replicated>;
using Single = zero::Precision<float>;
using Narrow = zero::Precision<zero::bf16>;
using CheckedThreads = zero::Checked<zero::Borrowed<zero::ThreadCommunicator>>;

zero::ParameterLayout make_layout(bool swapped = false) {
  zero::ParameterLayout layout;
  auto const first = layout.add_unit("first");
  auto const table = layout.add(first, "table", {7, 3});
  auto const middle = layout.add_unit("middle");
  if (swapped) layout.add(middle, "middle.bias", {41});
  layout.add(middle, "middle.weight", {41});
  if (!swapped) layout.add(middle, "middle.bias", {41});
  auto const last = layout.add_unit("last");
  layout.add(last, "last.weight", {5});
  layout.tie(table, last);
  return layout;
}

/// What a rank does with a unit's gradients in a micro-batch.
enum class Gradient { written, zero, none, omitted };

/// What a rank's loop does.
struct Script {
  int micro_batches = 2;
  bool announces_last = true;
  bool evaluates_between_steps = false;
  bool evaluates_at_the_end = false;
  bool reverses_hand_over = false;
  bool gathers_all = false;
  Gradient middle = Gradient::written;
  double max_norm = 1;
};

template <class S, class P, class Group>
std::vector<float> train(Group& group, bool workers, Script const& script) {
  zero::HostStream communication({.worker = workers});
  zero::HostStream compute({.worker = workers});
  auto const layout = make_layout();
  auto parameters = zero::shard_parameters<S, P>(layout, group, {compute, communication}, zero::host_memory());
  zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.1}};
  parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });

  auto const write = [&](auto const& gradients, auto const& weights, float data) {
    for (int i = 0; i < gradients.size(); ++i) {
      zero::HostDevice::for_each(compute, gradients.elements(i), [to = gradients[i], from = weights[i], data](std::int64_t k) {
        to[k] = typename P::gradient(float(to[k]) + 0.5f * float(from[k]) + data);
      });
    }
  };
  auto const evaluate = [&] {
    auto pass = parameters.inference_pass();
    for (zero::Unit unit : layout.units()) {
      [[maybe_unused]] auto const weights = pass.gather(unit);
    }
  };
  for (int step = 0; step < 2; ++step) {
    for (int m = 0; m < script.micro_batches; ++m) {
      auto pass = parameters.training_pass({.last = script.announces_last && m + 1 == script.micro_batches});
      std::vector<decltype(pass.gradients(zero::Unit{}))> open;
      for (zero::Unit unit : layout.units().reversed()) {
        bool const middle = layout.name(unit) == "middle";
        auto const weights = pass.gather(unit);
        if (middle && script.middle == Gradient::omitted) continue;
        if (middle && script.middle == Gradient::none) {
          pass.no_gradient(unit);
          continue;
        }
        open.push_back(pass.gradients(unit));
        if (!middle || script.middle == Gradient::written) write(open.back(), weights, static_cast<float>(group.rank() + m));
        if (!script.reverses_hand_over) open.back().hand_over();
      }
      if (script.reverses_hand_over) {
        for (std::size_t i = open.size(); i-- > 0;) open[i].hand_over();
      }
      pass.finish();
    }
    static_cast<void>(optimizer.step(parameters, {.max_norm = script.max_norm}));
    if (script.evaluates_between_steps && step == 0) evaluate();
    if (script.gathers_all && step == 0) static_cast<void>(parameters.gather_all());
  }
  std::vector<float> result;
  {
    auto const all = parameters.gather_all();
    zero::HostDevice::synchronize(compute);
    for (zero::ParameterId id : layout.parameters()) {
      for (auto const value : all[id]) result.push_back(float(value));
    }
  }
  if (script.evaluates_at_the_end) evaluate();
  zero::HostDevice::synchronize(communication);
  zero::HostDevice::synchronize(compute);
  return result;
}

template <class Body>
Outcomes outcomes_of(Body const& body) {
  return zero::test::outcomes_of(ranks, body, patience);
}

bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

/// Every rank says that the ranks' calls differ, and names both: what all others do, and what the odd one does.
void check_said_by_all(Outcomes const& said, std::string const& usual, std::string const& odd) {
  for (auto const& error : said.rank) {
    std::string const text = what_of(error);
    CAPTURE(text);
    CHECK(is<zero::MismatchError>(error));
    CHECK(contains(text, usual));
    CHECK(contains(text, "rank " + std::to_string(odd_one) + " calls " + odd));
  }
}

template <class S, class P>
Outcomes run_odd(bool workers, Script const& usual, Script const& odd) {
  return outcomes_of([&](zero::ThreadCommunicator& comm) {
    CheckedThreads checked{zero::Borrowed{comm}};
    train<S, P>(checked, workers, comm.rank() == odd_one ? odd : usual);
  });
}

template <class S, class P>
void check_loops_that_differ() {
  for (bool const workers : {false, true}) {
    CAPTURE(workers);
    // On one rank only, the loops of the others being the same.
    check_said_by_all(run_odd<S, P>(workers, {}, {.evaluates_between_steps = true}), "announcement 'training pass' for control",
                      "announcement 'inference pass' for control");
    check_said_by_all(run_odd<S, P>(workers, {}, {.gathers_all = true}), "announcement 'training pass' for control",
                      "announcement 'gather all' for parameters");
    check_said_by_all(run_odd<S, P>(workers, {.reverses_hand_over = true}, {.reverses_hand_over = true, .middle = Gradient::omitted}),
                      "announcement 'hand-over' for gradients 1", "announcement 'hand-over' for gradients 2");
    check_said_by_all(run_odd<S, P>(workers, {}, {.middle = Gradient::omitted}), "announcement 'hand-over' for gradients 1",
                      "announcement 'gather' for parameters 0");
    check_said_by_all(run_odd<S, P>(workers, {.announces_last = false}, {.micro_batches = 1, .announces_last = false}),
                      "announcement 'training pass' for control", "announcement 'step");
    check_said_by_all(run_odd<S, P>(workers, {}, {.micro_batches = 3}), "announcement 'last training pass' for control",
                      "announcement 'training pass' for control");
    check_said_by_all(run_odd<S, P>(workers, {}, {.max_norm = 2}), "announcement 'step", "announcement 'step");
  }
}

/// The hand-over in another order, each gradient already written.
template <class S, class P>
void check_permuted_hand_over() {
  for (bool const workers : {false, true}) {
    CAPTURE(workers);
    auto const said = outcomes_of([&](zero::ThreadCommunicator& comm) {
      CheckedThreads checked{zero::Borrowed{comm}};
      HostStreamRef const here = HostStreamRef::calling_thread();
      zero::HostStream communication({.worker = workers});
      auto const layout = make_layout();
      auto parameters = zero::shard_parameters<S, P>(layout, checked, {here, communication}, zero::host_memory());
      parameters.initialize(3, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
      auto pass = parameters.training_pass();
      auto first = pass.gradients(layout.find_unit("first"));
      auto middle = pass.gradients(layout.find_unit("middle"));
      auto last = pass.gradients(layout.find_unit("last"));
      last.hand_over();
      (comm.rank() == odd_one ? first : middle).hand_over();
      (comm.rank() == odd_one ? middle : first).hand_over();
      pass.finish();
      zero::HostDevice::synchronize(communication);
    });
    check_said_by_all(said, "announcement 'hand-over' for gradients 1", "announcement 'hand-over' for gradients 0");
  }
}

/// A rank alone with an evaluation after the last step: the others have left.
template <class S, class P>
void check_evaluation_at_the_end() {
  for (bool const workers : {false, true}) {
    CAPTURE(workers);
    auto const said = outcomes_of([&](zero::ThreadCommunicator& comm) {
      CheckedThreads checked{zero::Borrowed{comm}};
      train<S, P>(checked, workers, {.evaluates_at_the_end = comm.rank() == odd_one});
    });
    for (int r = 0; r < ranks; ++r) {
      auto const& error = said.rank[static_cast<std::size_t>(r)];
      std::string const text = what_of(error);
      CAPTURE(text);
      CHECK(is<zero::PeerError>(error) == (r == odd_one));
      CHECK(contains(text, "has returned") == (r == odd_one));
      CHECK((error == nullptr) == (r != odd_one));
    }
  }
}

template <class S, class P>
std::vector<float> result_of(bool workers, Script const& usual, Script const& odd) {
  std::array<std::vector<float>, ranks> results;
  zero::run_ranks(
      ranks,
      [&](zero::ThreadCommunicator& comm) {
        CheckedThreads checked{zero::Borrowed{comm}};
        results[static_cast<std::size_t>(comm.rank())] = train<S, P>(checked, workers, comm.rank() == odd_one ? odd : usual);
      },
      patience);
  CHECK(!results[0].empty());
  for (auto const& result : results) CHECK(same_bits(result, results[0]));
  return results[0];
}

template <class S, class P>
void check_no_gradient() {
  auto const full = result_of<S, P>(false, {}, {});
  for (bool const workers : {false, true}) {
    CAPTURE(workers);
    auto const with_zeros = result_of<S, P>(workers, {}, {.middle = Gradient::zero});
    CHECK(same_bits(result_of<S, P>(workers, {}, {.middle = Gradient::none}), with_zeros));
    CHECK(!same_bits(full, with_zeros));
    // On no rank: said or not, the gradient is zero and the parameters are stepped.
    auto const untouched = result_of<S, P>(workers, {.middle = Gradient::none}, {.middle = Gradient::none});
    CHECK(same_bits(result_of<S, P>(workers, {.middle = Gradient::omitted}, {.middle = Gradient::omitted}), untouched));
    CHECK(same_bits(result_of<S, P>(workers, {.middle = Gradient::zero}, {.middle = Gradient::zero}), untouched));
    CHECK(!same_bits(with_zeros, untouched));
  }
}

template <class S, class P>
void check_stage() {
  check_loops_that_differ<S, P>();
  check_permuted_hand_over<S, P>();
  check_evaluation_at_the_end<S, P>();
  check_no_gradient<S, P>();
}

/// All ranks say that the odd one was started with another `what`.
void check_start(Outcomes const& said, std::string const& what) {
  for (auto const& error : said.rank) {
    std::string const text = what_of(error);
    CAPTURE(text);
    CHECK(is<zero::MismatchError>(error));
    CHECK(contains(text, "ranks 0 and " + std::to_string(odd_one) + " were started with different " + what));
  }
}

template <class S, class P, class Group>
void start(Group& group, zero::ParameterLayout const& layout, zero::ParametersOptions options = {}) {
  HostStreamRef const here = HostStreamRef::calling_thread();
  auto parameters = zero::shard_parameters<S, P>(layout, group, {here, here}, zero::host_memory(), options);
}

/// The odd rank has stage T with types Q.
template <class S, class P, class T, class Q>
void check_start_with_others() {
  check_start(outcomes_of([](zero::ThreadCommunicator& comm) {
                CheckedThreads checked{zero::Borrowed{comm}};
                if (comm.rank() == odd_one) start<T, Q>(checked, make_layout());
                else start<S, P>(checked, make_layout());
              }),
              "stages or element types");
}

template <class S, class Group>
void start_with_options(Group& group, std::string const& what, bool odd) {
  if (what == "layouts") return start<S, Single>(group, make_layout(odd));
  zero::ParametersOptions options;
  if (what == "options") options.poison_released = odd;
  else options.partition.shard_alignment = odd ? 64 : 128;
  start<S, Single>(group, make_layout(), options);
}

template <class S>
void check_start_with_other_options() {
  for (std::string const what : {"layouts", "options", "cuts"}) {
    for (bool const checks : {false, true}) {
      check_start(outcomes_of([&](zero::ThreadCommunicator& comm) {
                    CheckedThreads checked{zero::Borrowed{comm}};
                    if (checks) start_with_options<S>(checked, what, comm.rank() == odd_one);
                    else start_with_options<S>(comm, what, comm.rank() == odd_one);
                  }),
                  what == "cuts" ? "layouts" : what);
    }
  }
}

}  // namespace

TEST_CASE("field cases 57, 58, 59, 62, 65: loops that differ, and units without gradients on some ranks: Stage0") {
  check_stage<zero::Stage0, Single>();
}
TEST_CASE("field cases 57, 58, 59, 62, 65: loops that differ, and units without gradients on some ranks: Stage1") {
  check_stage<zero::Stage1, Single>();
}
TEST_CASE("field cases 57, 58, 59, 62, 65: loops that differ, and units without gradients on some ranks: Stage2") {
  check_stage<zero::Stage2, Single>();
}
TEST_CASE("field cases 57, 58, 59, 62, 65: loops that differ, and units without gradients on some ranks: Stage3") {
  check_stage<zero::Stage3, Single>();
}
TEST_CASE("field cases 57, 58, 59, 62, 65: loops that differ, and units without gradients on some ranks: (S,P,S)") {
  check_stage<ShardedPartialSharded, Single>();
}
TEST_CASE("field cases 57, 58, 59, 62, 65: loops that differ, and units without gradients on some ranks: (R,R,R)") {
  check_stage<AllReplicated, Single>();
}

TEST_CASE("field case 61: ranks that start with parameters in another order, other cuts or other options are told so") {
  check_start_with_other_options<zero::Stage0>();
  check_start_with_other_options<zero::Stage3>();
}

TEST_CASE("ranks that start at different stages or with different types are told so") {
  check_start_with_others<zero::Stage0, Single, zero::Stage1, Single>();
  check_start_with_others<zero::Stage1, Single, zero::Stage2, Single>();
  check_start_with_others<zero::Stage2, Single, zero::Stage3, Single>();
  check_start_with_others<zero::Stage3, Single, zero::Stage3, Narrow>();
  check_start_with_others<ShardedPartialSharded, Single, AllReplicated, Single>();
}

TEST_CASE("ranks with different optimizers are told so") {
  for (bool const workers : {false, true}) {
    check_start(
        outcomes_of([&](zero::ThreadCommunicator& comm) {
          CheckedThreads checked{zero::Borrowed{comm}};
          zero::HostStream stream({.worker = workers});
          auto parameters = zero::shard_parameters<zero::Stage3, Single>(make_layout(), checked, {stream, stream}, zero::host_memory());
          if (comm.rank() == odd_one) zero::ShardedOptimizer<zero::SGD, zero::Stage3>{parameters};
          else zero::ShardedOptimizer<zero::AdamW, zero::Stage3>{parameters};
        }),
        "optimizers");
  }
}
