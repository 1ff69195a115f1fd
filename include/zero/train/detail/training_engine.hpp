// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What scopes, passes and optimizers act on: the parts of sharded training in one place, and the order in which they may be used.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/streams.hpp>
#include <zero/layout/partition.hpp>
#include <zero/train/arithmetic.hpp>
#include <zero/train/detail/abort_group.hpp>
#include <zero/train/detail/capture_state.hpp>
#include <zero/train/detail/compare_ranks.hpp>
#include <zero/train/detail/control_layout.hpp>
#include <zero/train/detail/control_memory.hpp>
#include <zero/train/detail/gradient_flow.hpp>
#include <zero/train/detail/parameter_storage.hpp>
#include <zero/train/detail/residency.hpp>
#include <zero/train/detail/step_decider.hpp>
#include <zero/train/detail/step_options.hpp>
#include <zero/train/detail/training_streams.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/scopes.hpp>
#include <zero/train/stage.hpp>

namespace zero::detail {

template <Stage S, PrecisionPolicy P, class Group>
class TrainingEngine {
public:
  using stage = S;
  using precision = P;
  using Device = typename Group::Device;
  using parameter = typename P::parameter;
  using gradient = typename P::gradient;
  using accumulator = typename P::accumulator;
  using master = typename P::master;

  TrainingEngine(ParameterLayout const& layout, Group& group, Streams<Device> streams, MemoryResource& memory, PartitionOptions cut,
                 bool poison, std::int64_t prefetch_bytes, std::uint64_t options_hash, SourceLocation where)
      : partition_(layout, group.size(), cut, where),
        group_(&group),
        memory_(&memory),
        streams_(streams),
        control_(compared_control_memory<S, P>(partition_, group, streams_, memory, options_hash, where)),
        storage_(partition_, group.rank(), memory),
        weights_(partition_, storage_, group, streams_, memory, poison, prefetch_bytes),
        gradients_(partition_, storage_, group, streams_, memory, poison),
        decider_(partition_, group, streams_, control_.data()) {}
  TrainingEngine(TrainingEngine const&) = delete;
  TrainingEngine& operator=(TrainingEngine const&) = delete;

  ~TrainingEngine() { settle(std::uncaught_exceptions() > exceptions_); }

  /// What the owner of memory that queued work may use does before the memory goes back: waits for that work, and aborts the group before that
  /// if an exception destroys the owner, because peers may never join what is queued then.
  void settle(bool unwinding) noexcept {
    if (unwinding) abort_group(*group_, "an exception destroyed the parameters or their optimizer");
    streams_.settle();
  }

  [[nodiscard]] Partition const& partition() const noexcept { return partition_; }
  [[nodiscard]] ParameterLayout const& layout() const noexcept { return partition_.layout(); }
  [[nodiscard]] Group& group() const noexcept { return *group_; }
  [[nodiscard]] MemoryResource& memory() const noexcept { return *memory_; }
  [[nodiscard]] TrainingStreams<Device> const& streams() const noexcept { return streams_; }
  [[nodiscard]] ParameterStorage<S, P>& storage() noexcept { return storage_; }
  [[nodiscard]] Residency<S, P, Group>& weights() noexcept { return weights_; }
  [[nodiscard]] GradientFlow<S, P, Group>& gradients() noexcept { return gradients_; }
  [[nodiscard]] StepDecider<Group, accumulator>& decider() noexcept { return decider_; }

  /// Collective: throws MismatchError on every rank where the ranks differ.
  void compare(StartRecord const& own, SourceLocation where) {
    compare_ranks(*group_, streams_, control_.data() + decision_bytes<accumulator>, own, where);
  }

  // Passes.
  /// @returns the pass's number: what is made in it is of use only while it is the open one.
  [[nodiscard]] std::uint64_t begin_pass(PassKind kind, bool last, SourceLocation where) {
    capture_.check_known<Device>("a new pass", streams_.compute(), group_->rank(), where);
    check_not_abandoned("a new pass", where);
    if (kind_ != PassKind::none) fail("a new pass: the one before is still open", where);
    if (reduced_) fail("a new pass: publish() has not ended the step yet", where);
    if (kind == PassKind::training && last_seen_) fail("a new training pass: the one before was declared the last before the step", where);
    announce(Label{Subject::control},
             kind == PassKind::inference ? "inference pass"
             : last                      ? "last training pass"
                                         : "training pass",
             where);
    weights_.begin_pass(kind);
    kind_ = kind;
    last_ = last;
    return ++pass_;
  }

  void finish_pass(std::uint64_t pass, SourceLocation where) {
    check_open(pass, "finish", where);
    if (std::int32_t const unit = gradients_.open_unit(); unit >= 0) {
      fail("finish: the gradients of unit '" + name(static_cast<Unit>(unit)) + "' were not handed over", where);
    }
    kind_ = PassKind::none;
    weights_.end_pass();
    check_not_abandoned("finish", where);
    announce(Label{Subject::control}, "finish", where);
    gradients_.end_pass(last_, where);
    last_seen_ = last_seen_ || last_;
  }

  void end_inference_pass(std::uint64_t pass) noexcept {
    if (pass != pass_) return;  // It was left open in a capture.
    kind_ = PassKind::none;
    weights_.end_pass();
  }

  void abandon_pass(std::uint64_t pass, bool unwinding) noexcept {
    if (pass != pass_) return;
    end_inference_pass(pass);
    abandon(std::nullopt, unwinding);
  }

  // Weights.
  [[nodiscard]] auto gather(std::uint64_t pass, Unit unit, SourceLocation where) {
    check_open(pass, "gather", where);
    check_unit(unit, where);
    announce(Label{Subject::parameters, to_index(unit)}, "gather", where);
    if constexpr (scoped) {
      weights_.acquire_in_pass(unit, where);
      return GatheredUnit<TrainingEngine>(*this, weights_.view(unit));
    } else {
      return weights_.view(unit);
    }
  }
  void release_weights(Unit unit) noexcept { weights_.release(unit); }

  void hold_all(SourceLocation where) {
    if (reduced_) fail("gather_all: publish() has not ended the step yet", where);
    announce(Label{Subject::parameters}, "gather all", where);
    if constexpr (scoped) {
      std::int32_t held = 0;
      try {
        for (Unit unit : layout().units()) {
          weights_.acquire(unit, where);
          ++held;
        }
      } catch (...) {
        let_go_of(held);
        throw;
      }
    }
  }
  void let_go_of_all() noexcept { let_go_of(static_cast<std::int32_t>(layout().unit_count())); }

  // Gradients.
  [[nodiscard]] Gradients<TrainingEngine> open_gradients(std::uint64_t pass, Unit unit, bool zeroed, SourceLocation where) {
    check_open(pass, "gradients", where);
    check_unit(unit, where);
    gradients_.open(unit, zeroed, where);
    return {*this, pass, gradients_.view(unit)};
  }
  void hand_over_gradients(std::uint64_t pass, Unit unit, SourceLocation where) {
    check_open(pass, "hand_over", where);
    announce(Label{Subject::gradients, to_index(unit)}, "hand-over", where);
    gradients_.hand_over(unit, last_, where);
  }
  void abandon_gradients(std::uint64_t pass, Unit unit, bool unwinding) noexcept {
    if (pass != pass_) return;  // they were discarded
    gradients_.close(unit);
    abandon(unit, unwinding);
  }
  [[nodiscard]] bool first_use_of_gradient(Unit unit, ParameterId id, SourceLocation where) const {
    return gradients_.first_use(unit, id, where);
  }

  /// Forgets what was accumulated since the last step, and an abandoned pass.
  void discard_gradients(SourceLocation where) {
    check_nothing_captured("discard_gradients", where);
    if (kind_ != PassKind::none) fail("discard_gradients: a pass is open", where);
    if (applied_) fail("discard_gradients: the step was applied, and publish() has not ended it yet", where);
    announce(Label{Subject::control}, "discard gradients", where);
    gradients_.discard();
    ++pass_;
    abandoned_.clear();
    is_abandoned_ = last_seen_ = reduced_ = false;
  }

  // The step.
  Decision<Device> reduce(StepOptions const& options, SourceLocation where) {
    capture_.check_known<Device>("a step", streams_.compute(), group_->rank(), where);
    check_between_passes("a step", where);
    if (std::string const what = invalid_step_options(options); !what.empty()) fail("a step: " + what, where);
    announce(Label{Subject::control, index(step_options_hash(options))}, "step (index: hash of options)", where);
    gradients_.reduce(where);
    reduced_ = true;
    return decider_.decide(
        options, static_cast<double>(gradients_.wire_factor()), static_cast<double>(std::numeric_limits<master>::max()), capture_.active(),
        [this](SegmentId segment) { return in_place<Sharded>(gradients_.reduced(segment)).data(); }, where);
  }

  void check_reduced(char const* call, SourceLocation where) const {
    if (!reduced_) fail(std::string(call) + ": there was no reduce() in this step", where);
  }

  /// Every optimizer calls it before it updates anything.
  /// @param followed  number of the decision that the optimizer followed last
  /// @param options   hash of the optimizer's options
  void begin_apply(Decision<Device> const& decision, std::int64_t followed, std::uint64_t options, SourceLocation where) {
    check_reduced("apply", where);
    if (!decider_.is_latest(decision))
      fail("apply: this decision is not the one that reduce() made in this step of these parameters", where);
    if (decision.number() == followed) fail("apply: this optimizer has already followed this decision", where);
    announce(Label{Subject::control, index(options)}, "apply (index: hash of options)", where);
    applied_ = true;
  }

  void publish(SourceLocation where) {
    check_reduced("publish", where);
    announce(Label{Subject::control}, "publish", where);
    using Rule = Conversion<typename S::optimizer_states, typename S::parameters>;
    if constexpr (Rule::communicates) {
      streams_.communication_after_compute(WaitId::publish_after_update);
      group_->group(streams_.communication(), [&] {
        for (SegmentId segment : partition_.segments()) {
          if (!partition_.segment(segment).trainable) continue;
          auto const all = storage_.parameters(segment);
          convert_into(*group_, streams_.communication(), in_place<typename S::optimizer_states>(all), all,
                       Label{Subject::parameters, to_index(segment)}, 1.0f, where);
        }
      });
      streams_.compute_after_communication(WaitId::use_after_publish);
    }
    gradients_.reset();
    reduced_ = applied_ = last_seen_ = false;
  }

  // Captures: see captured_graph.hpp.

  /// What the host knows between steps and passes, on which it depends what the next one enqueues.
  struct Position {
    typename GradientFlow<S, P, Group>::Position gradients;
    bool last_seen = false;
    friend bool operator==(Position const&, Position const&) = default;
  };
  [[nodiscard]] Position position() const { return {gradients_.position(), last_seen_}; }
  void restore(Position const& position) {
    gradients_.restore(position.gradients);
    last_seen_ = position.last_seen;
  }

  [[nodiscard]] CaptureState& capture() noexcept { return capture_; }
  void begin_capture(PlainArray<CapturedOptimizer>& optimizers) noexcept {
    capture_.begin(optimizers);
    gradients_.settle(true);
    weights_.fix_buffers(true);
  }
  /// What was captured has not happened. @param before  where the capture began
  // NOLINTNEXTLINE(bugprone-exception-escape): the gradients' position has its size already
  void end_capture(Position const& before) noexcept {
    capture_.end();
    restore(before);
    kind_ = PassKind::none;
    reduced_ = applied_ = is_abandoned_ = false;
    abandoned_.clear();
    ++pass_;  // of scopes that are still there
    gradients_.settle(false);
    weights_.end_pass();
    weights_.fix_buffers(false);
  }
  /// What a graph does begins behind the collectives that eager passes have left under way.
  void begin_replay() const { streams_.compute_after_all(); }

  /// Refuses what is no part of a pass or a step.
  void check_nothing_captured(char const* call, SourceLocation where) const {
    if (capture_.active()) fail(std::string(call) + ": a capture is under way, of passes and steps", where);
  }
  /// The same, also of captures by calls of the device's own.
  void check_not_capturing(char const* call, SourceLocation where) const {
    check_nothing_captured(call, where);
    capture_.check_known<Device>(call, streams_.compute(), group_->rank(), where);
  }
  void check_between_passes(char const* call, SourceLocation where) const {
    check_not_abandoned(call, where);
    if (kind_ != PassKind::none) fail(std::string(call) + ": a pass is still open", where);
    if (reduced_) fail(std::string(call) + ": publish() has not ended the step before", where);
    check_weights_closed(call, where);
  }

  // Values that the caller sets or reads.

  /// What a caller does before it changes parameters, whose old values nobody may have gathered. @param contents  hash of the new ones.
  void begin_change(Label label, char const* call, std::uint64_t contents, SourceLocation where) {
    check_nothing_captured(call, where);
    if (kind_ != PassKind::none) fail(std::string(call) + ": a pass is open, in which the parameters must stay the same", where);
    check_weights_closed(call, where);
    announce(label, call, where);
    announce(Label{Subject::control, index(contents)}, "values (index: their hash)", where);
  }

  /// Refuses unknown and frozen segments.
  void check_trainable(SegmentId segment, char const* call, SourceLocation where) const {
    if (partition_.segment(segment, where).trainable) return;
    fail(std::string(call) + ": parameter '" + std::string(layout().name(partition_.parameters(segment).front())) + "' is frozen", where);
  }

  [[noreturn]] void fail(std::string const& what, SourceLocation where) const { throw UsageError(what, where, group_->rank()); }

private:
  // A communicator that compares ranks gets scopes at every stage: weights that are still in use at the step are found at Stage0 too.
  static constexpr bool scoped = Conversion<typename S::parameters, Replicated>::communicates || Performs<Group, Announce>;

  void let_go_of(std::int32_t units) noexcept {
    if constexpr (scoped) {
      for (std::int32_t i = 0; i < units; ++i) weights_.release(static_cast<Unit>(i));
      if (kind_ == PassKind::none) weights_.end_phase();
    }
  }

  [[nodiscard]] std::string name(Unit unit) const { return std::string(layout().name(unit)); }

  void check_open(std::uint64_t pass, char const* call, SourceLocation where) const {
    if (kind_ == PassKind::none || pass != pass_) fail(std::string(call) + ": this pass has ended", where);
  }

  void check_weights_closed(char const* call, SourceLocation where) const {
    if (std::int32_t const unit = weights_.open_unit(); unit >= 0) {
      fail(std::string(call) + ": the weights of unit '" + name(static_cast<Unit>(unit)) + "' are still in use", where);
    }
  }

  void check_unit(Unit unit, SourceLocation where) const { static_cast<void>(layout().parameters(unit, where)); }

  void check_not_abandoned(char const* call, SourceLocation where) const {
    if (is_abandoned_ || !abandoned_.empty())
      fail(std::string(call) + ": " + abandoned_ + "; discard_gradients() on all ranks starts afresh", where);
  }

  /// @param unit  Whose gradients were given up; none: the pass was.
  void abandon(std::optional<Unit> unit, bool unwinding) noexcept {
    is_abandoned_ = true;
    try {
      if (abandoned_.empty())
        abandoned_ = unit ? "the gradients of unit '" + name(*unit) + "' were not handed over" : "a pass was not finished";
    } catch (...) {  // no memory for the text
    }
    if (unwinding && !capture_.active())
      abort_group(*group_, "an exception left a pass");  // Nothing that is captured was begun with peers.
  }

  /// A hash in a label, for ranks to compare.
  [[nodiscard]] static std::int32_t index(std::uint64_t hash) noexcept { return static_cast<std::int32_t>(hash & 0x7fff'ffff); }

  /// Where the communicator compares ranks, it does so here too, at every stage.
  void announce([[maybe_unused]] Label label, [[maybe_unused]] char const* text, [[maybe_unused]] SourceLocation where) {
    if constexpr (Performs<Group, Announce>) {
      enqueue_at(*group_, streams_.communication(), Announce{.label = label, .text = text}, where);
    }
  }

  Partition partition_;
  Group* group_;
  MemoryResource* memory_;
  TrainingStreams<Device> streams_;
  Buffer<std::byte> control_;
  ParameterStorage<S, P> storage_;
  Residency<S, P, Group> weights_;
  GradientFlow<S, P, Group> gradients_;
  StepDecider<Group, accumulator> decider_;
  std::string abandoned_;
  int exceptions_ = std::uncaught_exceptions();
  std::uint64_t pass_ = 0;
  PassKind kind_ = PassKind::none;
  bool last_ = false;
  bool last_seen_ = false;
  bool reduced_ = false;
  bool applied_ = false;
  bool is_abandoned_ = false;
  CaptureState capture_;
};

}  // namespace zero::detail
