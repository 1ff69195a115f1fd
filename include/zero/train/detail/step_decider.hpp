// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Measures the gradient and decides the step: sums by owners, one small collective, one thread that decides.

#include <cstddef>
#include <cstdint>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/detail/control_layout.hpp>
#include <zero/train/detail/training_streams.hpp>
#include <zero/train/exact_sum.hpp>
#include <zero/train/norm.hpp>
#include <zero/train/step_report.hpp>
#include <zero/train/step_state.hpp>

namespace zero::detail {

template <class Sum>
struct ClearSum {
  Sum* sum;
  ZERO_HOST_DEVICE void operator()() const { sum->clear(); }
};

template <class Sum>
struct CarrySum {
  Sum* sum;
  ZERO_HOST_DEVICE void operator()() const { sum->carry(); }
};

template <class Sum>
struct DecideStep {
  StepState* latest;
  StepState* state;  // a copy; may be the same
  Sum const* sum;
  StepRules rules;
  bool measured;
  ZERO_HOST_DEVICE void operator()() const {
    if (measured) decide(*latest, *sum, rules);
    else decide(*latest, rules);
    if (state != latest) *state = *latest;
  }
};

/// Decides steps for gradients of type `accumulator`, of which each rank measures the shard that it owns, whatever else it holds.
template <class Group, class Accumulator>
class StepDecider {
public:
  using Device = typename Group::Device;
  using Sum = exact_square_sum_t<Accumulator>;
  using Memory = DecisionMemory<Sum>;

  StepDecider(Partition const& partition, Group& group, TrainingStreams<Device> const& streams, std::byte* memory)
      : partition_(&partition),
        group_(&group),
        streams_(&streams),
        memory_(reinterpret_cast<Memory*>(memory)),
        reports_(Device::pinned_memory(), decisions_kept, Purpose::control) {
    Device::fill(streams.compute(), memory, static_cast<std::int64_t>(sizeof(Memory)), std::byte{});
  }

  /// @param captured   whether the step goes into a graph, and has not run when this returns
  /// @param largest    number that the optimizer can compute with
  /// @param own_shard  segment -> this rank's part of its reduced gradient
  template <class OwnShard>
  Decision<Device> decide(StepOptions const& options, double wire_factor, double largest, bool captured, OwnShard&& own_shard,
                          SourceLocation where) {
    auto const compute = streams_->compute();
    StepRules rules;
    rules.factor = 1.0 / (static_cast<double>(options.mean_over_ranks ? group_->size() : 1) * static_cast<double>(options.micro_batches) *
                          options.loss_scale * wire_factor);
    rules.max_norm = options.max_norm;
    rules.largest = largest;
    rules.skip_non_finite = options.skip_non_finite;
    bool const measured = options.max_norm > 0 || options.skip_non_finite;
    if (measured) measure(own_shard, where);
    std::int64_t const next = latest_ + 1;
    StepState* const state = captured ? &memory_->latest : &memory_->states[next % decisions_kept];
    Device::run(compute, DecideStep<Sum>{&memory_->latest, state, &memory_->sum, rules, measured});
    return current_ = captured ? Decision<Device>{state, nullptr, {}, &latest_, -++captured_} : readable(state, next);
  }

  /// How many steps were captured so far.
  [[nodiscard]] std::int64_t captured() const noexcept { return captured_; }

  /// Steps were decided by graphs on the compute stream. @returns the decision of the last one.
  Decision<Device> replayed(std::int64_t steps) {
    std::int64_t const next = latest_ + steps;
    StepState* const state = &memory_->states[next % decisions_kept];
    Device::copy(streams_->compute(), state, &memory_->latest, static_cast<std::int64_t>(sizeof(StepState)));
    return current_ = readable(state, next);
  }

  [[nodiscard]] bool is_latest(Decision<Device> const& decision) const noexcept {
    return decision.number() == current_.number() && decision.state() == current_.state();
  }

private:
  /// The decision at `state`, for the host to read.
  Decision<Device> readable(StepState* state, std::int64_t number) {
    auto const compute = streams_->compute();
    StepState* const report = reports_.data() + number % decisions_kept;
    Device::copy(compute, report, state, static_cast<std::int64_t>(sizeof(StepState)));
    latest_ = number;
    return {state, report, Device::record(compute), &latest_, number};
  }

  template <class OwnShard>
  void measure(OwnShard&& own_shard, SourceLocation where) {
    auto const compute = streams_->compute();
    Device::run(compute, ClearSum<Sum>{&memory_->sum});
    for (SegmentId segment : partition_->segments()) {
      if (!partition_->segment(segment).trainable) continue;
      ElementRange const own = partition_->shard_range(segment, group_->rank());
      for_each_square_sum(&memory_->sum, static_cast<Accumulator const*>(own_shard(segment)), *partition_, segment, own.begin, own.end,
                          [&](SquareSum<Accumulator> const& run) { Device::accumulate(compute, run.parts(), run); });
    }
    Device::run(compute, CarrySum<Sum>{&memory_->sum});
    if (group_->size() == 1) return;
    streams_->reductions_after_compute(WaitId::merge_after_norm);
    enqueue_at(*group_, streams_->reductions(),
               AllReduce<std::int64_t>{.send = memory_->sum.words,
                                       .receive = memory_->sum.words,
                                       .count = Sum::word_count,
                                       .label = Label{Subject::control},
                                       .factor = 1},
               where);
    streams_->compute_after_reductions(WaitId::decide_after_merge);
  }

  Partition const* partition_;
  Group* group_;
  TrainingStreams<Device> const* streams_;
  Memory* memory_;
  Buffer<StepState> reports_;  // where the host reads decisions
  std::int64_t latest_ = 0;    // number of the last decision that was made
  std::int64_t captured_ = 0;  // decisions that went into graphs
  Decision<Device> current_;
};

}  // namespace zero::detail
