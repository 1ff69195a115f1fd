// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Rule 1 of a stage: on use, parameters become Replicated. Which segments are resident, for whom, and where.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/memory.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/conversion.hpp>
#include <zero/train/detail/buffer_pool.hpp>
#include <zero/train/detail/look_ahead.hpp>
#include <zero/train/detail/parameter_storage.hpp>
#include <zero/train/detail/training_streams.hpp>
#include <zero/train/detail/use_tracker.hpp>
#include <zero/train/unit_view.hpp>

namespace zero::detail {

/// A byte pattern that is NaN in every floating-point type, over memory that nobody may read any more.
template <class T>
[[nodiscard]] T poison_value() noexcept {
  T value;
  std::memset(static_cast<void*>(&value), 0xff, sizeof(T));
  return value;
}

/// Where each parameter's data begins for each unit that uses it: the tables behind `UnitView`.
template <class T>
class PointerTables {
public:
  explicit PointerTables(ParameterLayout const& layout) : layout_(&layout) {
    std::size_t total = 0;
    for (Unit unit : layout.units()) {
      begin_.push_back(total);
      total += layout.parameters(unit).size();
    }
    pointers_.assign(total, nullptr);
  }
  [[nodiscard]] UnitView<T> view(Unit unit) const noexcept { return {*layout_, unit, pointers_.data() + begin_[at(unit)]}; }

  /// Points the unit's parameters that lie in that segment into `data`, the whole segment.
  void set(Partition const& partition, Unit unit, SegmentId segment, T* data) {
    auto const ids = layout_->parameters(unit);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (partition.segment_of(ids[i]) == segment) {
        pointers_[begin_[at(unit)] + i] = data + partition.offset_of(ids[i]);
      }
    }
  }

private:
  ParameterLayout const* layout_;
  PlainArray<std::size_t> begin_;
  PlainArray<T*> pointers_;
};

/// Gathers segments when a unit is used, and keeps each until the last scope that needs it, and within a forward or a backward the last unit
/// that is declared to use it, has let go of it. Where parameters are Replicated, or there is one rank, it hands out views and does nothing;
/// but under a communicator that compares ranks it announces, at every stage, what it would gather where parameters are Sharded.
template <Stage S, PrecisionPolicy P, class Group>
class Residency {
public:
  using Device = typename Group::Device;
  using parameter = typename P::parameter;
  using Rule = Conversion<typename S::parameters, Replicated>;

  /// @param prefetch_bytes  see `ParametersOptions`.
  Residency(Partition const& partition, ParameterStorage<S, P>& storage, Group& group, TrainingStreams<Device> const& streams,
            MemoryResource& memory, bool poison, std::int64_t prefetch_bytes)
      : partition_(&partition),
        storage_(&storage),
        group_(&group),
        streams_(&streams),
        pool_(memory, Purpose::gathered),
        tables_(partition.layout()),
        rule_(partition),
        ahead_(partition, prefetch_elements<S, P>(prefetch_bytes, group.size() > 1 && streams.overlapped())),
        segments_(static_cast<std::size_t>(partition.segment_count())),
        open_(static_cast<std::size_t>(partition.layout().unit_count()), 0),
        follows_((Rule::communicates || Performs<Group, Announce>)&&group.size() > 1),
        poison_(poison) {
    if (gathers()) return;
    for (Unit unit : partition.layout().units()) {
      for (SegmentId segment : partition.segments(unit)) tables_.set(partition, unit, segment, storage.parameters(segment).data());
    }
  }

  [[nodiscard]] UnitView<parameter const> view(Unit unit) const noexcept { return tables_.view(unit); }

  void acquire(Unit unit, SourceLocation where) {
    if (follows_) make_resident(unit, false, {}, where);
    ++open_[at(unit)];
  }

  /// As `acquire`, in a pass: gathers of what comes next start behind it.
  void acquire_in_pass(Unit unit, SourceLocation where) {
    if (follows_) {
      auto const step = ahead_.step(unit, rule_);
      std::uint64_t const gathered = make_resident(unit, true, step, where);
      ahead_.go_on(unit, gathered, step);
    }
    ++open_[at(unit)];
  }

  void begin_pass(PassKind kind) noexcept { ahead_.begin_pass(kind); }
  void end_pass() noexcept {
    bool in_vain = false;
    for (SegmentId segment : partition_->segments()) {
      if (!ahead_.is_ahead(segment)) continue;
      ahead_.arrived(segment);
      pool_.release(state(segment).ahead_slot);
      in_vain = true;
    }
    ahead_.end_pass();
    end_phase();
    if (!in_vain) return;
    try {  // What changes the parameters next is behind their reading.
      streams_->compute_after_communication(WaitId::none);
    } catch (...) {  // a stream has failed: whoever uses it gets the cause
    }
  }

  // NOLINTNEXTLINE(bugprone-exception-escape): only an unknown unit would throw, and a scope holds a known one
  void release(Unit unit) noexcept {
    --open_[at(unit)];
    if (follows_) close(unit);
  }

  /// The end of a pass: nothing is kept for a later use any more.
  void end_phase() noexcept {
    for (SegmentId segment : partition_->segments()) {
      if (rule_.end_phase(segment)) let_go(segment);
    }
  }

  [[nodiscard]] BufferPool<parameter, Device>& buffers() noexcept { return pool_; }
  /// No buffers are to be added for now.
  void fix_buffers(bool fixed) noexcept { pool_.fix(fixed); }

  /// A unit with an open scope, or -1.
  [[nodiscard]] std::int32_t open_unit() const noexcept {
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i] != 0) return static_cast<std::int32_t>(i);
    }
    return -1;
  }

private:
  struct State {
    int slot = PoolShape::none;        // where the segment is, if it is resident
    bool missing = false;              // it is being made resident
    int next_slot = PoolShape::none;   // where it is about to be gathered ahead
    int ahead_slot = PoolShape::none;  // where it was gathered ahead; it may be resident elsewhere until that is used
    typename Device::Event came = {};  // and when it is there
  };

  [[nodiscard]] State& state(SegmentId id) noexcept { return segments_[at(id)]; }

  [[nodiscard]] bool gathers() const noexcept { return Rule::communicates && follows_; }

  /// Gathers what is missing and holds it, and starts what is to be ahead. Buffers are taken before anything is enqueued.
  /// @returns one bit for each segment: was not resident
  std::uint64_t make_resident(Unit unit, bool in_pass, LookAhead::Step step, SourceLocation where) {
    auto const segments = partition_->segments(unit);
    std::uint64_t gathered = 0;
    bool missing = false;
    try {
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (rule_.resident(segments[i])) continue;
        gathered |= LookAhead::bit(i);
        if (ahead_.takes(in_pass, unit, i, rule_)) continue;
        State& s = state(segments[i]);
        if (gathers()) s.slot = pool_.acquire(elements(segments[i]), where);
        s.missing = missing = true;
      }
      for_started(step, [&](SegmentId segment) { state(segment).next_slot = pool_.acquire(elements(segment), where); });
      if (missing) gather(segments, where);
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (!ahead_.takes(in_pass, unit, i, rule_)) continue;
        Device::wait(streams_->compute(), state(segments[i]).came, WaitId::use_after_prefetch);
      }
    } catch (...) {
      for (SegmentId segment : segments) {
        if (state(segment).missing && gathers()) pool_.release(state(segment).slot);
        state(segment).missing = false;
      }
      give_up(step);
      throw;
    }
    hold(unit, in_pass);
    try {
      start(step, where);
    } catch (...) {
      give_up(step);
      close(unit);
      throw;
    }
    return gathered;
  }

  /// What is there now is in use.
  void hold(Unit unit, bool in_pass) {
    auto const segments = partition_->segments(unit);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      SegmentId const segment = segments[i];
      State& s = state(segment);
      if (ahead_.takes(in_pass, unit, i, rule_)) {
        ahead_.arrived(segment);
        if (rule_.resident(segment)) {  // This rank has kept what it had.
          pool_.release(s.ahead_slot);
        } else {
          s.slot = s.ahead_slot;
          rule_.enter(segment);
        }
      }
      if (gathers()) tables_.set(*partition_, unit, segment, pool_.data(s.slot));
      rule_.open(segment);
    }
  }

  void start([[maybe_unused]] LookAhead::Step step, [[maybe_unused]] SourceLocation where) {
    if constexpr (Rule::communicates) {
      for (std::size_t place = step.begin; place < step.end; ++place) {
        bool any = false;
        for (std::size_t i = 0; i < ahead_.segments(place).size(); ++i) any = any || ahead_.gathers(place, i);
        if (!any) continue;
        all_gather(ahead_.segments(place), where,
                   [&](std::size_t i, SegmentId segment) { return ahead_.gathers(place, i) ? state(segment).next_slot : PoolShape::none; });
        auto const came = Device::record(streams_->communication());
        for_started({place, place + 1}, [&](SegmentId segment) {
          State& s = state(segment);
          s.ahead_slot = std::exchange(s.next_slot, PoolShape::none);
          s.came = came;
          ahead_.started(segment);
        });
      }
    }
  }

  /// Buffers of what has not started go back.
  void give_up(LookAhead::Step step) noexcept {
    for_started(step, [&](SegmentId segment) {
      int const slot = std::exchange(state(segment).next_slot, PoolShape::none);
      if (slot != PoolShape::none) pool_.release(slot);
    });
  }

  /// Calls body(segment) for what a step gathers.
  template <class Body>
  void for_started(LookAhead::Step step, Body const& body) {
    for (std::size_t place = step.begin; place < step.end; ++place) {
      auto const segments = ahead_.segments(place);
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (ahead_.gathers(place, i)) body(segments[i]);
      }
    }
  }

  [[nodiscard]] std::int64_t elements(SegmentId segment) const { return partition_->segment(segment).padded_elements; }

  /// Gathers those of the segments that are missing, or only announces them.
  void gather(IdList<SegmentId> segments, [[maybe_unused]] SourceLocation where) {
    if constexpr (Rule::communicates) {
      all_gather(segments, where,
                 [&](std::size_t, SegmentId segment) { return state(segment).missing ? state(segment).slot : PoolShape::none; });
      streams_->compute_after_communication(WaitId::use_after_gather);
    } else if constexpr (Performs<Group, Announce>) {
      for (SegmentId segment : segments) {
        if (!state(segment).missing) continue;
        Label const label{Subject::parameters, to_index(segment)};
        enqueue_at(*group_, streams_->communication(), Announce{.label = label, .text = "gather of a segment"}, where);
      }
    }
    for (SegmentId segment : segments) {
      if (!state(segment).missing) continue;
      state(segment).missing = false;
      rule_.enter(segment);
    }
  }

  /// @param slot_of  where to: slot_of(i, segment), or PoolShape::none for what is not to be gathered
  template <class SlotOf>
  void all_gather(IdList<SegmentId> segments, SourceLocation where, SlotOf const& slot_of) {
    // After the last writers of the shards and the last readers of the buffers, all of which compute.
    streams_->communication_after_compute(WaitId::gather_after_compute);
    group_->group(streams_->communication(), [&] {
      for (std::size_t i = 0; i < segments.size(); ++i) {
        int const slot = slot_of(i, segments[i]);
        if (slot == PoolShape::none) continue;
        auto const shard = storage_->parameters(segments[i]);
        convert_into(*group_, streams_->communication(), shard, TensorRef<parameter, Replicated>{pool_.data(slot), shard.geometry()},
                     Label{Subject::parameters, to_index(segments[i])}, 1.0f, where);
      }
    });
  }

  void close(Unit unit) {
    for (SegmentId segment : partition_->segments(unit)) {
      if (rule_.close(segment, unit)) let_go(segment);
    }
  }

  void let_go(SegmentId segment) noexcept {
    rule_.leave(segment);
    if (!gathers()) return;
    int const slot = state(segment).slot;
    if (poison_) {
      try {
        Device::fill(streams_->compute(), pool_.data(slot), pool_.elements(slot), poison_value<parameter>());
      } catch (...) {  // the stream has failed: whoever waits for it gets the cause
      }
    }
    pool_.release(slot);
  }

  Partition const* partition_;
  ParameterStorage<S, P>* storage_;
  Group* group_;
  TrainingStreams<Device> const* streams_;
  BufferPool<parameter, Device> pool_;
  PointerTables<parameter const> tables_;
  ResidencyRule rule_;
  LookAhead ahead_;
  PlainArray<State> segments_;
  PlainArray<std::int32_t> open_;
  bool follows_;
  bool poison_;
};

}  // namespace zero::detail
