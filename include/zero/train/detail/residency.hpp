// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Rule 1 of a stage: on use, parameters become Replicated. Which segments are resident, for whom, and where.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

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
#include <zero/train/detail/stream_pair.hpp>
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
  Residency(Partition const& partition, ParameterStorage<S, P>& storage, Group& group, StreamPair<Device> const& streams,
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
    if (follows_) {
      auto const segments = partition_->segments(unit);
      std::size_t taken = 0;
      try {
        bool missing = false;
        for (; taken < segments.size(); ++taken) {
          if (rule_.resident(segments[taken])) continue;
          State& s = state(segments[taken]);
          if (gathers()) s.slot = pool_.acquire(partition_->segment(segments[taken]).padded_elements, where);
          s.missing = true;
          missing = true;
        }
        if (missing) gather(segments, where);
      } catch (...) {
        for (std::size_t i = 0; i < taken; ++i) {
          State& s = state(segments[i]);
          if (s.missing && gathers()) pool_.release(s.slot);
          s.missing = false;
        }
        throw;
      }
      for (SegmentId segment : segments) {
        if (ahead_.is_ahead(segment)) use_what_came(segment);
      }
      for (SegmentId segment : segments) {
        if (gathers()) tables_.set(*partition_, unit, segment, pool_.data(state(segment).slot));
        rule_.open(segment);
      }
    }
    ++open_[at(unit)];
  }

  /// As `acquire`, in a pass: gathers of what comes next start behind it.
  void acquire_in_pass(Unit unit, SourceLocation where) {
    acquire(unit, where);
    try {
      ahead_.go_on(unit, rule_, [&](Unit next) { return start(next, where); });
    } catch (...) {
      release(unit);
      throw;
    }
  }

  void begin_pass(PassKind kind) noexcept { ahead_.begin_pass(kind); }
  /// @param whole  the pass was not given up.
  void end_pass(bool whole) noexcept {
    ahead_.end_pass(whole);
    end_phase();
  }

  // NOLINTNEXTLINE(bugprone-exception-escape): only an unknown unit would throw, and a scope holds a known one
  void release(Unit unit) noexcept {
    --open_[at(unit)];
    if (!follows_) return;
    for (SegmentId segment : partition_->segments(unit)) {
      if (rule_.close(segment, unit)) let_go(segment);
    }
  }

  /// The end of a pass: nothing is kept for a later use any more.
  void end_phase() noexcept {
    for (SegmentId segment : partition_->segments()) {
      if (rule_.end_phase(segment)) let_go(segment);
    }
  }

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
    typename Device::Event came = {};  // gathered ahead of its use: when it is there
  };

  [[nodiscard]] State& state(SegmentId id) noexcept { return segments_[at(id)]; }

  [[nodiscard]] bool gathers() const noexcept { return Rule::communicates && follows_; }

  /// Gathers a unit before it is used. @returns false where that needs a buffer that may not be made now.
  bool start(Unit unit, SourceLocation where) {
    auto const segments = partition_->segments(unit);
    std::size_t taken = 0;
    auto const give_up = [&] {
      for (std::size_t i = 0; i < taken; ++i) {
        State& s = state(segments[i]);
        if (s.missing) pool_.release(s.slot);
        s.missing = false;
      }
      return false;
    };
    try {
      for (; taken < segments.size(); ++taken) {
        if (rule_.resident(segments[taken])) continue;
        std::int64_t const elements = partition_->segment(segments[taken]).padded_elements;
        if (!pool_.can_acquire(elements)) return give_up();
        State& s = state(segments[taken]);
        s.slot = pool_.acquire(elements, where);
        s.missing = true;
      }
      if constexpr (Rule::communicates) gather_missing(segments, where);
    } catch (...) {
      give_up();
      throw;
    }
    auto const came = Device::record(streams_->communication());
    for (SegmentId segment : segments) {
      State& s = state(segment);
      if (!s.missing) continue;
      s.missing = false;
      s.came = came;
      rule_.enter(segment);
      ahead_.started(segment);
    }
    return true;
  }

  void use_what_came(SegmentId segment) {
    Device::wait(streams_->compute(), state(segment).came, WaitId::use_after_prefetch);
    ahead_.arrived(segment);
  }

  /// Gathers those of the segments that are missing, or only announces them.
  void gather(IdList<SegmentId> segments, [[maybe_unused]] SourceLocation where) {
    if constexpr (Rule::communicates) {
      gather_missing(segments, where);
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

  void gather_missing(IdList<SegmentId> segments, SourceLocation where) {
    // After the last writers of the shards and the last readers of the buffers, all of which compute.
    streams_->communication_after_compute(WaitId::gather_after_compute);
    group_->group(streams_->communication(), [&] {
      for (SegmentId segment : segments) {
        if (!state(segment).missing) continue;
        auto const shard = storage_->parameters(segment);
        convert_into(*group_, streams_->communication(), shard,
                     TensorRef<parameter, Replicated>{pool_.data(state(segment).slot), shard.geometry()},
                     Label{Subject::parameters, to_index(segment)}, 1.0f, where);
      }
    });
  }

  void let_go(SegmentId segment) noexcept {
    rule_.leave(segment);
    if (!gathers()) return;
    int const slot = state(segment).slot;
    bool const unused = ahead_.is_ahead(segment);
    if (unused) ahead_.arrived(segment);
    if (poison_) {
      try {
        Device::fill(unused ? streams_->communication() : streams_->compute(), pool_.data(slot), pool_.elements(slot),
                     poison_value<parameter>());
      } catch (...) {  // the stream has failed: whoever waits for it gets the cause
      }
    }
    pool_.release(slot);
  }

  Partition const* partition_;
  ParameterStorage<S, P>* storage_;
  Group* group_;
  StreamPair<Device> const* streams_;
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
