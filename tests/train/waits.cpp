// SPDX-License-Identifier: Apache-2.0
/// @file
/// The waits between the streams of training: none is missing, and none is superfluous.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/comm/separate_communicators.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/held_values.hpp"
#include "support/same_bits.hpp"
#include "support/sanitized.hpp"
#include "support/stages.hpp"

namespace {

using zero::HostStreamRef;
using zero::WaitId;
using zero::WaitId::none;

constexpr int ranks = 2;
constexpr int lanes = 8;

// Between them they use every conversion and every buffer of the library.
using ShardedPartialSharded = zero::test::Triple<zero::Sharded, zero::Partial, zero::Sharded>;
using GatheredForTheStep = zero::test::Triple<zero::Replicated, zero::Sharded, zero::Replicated>;
using Single = zero::Precision<float>;
using Mixed = zero::Precision<zero::bf16, zero::bf16, zero::bf16, float>;
using NarrowWire = zero::Precision<float, float, zero::bf16, float>;

/// Where a run is held up, to bring the streams out of step exactly there.
enum class Hold {
  nowhere,
  compute_before_forward,
  compute_before_backward,
  compute_before_step,
  compute_of_last_rank_before_step,
  compute_before_update,
  communication_before_gather,
  reductions_before_hand_over,
  communication_before_update,
  communication_before_publish,
};

struct Run {
  bool compute_has_worker = true;
  bool communication_has_worker = true;
  bool one_stream = false;
  bool separate = false;  // a communicator and a stream for reductions
  std::uint64_t seed = 0;
  WaitId skipped = none;
  Hold hold = Hold::nowhere;
  std::int64_t hold_us = 0;
};

/// What a rank ends with: reports, activations, weights, masters and states.
using Outcome = std::array<std::vector<double>, ranks>;

bool same_bits(Outcome const& a, Outcome const& b) { return std::equal(a.begin(), a.end(), b.begin(), zero::test::same_bits<double>); }

zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  auto const embedding = layout.add_unit("embedding");
  auto const table = layout.add(embedding, "table", {9, 5});
  for (std::string const block : {"block0", "block1", "block2"}) {
    auto const unit = layout.add_unit(block);
    layout.add(unit, block + ".weight", {7, 11});
    layout.add(unit, block + ".scale", {3}, {.trainable = false});
  }
  auto const head = layout.add_unit("head");
  layout.add(head, "head.bias", {13});
  layout.tie(table, head);
  return layout;
}

/// The parameters of a unit as a task of a stream sees them: addresses and nothing else.
template <class T>
struct Addresses {
  T* data[2] = {};
  std::int64_t elements[2] = {};

  template <class View>
  explicit Addresses(View const& view) {
    for (int i = 0; i < view.size(); ++i) {
      data[i] = view[i];
      elements[i] = view.elements(i);
    }
  }
};

/// h[j] becomes h[j] / 2 plus a sum in which every weight counts.
template <class T>
struct Forward {
  Addresses<T const> weights;
  float* h;

  void operator()() const {
    for (int j = 0; j < lanes; ++j) {
      float sum = 0;
      for (int p = 0; p < 2; ++p) {
        for (std::int64_t k = 0; k < weights.elements[p]; ++k) sum += float(weights.data[p][k]) * float((k + 3 * j + p) % 7 - 2);
      }
      h[j] = 0.5f * h[j] + 0.125f * sum;
    }
  }
};

/// Adds something of every weight, of the activations and of the data to every gradient.
template <class T, class G>
struct Backward {
  Addresses<T const> weights;
  Addresses<G> gradients;
  float const* h;
  float data;

  void operator()() const {
    for (int p = 0; p < 2; ++p) {
      if (gradients.data[p] == nullptr) continue;  // frozen
      for (std::int64_t k = 0; k < gradients.elements[p]; ++k) {
        float const more = 0.25f * float(weights.data[p][k]) + 0.125f * h[(k + p) % lanes] + data * float((5 * k + p) % 9 - 3);
        gradients.data[p][k] = G(float(gradients.data[p][k]) + more);
      }
    }
  }
};

void hold_up(HostStreamRef stream, std::int64_t microseconds) {
  stream.enqueue([microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}

/// One rank: a pass that is given up, two micro-batches and a step, a step without a pass, a step that one rank's infinite gradient makes all
/// skip, a step that was not announced, an evaluation. Nothing in it waits for a stream before the end.
template <class S, class P>
std::vector<double> train(zero::ThreadCommunicator& comm, Run const& run) {
  using Parameter = typename P::parameter;
  zero::ThreadCommunicator second = comm.split(0, comm.rank());
  zero::SeparateCommunicators group{zero::Borrowed{comm}, zero::Borrowed{run.separate ? second : comm}};
  std::uint64_t const own_seed = run.seed == 0 ? 0 : 4 * run.seed + 2 * static_cast<std::uint64_t>(comm.rank());
  zero::HostStream own_communication(
      {.worker = run.communication_has_worker, .delay_seed = own_seed, .max_delay_us = 20, .skip_wait = run.skipped});
  zero::HostStream own_reductions({.worker = run.communication_has_worker,
                                   .delay_seed = own_seed == 0 ? 0 : own_seed + 1'000'000,
                                   .max_delay_us = 20,
                                   .skip_wait = run.skipped});
  zero::HostStream own_compute(
      {.worker = run.compute_has_worker, .delay_seed = own_seed == 0 ? 0 : own_seed + 1, .max_delay_us = 20, .skip_wait = run.skipped});
  HostStreamRef const compute = own_compute;
  HostStreamRef const communication = run.one_stream ? compute : HostStreamRef(own_communication);
  HostStreamRef const reductions = run.separate ? HostStreamRef(own_reductions) : communication;
  auto const hold = [&](Hold here, HostStreamRef stream) {
    if (run.hold == here) hold_up(stream, run.hold_us);
  };

  zero::PoisoningResource memory(zero::host_memory());
  auto const layout = make_layout();
  std::vector<double> outcome;
  {
    auto parameters =
        zero::shard_parameters<S, P>(layout, group, {compute, communication, reductions}, memory,
                                     {.partition = {.shard_alignment = 16, .parameter_alignment = 8}, .poison_released = true});
    zero::ShardedOptimizer<zero::AdamW, S> optimizer{parameters, {.learning_rate = 0.05}};
    parameters.initialize(7, [](zero::ParameterId) { return zero::InitialValue::normal(0, 1); });
    zero::Buffer<float> h(memory, lanes, zero::Purpose::control);
    zero::HostDevice::fill(compute, h.data(), lanes, 1.0f);

    auto const forward = [&](auto& pass, zero::Unit unit) {
      hold(Hold::communication_before_gather, communication);
      auto const weights = pass.gather(unit);
      if (zero::to_index(unit) == 2) hold(Hold::compute_before_forward, compute);
      compute.enqueue(Forward<Parameter>{Addresses<Parameter const>(weights), h.data()});
    };
    auto const micro_batch = [&](float data, bool last) {
      auto pass = parameters.training_pass({.last = last});
      for (zero::Unit unit : layout.units()) forward(pass, unit);
      for (zero::Unit unit : layout.units().reversed()) {
        auto const weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        if (zero::to_index(unit) == 1) hold(Hold::compute_before_backward, compute);
        compute.enqueue(Backward<Parameter, typename P::gradient>{Addresses<Parameter const>(weights),
                                                                  Addresses<typename P::gradient>(gradients), h.data(), data});
        hold(Hold::reductions_before_hand_over, reductions);
        gradients.hand_over();
      }
      pass.finish();
    };
    std::vector<zero::Decision<zero::HostDevice>> decisions;
    auto const step = [&] {
      hold(Hold::compute_before_step, compute);
      if (comm.rank() == ranks - 1) hold(Hold::compute_of_last_rank_before_step, compute);
      decisions.push_back(parameters.reduce({.max_norm = 2.0}));
      hold(Hold::compute_before_update, compute);
      hold(Hold::communication_before_update, communication);
      optimizer.apply(parameters, decisions.back());
      hold(Hold::communication_before_publish, communication);
      parameters.publish();
    };

    float const own = static_cast<float>(comm.rank() + 1);
    micro_batch(8 * own, true);
    parameters.discard_gradients();
    micro_batch(own, false);
    micro_batch(3 + own, true);
    step();
    step();
    micro_batch(comm.rank() == 1 ? std::numeric_limits<float>::infinity() : own, true);
    step();
    micro_batch(5 - own, false);
    step();
    {
      auto pass = parameters.inference_pass();
      for (zero::Unit unit : layout.units()) forward(pass, unit);
    }

    std::vector<float> weights;
    for (zero::ParameterId id : layout.parameters()) weights.resize(weights.size() + static_cast<std::size_t>(layout.elements(id)));
    float* to = weights.data();
    {
      auto const all = parameters.gather_all();
      for (zero::ParameterId id : layout.parameters()) {
        auto const from = all[id];
        zero::HostDevice::for_each(compute, static_cast<std::int64_t>(from.size()),
                                   [to, from = from.data()](std::int64_t i) { to[i] = float(from[i]); });
        to += from.size();
      }
    }
    zero::HostDevice::synchronize(compute);
    for (auto const& decision : decisions) {
      auto const report = decision.wait();
      outcome.insert(outcome.end(), {report.norm, report.coefficient, report.applied ? 1.0 : 0.0});
    }
    outcome.insert(outcome.end(), h.data(), h.data() + lanes);
    outcome.insert(outcome.end(), weights.begin(), weights.end());
    auto const& partition = parameters.partition();
    for (zero::SegmentId segment : partition.segments()) {
      if (!partition.segment(segment).trainable) continue;
      zero::test::append_held(partition, segment, parameters.masters(segment), outcome);
      zero::test::append_held(partition, segment, optimizer.state(parameters, segment, 0), outcome);
    }
  }
  return outcome;
}

template <class S, class P>
Outcome outcome_of(Run const& run) {
  Outcome outcome;
  zero::run_ranks(ranks, [&](zero::ThreadCommunicator& comm) { outcome[static_cast<std::size_t>(comm.rank())] = train<S, P>(comm, run); });
  return outcome;
}

/// The outcome where nothing can overlap: everything runs on the calling thread.
template <class S, class P>
Outcome const& expected() {
  static Outcome const outcome = outcome_of<S, P>({.compute_has_worker = false, .communication_has_worker = false});
  return outcome;
}

/// The reference is worth something only if the program does what it says.
template <class S, class P>
void check_reference() {
  Outcome const& outcome = expected<S, P>();
  for (auto const& rank : outcome) {
    REQUIRE(rank.size() > 4 * 3 + lanes);
    CHECK(rank[0] > 2.0);
    CHECK(rank[1] < 1.0);
    CHECK(rank[2] == 1.0);
    CHECK(rank[3] == 0.0);  // a step without a pass: a gradient of zero
    CHECK(rank[5] == 1.0);
    CHECK(rank[7] == 0.0);
    CHECK(rank[8] == 0.0);  // field case 73: every rank skips
    CHECK(rank[11] == 1.0);
    for (std::size_t i = 9; i < rank.size(); ++i) CHECK(rank[i] == rank[i]);
  }
  // Reports, activations of the evaluation aside, and weights are the same on all ranks.
  for (std::size_t i = 0; i < 12; ++i) CHECK(std::memcmp(&outcome[0][i], &outcome[1][i], sizeof(double)) == 0);
}

template <class S, class P>
void check_delays(int seeds) {
  check_reference<S, P>();
  Outcome const& reference = expected<S, P>();
  int different = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    auto const s = static_cast<std::uint64_t>(seed);
    if (!same_bits(outcome_of<S, P>({.seed = s}), reference)) ++different;
    if (seed % 2 == 0 && !same_bits(outcome_of<S, P>({.separate = true, .seed = s}), reference)) ++different;
  }
  CHECK(different == 0);
  // The other kinds of pairs of streams, with fewer seeds: they overlap less.
  for (int seed = 0; seed <= seeds / 10; ++seed) {
    auto const s = static_cast<std::uint64_t>(seed);
    CHECK(same_bits(outcome_of<S, P>({.compute_has_worker = false, .seed = s}), reference));
    CHECK(same_bits(outcome_of<S, P>({.communication_has_worker = false, .seed = s}), reference));
    CHECK(same_bits(outcome_of<S, P>({.one_stream = true, .seed = s}), reference));
    // Reductions on a stream of their own beside gathers on the compute stream.
    CHECK(same_bits(outcome_of<S, P>({.one_stream = true, .separate = true, .seed = s}), reference));
  }
  // Each place held up on its own, for longer than anything else takes.
  for (int place = 1; place <= static_cast<int>(Hold::communication_before_publish); ++place) {
    CAPTURE(place);
    for (bool const separate : {false, true}) {
      CHECK(same_bits(outcome_of<S, P>({.separate = separate, .hold = static_cast<Hold>(place), .hold_us = 1000}), reference));
    }
  }
}

#ifdef ZERO_TEST_SANITIZED
constexpr int many_seeds = 40;
constexpr int seeds = 10;
#else
constexpr int many_seeds = 200;  // at the stage with the most waits
constexpr int seeds = 50;
#endif

}  // namespace

TEST_CASE("field cases 46, 48, 50, 55, 73: delays change no bit at Stage0, with freed memory and padding poisoned") {
  check_delays<zero::Stage0, Single>(seeds);
}
TEST_CASE("field cases 46, 48, 50, 55, 73: delays change no bit at Stage1, with a narrow wire") {
  check_delays<zero::Stage1, NarrowWire>(seeds);
}
TEST_CASE("field cases 46, 48, 50, 55, 73: delays change no bit at Stage2, in mixed precision") {
  check_delays<zero::Stage2, Mixed>(seeds);
}
TEST_CASE("field cases 46, 48, 50, 55, 73: delays change no bit at Stage3") { check_delays<zero::Stage3, Single>(many_seeds); }
TEST_CASE("field cases 46, 48, 50, 55, 73: delays change no bit at (S,P,S), in mixed precision") {
  check_delays<ShardedPartialSharded, Mixed>(seeds);
}
TEST_CASE("field cases 46, 48, 50, 55, 73: delays change no bit at (R,S,R)") { check_delays<GatheredForTheStep, Single>(seeds); }

#ifdef ZERO_TEST_SANITIZED

TEST_CASE("each wait between the streams is missed when it is taken out" * doctest::skip(true)) {}
TEST_CASE("why the waits are not taken out here") {
  MESSAGE("SKIPPED: without one of its waits the library has a data race, which is what a sanitizer reports");
}

#else

namespace {

/// Every id of the library has a test below; one that is added stops the compiler here until it has one, too.
constexpr bool tested(WaitId id) {
  switch (id) {
    case WaitId::none:
    case WaitId::user: return false;
    case WaitId::gather_after_compute:
    case WaitId::use_after_gather:
    case WaitId::use_after_prefetch:
    case WaitId::reduce_after_gradients:
    case WaitId::scratch_after_reduce:
    case WaitId::write_after_discard:
    case WaitId::norm_after_reduce:
    case WaitId::merge_after_norm:
    case WaitId::decide_after_merge:
    case WaitId::gather_gradients_after_update:
    case WaitId::update_after_gather_gradients:
    case WaitId::publish_after_update:
    case WaitId::use_after_publish: return true;
  }
  return false;
}

/// Takes out a wait where the other stream is held up, for longer and longer until it shows. One time it must, whether gathers and reductions
/// share a communicator and a stream or not.
template <class S, class P>
void check_missed(WaitId id, Hold hold, Run run = {}) {
  CAPTURE(static_cast<int>(id));
  CHECK(tested(id));
  Outcome const& reference = expected<S, P>();
  run.hold = hold;
  for (bool const separate : {false, true}) {
    CAPTURE(separate);
    run.separate = separate;
    bool missed = false;
    run.skipped = id;
    for (run.hold_us = 500; !missed && run.hold_us <= 512'000; run.hold_us *= 2) missed = !same_bits(outcome_of<S, P>(run), reference);
    CHECK(missed);
    run.skipped = none;
    run.hold_us = 1000;
    CHECK(same_bits(outcome_of<S, P>(run), reference));
  }
}

}  // namespace

TEST_CASE("field cases 46, 55: without gather_after_compute a gather reads shards before their update") {
  check_missed<zero::Stage3, Single>(WaitId::gather_after_compute, Hold::compute_before_update);
}
TEST_CASE("field case 48: without gather_after_compute a gather overwrites weights that are being used") {
  check_missed<zero::Stage3, Single>(WaitId::gather_after_compute, Hold::compute_before_forward);
}
TEST_CASE("without use_after_gather weights are used before they have come") {
  check_missed<zero::Stage3, Single>(WaitId::use_after_gather, Hold::communication_before_gather);
  check_missed<zero::Stage3, Single>(WaitId::use_after_gather, Hold::communication_before_gather, {.compute_has_worker = false});
}
TEST_CASE("without use_after_prefetch weights are used before they have come") {
  check_missed<zero::Stage3, Single>(WaitId::use_after_prefetch, Hold::communication_before_gather);
  check_missed<zero::Stage3, Single>(WaitId::use_after_prefetch, Hold::communication_before_gather, {.compute_has_worker = false});
}
TEST_CASE("without reduce_after_gradients unfinished gradients are reduced") {
  SUBCASE("at the hand-over") { check_missed<zero::Stage2, Mixed>(WaitId::reduce_after_gradients, Hold::compute_before_backward); }
  SUBCASE("at the last hand-over and at the step, in place") {
    check_missed<zero::Stage0, Single>(WaitId::reduce_after_gradients, Hold::compute_before_backward);
  }
  SUBCASE("at the last hand-over and at the step, after an accumulation") {
    check_missed<ShardedPartialSharded, Mixed>(WaitId::reduce_after_gradients, Hold::compute_before_backward);
  }
}
TEST_CASE("field case 48: without scratch_after_reduce gradients are written to a buffer that is still being reduced") {
  check_missed<zero::Stage2, Mixed>(WaitId::scratch_after_reduce, Hold::reductions_before_hand_over);
  check_missed<zero::Stage2, Mixed>(WaitId::scratch_after_reduce, Hold::reductions_before_hand_over, {.compute_has_worker = false});
}
TEST_CASE("field case 73: without norm_after_reduce the norm is that of unreduced gradients") {
  SUBCASE("accumulated sharded") { check_missed<zero::Stage2, Mixed>(WaitId::norm_after_reduce, Hold::reductions_before_hand_over); }
  SUBCASE("accumulated as local sums") {
    check_missed<zero::Stage1, NarrowWire>(WaitId::norm_after_reduce, Hold::reductions_before_hand_over);
  }
}
TEST_CASE("without merge_after_norm the norm is this rank's own") {
  check_missed<zero::Stage2, Mixed>(WaitId::merge_after_norm, Hold::compute_before_step);
}
TEST_CASE("field case 73: without decide_after_merge a rank decides alone") {
  check_missed<zero::Stage2, Mixed>(WaitId::decide_after_merge, Hold::compute_of_last_rank_before_step);
  check_missed<zero::Stage2, Mixed>(WaitId::decide_after_merge, Hold::compute_of_last_rank_before_step, {.compute_has_worker = false});
}
TEST_CASE("without gather_gradients_after_update a gathered gradient overwrites the one in use") {
  check_missed<GatheredForTheStep, Single>(WaitId::gather_gradients_after_update, Hold::compute_before_update);
}
TEST_CASE("without update_after_gather_gradients the update uses a gradient that has not come") {
  check_missed<GatheredForTheStep, Single>(WaitId::update_after_gather_gradients, Hold::communication_before_update);
}
TEST_CASE("field case 55: without publish_after_update old parameters are published") {
  SUBCASE("gradients sharded") { check_missed<zero::Stage2, Mixed>(WaitId::publish_after_update, Hold::compute_before_update); }
  SUBCASE("gradients as local sums") { check_missed<zero::Stage1, NarrowWire>(WaitId::publish_after_update, Hold::compute_before_update); }
}
TEST_CASE("without use_after_publish parameters are used before the peers' have come") {
  check_missed<zero::Stage2, Mixed>(WaitId::use_after_publish, Hold::communication_before_publish);
}
TEST_CASE("without write_after_discard gradients are written that a reduction nobody wants still uses") {
  check_missed<zero::Stage0, Single>(WaitId::write_after_discard, Hold::reductions_before_hand_over);
}

#endif
