// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Memory and communication of a training loop, known before the run: constant expressions made from the code that runs.

#include <cstddef>
#include <cstdint>
#include <string>

#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/detail/buffer_pool.hpp>
#include <zero/train/detail/control_layout.hpp>
#include <zero/train/detail/gradient_rules.hpp>
#include <zero/train/detail/look_ahead.hpp>
#include <zero/train/detail/parameter_storage.hpp>
#include <zero/train/detail/use_tracker.hpp>
#include <zero/train/exact_sum.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/stage.hpp>
#include <zero/train/step_report.hpp>
#include <zero/train/step_state.hpp>

namespace zero {

/// What a loop does in one step. The default is the canonical loop: in every pass a forward over the units in order and a backward in reverse
/// order, one unit at a time, each gathered where it is used and its gradients handed over.
struct Schedule {
  std::int64_t micro_batches = 1;     ///< Training passes a step.
  std::int64_t inference_passes = 0;  ///< Forward-only passes a step.
  bool backward_gathers = true;       ///< False: each unit's weights are held from forward to backward.
  bool overlapped = false;            ///< `Streams::overlap()` of the run: then one reduction may be in flight.
  std::int64_t prefetch_bytes = -1;   ///< As in `ParametersOptions`: where overlapped, what may be gathered before it is asked for.
  StepOptions step = {};              ///< Whether the norm is measured.
};

/// Bytes by purpose and by subject.
struct Plan {
  std::int64_t held[purpose_count] = {};  ///< By `Purpose`: what the loop holds at its peak, which is what it keeps.
  std::int64_t received[subject_count] =
      {};  ///< By `Subject`: bytes that the rank receives in one step. (A first step may gather in vain.)

  [[nodiscard]] constexpr std::int64_t bytes(Purpose purpose) const noexcept { return held[static_cast<std::size_t>(purpose)]; }
  [[nodiscard]] constexpr std::int64_t received_bytes(Subject subject) const noexcept {
    return received[static_cast<std::size_t>(subject)];
  }

  /// All memory.
  [[nodiscard]] constexpr std::int64_t bytes() const noexcept {
    std::int64_t sum = 0;
    for (std::int64_t b : held) sum += b;
    return sum;
  }
  /// Parameters, gradients and optimizer states: what the ZeRO paper calls model states.
  [[nodiscard]] constexpr std::int64_t model_state_bytes() const noexcept {
    return bytes(Purpose::parameters) + bytes(Purpose::gradients) + bytes(Purpose::optimizer_states);
  }
  /// Model traffic: parameters and gradients, without the few bytes of control.
  [[nodiscard]] constexpr std::int64_t received_bytes() const noexcept {
    return received_bytes(Subject::parameters) + received_bytes(Subject::gradients);
  }
};

namespace detail {

/// Bytes received when a segment's elements of type T are converted.
template <Placement From, Placement To, Element T>
[[nodiscard]] constexpr std::int64_t conversion_bytes(Segment const& segment, int ranks, int rank) {
  Geometry const geometry{segment.span_elements, segment.shard_elements, ranks, rank};
  return ranks > 1 ? Conversion<From, To>::template received_bytes<T>(geometry) : 0;
}

/// Runs the canonical loop without data: which segments are gathered, which buffers are in use.
template <Stage S, PrecisionPolicy P>
class DryRun {
public:
  using Rules = GradientRules<S, P>;

  constexpr DryRun(Partition const& partition, int rank, Schedule const& schedule)
      : partition_(partition),
        rank_(rank),
        schedule_(schedule),
        weights_(partition),
        ahead_(partition, prefetch_elements<S, P>(schedule.prefetch_bytes, partition.ranks() > 1 && schedule.overlapped)),
        gradient_uses_(partition),
        slots_(static_cast<std::size_t>(partition.segment_count())) {}

  constexpr void run() {
    if (gathers && schedule_.overlapped && !schedule_.backward_gathers && schedule_.micro_batches > 0) {
      training_pass();  // The first pass is taken for the canonical one, and gathers something ahead in vain.
      retire();
      parameters_received = gradients_received = 0;
    }
    repeat(schedule_.inference_passes, [this] { inference_pass(); });
    repeat(schedule_.micro_batches, [this] { training_pass(); });
    retire();
  }

  std::int64_t parameters_received = 0;
  std::int64_t gradients_received = 0;

  /// What the pools of gathered weights and of gradient scratch have come to.
  [[nodiscard]] constexpr PoolShape const& gathered() const noexcept { return gathered_; }
  [[nodiscard]] constexpr PoolShape const& scratch() const noexcept { return scratch_; }

private:
  struct Slots {
    int gathered = PoolShape::none;
    int next = PoolShape::none;   // about to be gathered ahead
    int ahead = PoolShape::none;  // gathered ahead
    int scratch = PoolShape::none;
  };
  static constexpr bool gathers = Conversion<typename S::parameters, Replicated>::communicates;

  [[nodiscard]] constexpr Slots& slots(SegmentId id) { return slots_[at(id)]; }

  /// From the second on, passes of one kind do the same.
  template <class Pass>
  constexpr void repeat(std::int64_t times, Pass&& pass) {
    if (times > 0) pass();
    if (times < 2) return;
    std::int64_t const parameters_before = parameters_received;
    std::int64_t const gradients_before = gradients_received;
    pass();
    parameters_received += (times - 2) * (parameters_received - parameters_before);
    gradients_received += (times - 2) * (gradients_received - gradients_before);
  }

  constexpr void inference_pass() {
    ahead_.begin_pass(PassKind::inference);
    for (Unit unit : partition_.layout().units()) {
      acquire(unit);
      release(unit);
    }
    end_phase();
  }

  constexpr void training_pass() {
    ahead_.begin_pass(PassKind::training);
    for (Unit unit : partition_.layout().units()) {
      acquire(unit);
      if (schedule_.backward_gathers) release(unit);
    }
    for (Unit unit : partition_.layout().units().reversed()) {
      if (schedule_.backward_gathers) acquire(unit);
      hand_over(unit);
      release(unit);
    }
    end_phase();
  }

  constexpr void acquire(Unit unit) {
    if constexpr (gathers) {
      if (partition_.ranks() == 1) return;
      // In the order of the code that runs: buffers of what is missing, of what starts, and then what has come is used.
      auto const segments = partition_.segments(unit);
      auto const step = ahead_.step(unit, weights_);
      std::uint64_t gathered = 0;
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (weights_.resident(segments[i])) continue;
        gathered |= LookAhead::bit(i);
        if (!ahead_.takes(true, unit, i, weights_)) slots(segments[i]).gathered = gather(segments[i]);
      }
      for_started(step, [this](SegmentId id) { slots(id).next = gather(id); });
      for (std::size_t i = 0; i < segments.size(); ++i) {
        SegmentId const id = segments[i];
        bool const resident = weights_.resident(id);
        if (ahead_.takes(true, unit, i, weights_)) {
          if (resident) gathered_.give_back(slots(id).ahead);
          else slots(id).gathered = slots(id).ahead;
          ahead_.arrived(id);
        }
        if (!resident) weights_.enter(id);
        weights_.open(id);
      }
      for_started(step, [this](SegmentId id) {
        slots(id).ahead = slots(id).next;
        ahead_.started(id);
      });
      ahead_.go_on(unit, gathered, step);
    }
  }

  template <class Body>
  constexpr void for_started(LookAhead::Step step, Body const& body) {
    for (std::size_t place = step.begin; place < step.end; ++place) {
      for (std::size_t i = 0; i < ahead_.segments(place).size(); ++i) {
        if (ahead_.gathers(place, i)) body(ahead_.segments(place)[i]);
      }
    }
  }

  /// @returns the buffer
  constexpr int gather(SegmentId id) {
    Segment const& segment = partition_.segment(id);
    parameters_received += conversion_bytes<typename S::parameters, Replicated, typename P::parameter>(segment, partition_.ranks(), rank_);
    return gathered_.acquire(segment.padded_elements);
  }

  constexpr void release(Unit unit) {
    if constexpr (gathers) {
      if (partition_.ranks() == 1) return;
      for (SegmentId id : partition_.segments(unit)) {
        if (weights_.close(id, unit)) let_go(id);
      }
    }
  }

  constexpr void end_phase() {
    for (SegmentId id : partition_.segments()) {
      if (!ahead_.is_ahead(id)) continue;
      ahead_.arrived(id);
      gathered_.give_back(slots(id).ahead);
    }
    ahead_.end_pass();
    for (SegmentId id : partition_.segments()) {
      if (weights_.end_phase(id)) let_go(id);
    }
  }

  constexpr void let_go(SegmentId id) {
    gathered_.give_back(slots(id).gathered);
    weights_.leave(id);
  }

  constexpr void hand_over(Unit unit) {
    for (SegmentId id : partition_.segments(unit)) {
      Segment const& segment = partition_.segment(id);
      if (!segment.trainable) continue;
      if (!Rules::direct && slots(id).scratch == PoolShape::none) slots(id).scratch = scratch_.acquire(segment.padded_elements);
    }
    for (SegmentId id : partition_.segments(unit)) {
      if (!partition_.segment(id).trainable || !gradient_uses_.mark(id, unit)) continue;
      gradient_uses_.clear(id);
      if constexpr (!Rules::partial) {
        retire();
        gradients_received +=
            conversion_bytes<Partial, typename S::gradients, typename P::wire>(partition_.segment(id), partition_.ranks(), rank_);
        in_flight_ = slots(id).scratch;
        if (!schedule_.overlapped) retire();
      } else if constexpr (!Rules::direct) {
        scratch_.give_back(slots(id).scratch);
      }
      slots(id).scratch = PoolShape::none;
    }
  }

  constexpr void retire() {
    if (in_flight_ != PoolShape::none) scratch_.give_back(in_flight_);
    in_flight_ = PoolShape::none;
  }

  Partition const& partition_;
  int rank_;
  Schedule schedule_;
  ResidencyRule weights_;
  LookAhead ahead_;
  UseTracker gradient_uses_;
  PlainArray<Slots> slots_;
  PoolShape gathered_;
  PoolShape scratch_;
  int in_flight_ = PoolShape::none;
};

[[noreturn]] inline void throw_no_such_loop(char const* what, std::int64_t count, SourceLocation where) {
  throw UsageError(std::string("plan: ") + what + " " + std::to_string(count), where);
}

}  // namespace detail

/// Memory and received bytes of one rank for a partition, at stage S. A constant expression of its arguments.
///
/// Memory follows the ZeRO paper (arXiv 1910.02054, section 3.1 and figure 1) over padded sizes; volume (section 7) is the sum over the
/// conversions that the schedule asks for, from the table that runs them.
/// @tparam Opt  The optimizer: how many states it keeps.
/// @param rank  Whose; every rank holds and receives the same, except for a few bytes of control.
/// @throws UsageError for fewer than one micro-batch, a negative number of inference passes, or a rank that the partition does not have.
template <Stage S, PrecisionPolicy P, class Opt>
  requires Optimizer<Opt, typename P::master>
[[nodiscard]] constexpr Plan plan(Partition const& partition, Schedule const& schedule = {}, int rank = 0,
                                  SourceLocation where = SourceLocation::current()) {
  using Rules = detail::GradientRules<S, P>;
  using O = typename S::optimizer_states;
  using Master = typename P::master;
  using Accumulator = typename P::accumulator;

  if (schedule.micro_batches < 1) detail::throw_no_such_loop("a step has at least one micro-batch, not", schedule.micro_batches, where);
  if (schedule.inference_passes < 0) detail::throw_no_such_loop("the number of inference passes is", schedule.inference_passes, where);
  if (rank < 0 || rank >= partition.ranks()) detail::throw_no_such_loop("the partition has no rank", rank, where);

  Plan result;
  auto const held = [&](Purpose purpose) -> std::int64_t& { return result.held[static_cast<std::size_t>(purpose)]; };
  auto const received = [&](Subject subject) -> std::int64_t& { return result.received[static_cast<std::size_t>(subject)]; };

  detail::DryRun<S, P> loop(partition, rank, schedule);
  loop.run();
  std::int64_t const states = detail::stored_elements<O>(partition, true);
  held(Purpose::parameters) =
      detail::stored_elements<typename S::parameters>(partition, false) * static_cast<std::int64_t>(sizeof(typename P::parameter));
  held(Purpose::gradients) =
      detail::stored_elements<typename S::gradients>(partition, true) * static_cast<std::int64_t>(sizeof(Accumulator));
  held(Purpose::optimizer_states) =
      states * static_cast<std::int64_t>(sizeof(Master)) * (Opt::states + (detail::separate_masters<S, P> ? 1 : 0));
  held(Purpose::gathered) = loop.gathered().elements() * static_cast<std::int64_t>(sizeof(typename P::parameter));
  held(Purpose::gradient_scratch) = loop.scratch().elements() * static_cast<std::int64_t>(sizeof(typename P::gradient));
  held(Purpose::staging) = Rules::staging_bytes(partition);
  held(Purpose::control) =
      detail::control_bytes<Accumulator>(partition.ranks()) + static_cast<std::int64_t>(sizeof(detail::UpdateMemory<Opt>));

  received(Subject::parameters) = loop.parameters_received;
  received(Subject::gradients) = loop.gradients_received;
  for (SegmentId id : partition.segments()) {
    Segment const& segment = partition.segment(id);
    if (!segment.trainable) continue;
    if constexpr (Rules::partial) {
      received(Subject::gradients) += detail::conversion_bytes<Partial, O, typename P::wire>(segment, partition.ranks(), rank);
    }
    received(Subject::gradients) += detail::conversion_bytes<typename Rules::Reduced, O, Accumulator>(segment, partition.ranks(), rank);
    received(Subject::parameters) +=
        detail::conversion_bytes<O, typename S::parameters, typename P::parameter>(segment, partition.ranks(), rank);
  }
  if (partition.ranks() > 1 && (schedule.step.max_norm > 0 || schedule.step.skip_non_finite)) {
    received(Subject::control) =
        AllReduce<std::int64_t>{.send = nullptr, .receive = nullptr, .count = exact_square_sum_t<Accumulator>::word_count}.received_bytes(
            partition.ranks(), rank);
  }
  return result;
}

/// The same from a layout and a number of ranks.
/// @throws LayoutError as `Partition` does, for instance for fewer than one rank.
template <Stage S, PrecisionPolicy P, class Opt>
  requires Optimizer<Opt, typename P::master>
[[nodiscard]] constexpr Plan plan(ParameterLayout const& layout, int ranks, Schedule const& schedule = {}, int rank = 0,
                                  SourceLocation where = SourceLocation::current()) {
  return plan<S, P, Opt>(Partition(layout, ranks, {}, where), schedule, rank, where);
}

}  // namespace zero
