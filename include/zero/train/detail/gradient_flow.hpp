// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Rules 2 and 3 of a stage: where gradients are written, how they become the gradients' placement at each hand-over, and the optimizer's
/// once a step.

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/train/detail/buffer_pool.hpp>
#include <zero/train/detail/element_loops.hpp>
#include <zero/train/detail/gradient_rules.hpp>
#include <zero/train/detail/parameter_storage.hpp>
#include <zero/train/detail/residency.hpp>
#include <zero/train/detail/training_streams.hpp>
#include <zero/train/detail/use_tracker.hpp>
#include <zero/train/unit_view.hpp>

namespace zero::detail {

/// The gradients of a model at stage S between the first backward and the step.
///
/// Accumulators are written on the compute stream where they are Partial and on the stream of reductions otherwise, zeroed on the compute
/// stream where nobody touched them, and read by the step after it has waited for both.
template <Stage S, PrecisionPolicy P, class Group>
class GradientFlow {
public:
  using Device = typename Group::Device;
  using gradient = typename P::gradient;
  using wire = typename P::wire;
  using accumulator = typename P::accumulator;
  using Rules = GradientRules<S, P>;
  /// Where the reduced gradient lies when the step begins.
  using Reduced = typename Rules::Reduced;

  GradientFlow(Partition const& partition, ParameterStorage<S, P>& storage, Group& group, TrainingStreams<Device> const& streams,
               MemoryResource& memory, bool poison)
      : partition_(&partition),
        storage_(&storage),
        group_(&group),
        streams_(&streams),
        scratch_(memory, Purpose::gradient_scratch),
        staging_(memory, Rules::staging_bytes(partition), Purpose::staging),
        tables_(partition.layout()),
        handed_over_by_(partition),
        segments_(static_cast<std::size_t>(partition.segment_count())),
        units_(static_cast<std::size_t>(partition.layout().unit_count())),
        wire_factor_(Rules::wire_factor(partition.ranks())),
        poison_(poison) {}

  [[nodiscard]] UnitView<gradient> view(Unit unit) const noexcept { return tables_.view(unit); }
  /// Multiplied into every sum before it is rounded to the wire type.
  [[nodiscard]] float wire_factor() const noexcept { return wire_factor_; }

  void open(Unit unit, bool zeroed, SourceLocation where) {
    UnitState& u = state(unit);
    if (u.open) throw UsageError("the gradients of unit '" + name(unit) + "' are already open", where, group_->rank());
    if (u.handed_over)
      throw UsageError("the gradients of unit '" + name(unit) + "' were already handed over in this pass", where, group_->rank());
    for (SegmentId segment : partition_->segments(unit)) {
      SegmentState const& s = state(segment);
      if (s.fresh_for < 0 || s.zeroed) continue;
      throw UsageError("the gradients of unit '" + name(unit) + "' share a parameter with those of unit '" +
                           name(static_cast<Unit>(s.fresh_for)) +
                           "', which are open, were not zeroed and still have to be overwritten: hand them over first",
                       where, group_->rank());
    }
    for (SegmentId segment : partition_->segments(unit)) {
      if (partition_->segment(segment).trainable) open(unit, segment, zeroed, where);
    }
    u.open = true;
  }

  /// Whether that scope is the first to write this parameter since the last step (Partial, in place) or pass (otherwise).
  [[nodiscard]] bool first_use(Unit unit, ParameterId id, SourceLocation where) const {
    ParameterLayout const& layout = partition_->layout();
    if (layout.position(unit, id, where) < 0) {
      throw LayoutError("first_use: unit '" + name(unit) + "' does not use parameter '" + std::string(layout.name(id)) + "'", where,
                        group_->rank());
    }
    SegmentState const& s = segments_[at(partition_->segment_of(id))];
    return s.fresh_for == to_index(unit);
  }

  void hand_over(Unit unit, bool last, SourceLocation where) {
    UnitState& u = state(unit);
    u.open = false;
    u.handed_over = true;
    for (SegmentId segment : partition_->segments(unit)) {
      if (!partition_->segment(segment).trainable) continue;
      state(segment).fresh_for = -1;
      state(segment).zeroed = true;
      if (handed_over_by_.mark(segment, unit)) complete(segment, last, where);
    }
  }

  void close(Unit unit) noexcept { state(unit).open = false; }

  /// A unit whose gradients are open, or -1.
  [[nodiscard]] std::int32_t open_unit() const noexcept {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].open) return static_cast<std::int32_t>(i);
    }
    return -1;
  }

  /// The end of a pass: what was written and still waits for another unit that uses it goes now.
  void end_pass(bool last, SourceLocation where) {
    for (SegmentId segment : partition_->segments()) {
      if (handed_over_by_.any(segment)) complete(segment, last, where);
    }
    for (UnitState& u : units_) u.handed_over = false;
  }

  /// Makes the gradients of all units ready for the optimizer: what nobody touched is zero, and what is still Partial is reduced.
  void reduce(SourceLocation where) {
    retire();
    for (SegmentId segment : partition_->segments()) {
      if (!partition_->segment(segment).trainable || state(segment).accumulated) continue;
      // On the compute stream: the update before this one may still be reading there, and reductions are behind it or have nothing to do here.
      auto const all = storage_->gradients(segment);
      Device::fill(streams_->compute(), all.data(), static_cast<std::int64_t>(all.storage().size()), accumulator{});
    }
    if constexpr (Rules::partial) {
      streams_->reductions_after_compute(WaitId::reduce_after_gradients);
      for (SegmentId segment : partition_->segments()) {
        if (partition_->segment(segment).trainable && !state(segment).reduced) reduce_partial(segment, where);
      }
    }
    streams_->compute_after_reductions(WaitId::norm_after_reduce);
  }

  /// The reduced gradient of a segment, after `reduce`.
  [[nodiscard]] TensorRef<accumulator, Reduced> reduced(SegmentId segment) noexcept {
    return in_place<Reduced>(storage_->gradients(segment));
  }

  /// The reduced gradient where the optimizer wants it; gathered into the staging buffer where a rank holds only its part (rule 3, S -> R).
  [[nodiscard]] accumulator const* for_optimizer(SegmentId segment, [[maybe_unused]] SourceLocation where) {
    using To = typename S::optimizer_states;
    auto const from = reduced(segment);
    if constexpr (Conversion<Reduced, To>::communicates) {
      if (group_->size() > 1) {
        TensorRef<accumulator, To> const to{reinterpret_cast<accumulator*>(staging_.data()), from.geometry()};
        streams_->communication_after_compute(WaitId::gather_gradients_after_update);
        convert_into(*group_, streams_->communication(), from, to, label(segment), 1.0f, where);
        streams_->compute_after_communication(WaitId::update_after_gather_gradients);
        return to.data();
      }
      return from.data();
    } else {
      return in_place<To>(from).data();
    }
  }

  /// After the step: the next gradients start from zero.
  void reset() noexcept {
    for (SegmentState& s : segments_) s = SegmentState{};
  }

  [[nodiscard]] BufferPool<gradient, Device>& buffers() noexcept { return scratch_; }

  /// Forgets everything since the last step.
  void discard() {
    retire();
    streams_->compute_after_reductions(WaitId::write_after_discard);
    give_up();
    reset();
  }

private:
  struct SegmentState {
    int slot = PoolShape::none;   // scratch that is being written in this pass
    std::int32_t fresh_for = -1;  // the unit whose open scope is the first to write
    bool zeroed = true;           // that scope found zeroes
    bool accumulated = false;     // the accumulator holds something of this step
    bool reduced = false;         // a Partial sum has already been reduced
    friend bool operator==(SegmentState const&, SegmentState const&) = default;
  };

public:
  // Captures. Between passes the host knows no more than this.
  using Position = std::vector<SegmentState>;

  [[nodiscard]] Position const& position() const noexcept { return segments_; }
  /// @param position  one of these gradients
  void restore(Position const& position) {
    give_up();
    segments_ = position;
  }
  /// Nothing is in flight: the compute stream has waited for reductions, or does so where the capture begins or ends.
  /// @param captures  no buffers are to be added for now
  void settle(bool captures) noexcept {
    retire();
    scratch_.forget_events();
    scratch_.fix(captures);
  }

private:
  struct UnitState {
    bool open = false;
    bool handed_over = false;
  };
  struct InFlight {
    int slot = PoolShape::none;
    typename Device::Event done{};
  };

  [[nodiscard]] SegmentState& state(SegmentId id) noexcept { return segments_[at(id)]; }
  [[nodiscard]] UnitState& state(Unit unit) noexcept { return units_[at(unit)]; }
  [[nodiscard]] std::string name(Unit unit) const { return std::string(partition_->layout().name(unit)); }
  [[nodiscard]] static Label label(SegmentId segment) noexcept { return Label{Subject::gradients, to_index(segment)}; }

  void open(Unit unit, SegmentId segment, bool zeroed, SourceLocation where) {
    SegmentState& s = state(segment);
    gradient* destination = nullptr;
    if constexpr (Rules::direct) {
      auto const all = storage_->gradients(segment);
      destination = all.data();
      if (!s.accumulated) {
        if (zeroed) Device::fill(streams_->compute(), destination, static_cast<std::int64_t>(all.storage().size()), gradient{});
        s.accumulated = true;
        s.fresh_for = to_index(unit);
        s.zeroed = zeroed;
      }
    } else {
      if (s.slot == PoolShape::none) {
        int const slot = scratch_.acquire(partition_->segment(segment).padded_elements, where);
        Device::wait(streams_->compute(), scratch_.ready(slot), WaitId::scratch_after_reduce);
        if (zeroed) Device::fill(streams_->compute(), scratch_.data(slot), scratch_.elements(slot), gradient{});
        s.slot = slot;
        s.fresh_for = to_index(unit);
        s.zeroed = zeroed;
      }
      destination = scratch_.data(s.slot);
    }
    tables_.set(*partition_, unit, segment, destination);
  }

  /// All declared users have handed the segment over.
  void complete(SegmentId segment, bool last, SourceLocation where) {
    handed_over_by_.clear(segment);
    if constexpr (!Rules::partial) {
      reduce_scratch(segment, where);
    } else {
      if constexpr (!Rules::direct) {
        auto const into = storage_->gradients(segment);
        SegmentState& s = state(segment);
        add(streams_->compute(), into.data(), scratch_.data(s.slot), static_cast<std::int64_t>(into.storage().size()), s.accumulated);
        s.accumulated = true;
        scratch_.release(s.slot);
        s.slot = PoolShape::none;
      }
      if (last) {
        streams_->reductions_after_compute(WaitId::reduce_after_gradients);
        reduce_partial(segment, where);
      }
    }
  }

  /// Rule 2 where gradients accumulate reduced: written -> wire type -> summed over ranks -> added up.
  void reduce_scratch(SegmentId segment, SourceLocation where) {
    SegmentState& s = state(segment);
    auto const stream = streams_->reductions();
    auto const into = storage_->gradients(segment);
    retire();
    streams_->reductions_after_compute(WaitId::reduce_after_gradients);
    TensorRef<wire, Partial> const sum{on_the_wire(scratch_.data(s.slot), scratch_.elements(s.slot)), into.geometry()};
    auto const part = in_place<typename S::gradients>(sum);
    convert_into(*group_, stream, sum, part, label(segment), wire_factor_, where);
    add(stream, into.data(), part.data(), static_cast<std::int64_t>(into.storage().size()), s.accumulated);
    s.accumulated = true;
    if (poison_) Device::fill(stream, scratch_.data(s.slot), scratch_.elements(s.slot), poison_value<gradient>());
    in_flight_ = InFlight{s.slot, Device::record(stream)};
    s.slot = PoolShape::none;
    if (!streams_->overlapped()) retire();
  }

  /// Rule 3 where gradients accumulate as local sums: all-reduce or reduce-scatter, in place.
  void reduce_partial(SegmentId segment, SourceLocation where) {
    auto const stream = streams_->reductions();
    auto const all = storage_->gradients(segment);
    TensorRef<wire, Partial> const sum{on_the_wire(all.data(), static_cast<std::int64_t>(all.storage().size())), all.geometry()};
    auto const part = in_place<Reduced>(sum);
    convert_into(*group_, stream, sum, part, label(segment), wire_factor_, where);
    if constexpr (!std::is_same_v<wire, accumulator>) {
      add(stream, reduced(segment).data(), part.data(), static_cast<std::int64_t>(part.storage().size()), false);
    }
    state(segment).reduced = true;
  }

  /// The values as the wire type, in place where they are that already, else in the staging buffer (on the stream of reductions).
  template <class T>
  [[nodiscard]] wire* on_the_wire(T* values, std::int64_t elements) {
    if constexpr (std::is_same_v<T, wire>) {
      return values;
    } else {
      wire* const staged = reinterpret_cast<wire*>(staging_.data());
      Device::for_each(streams_->reductions(), elements, CastInto<wire, T>{staged, values});
      return staged;
    }
  }

  template <class Stream, class To, class From>
  static void add(Stream stream, To* to, From const* from, std::int64_t elements, bool onto) {
    if (onto) Device::for_each(stream, elements, AddInto<To, From>{to, from});
    else Device::for_each(stream, elements, CastInto<To, From>{to, from});
  }

  /// Scopes that are open, or were handed over, count for nothing any more.
  void give_up() noexcept {
    for (SegmentState const& s : segments_) {
      if (s.slot != PoolShape::none) scratch_.release(s.slot);
    }
    handed_over_by_.clear();
    for (UnitState& u : units_) u = UnitState{};
  }

  /// One reduction may be in flight: the buffer of the one before goes back.
  void retire() noexcept {
    if (in_flight_.slot != PoolShape::none) scratch_.release(in_flight_.slot, in_flight_.done);
    in_flight_ = InFlight{};
  }

  Partition const* partition_;
  ParameterStorage<S, P>* storage_;
  Group* group_;
  TrainingStreams<Device> const* streams_;
  BufferPool<gradient, Device> scratch_;
  Buffer<std::byte> staging_;
  PointerTables<gradient> tables_;
  UseTracker handed_over_by_;
  std::vector<SegmentState> segments_;
  std::vector<UnitState> units_;
  InFlight in_flight_;
  float wire_factor_;
  bool poison_;
};

}  // namespace zero::detail
