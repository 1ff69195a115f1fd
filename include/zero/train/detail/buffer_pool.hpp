// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Buffers that are used again: for each size as many as were ever in use at once, and what that comes to, also in constant expressions.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/memory.hpp>

namespace zero::detail {

/// Which buffers a pool has and which are in use: the policy alone, so that the plan is made by the code that runs.
class PoolShape {
public:
  static constexpr int none = -1;

  /// A free buffer of exactly that size, or `none`.
  [[nodiscard]] constexpr int find(std::int64_t elements) const noexcept {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].in_use && slots_[i].elements == elements) return static_cast<int>(i);
    }
    return none;
  }
  constexpr int add(std::int64_t elements) {
    slots_.push_back({elements, false});
    return static_cast<int>(slots_.size()) - 1;
  }
  constexpr void take(int slot) noexcept { slots_[static_cast<std::size_t>(slot)].in_use = true; }
  constexpr void give_back(int slot) noexcept { slots_[static_cast<std::size_t>(slot)].in_use = false; }

  /// Takes a buffer of that size, a new one if none is free.
  constexpr int acquire(std::int64_t elements) {
    int slot = find(elements);
    if (slot == none) slot = add(elements);
    take(slot);
    return slot;
  }
  /// Elements of all buffers, in use or not.
  [[nodiscard]] constexpr std::int64_t elements() const noexcept {
    std::int64_t sum = 0;
    for (Slot const& slot : slots_) sum += slot.elements;
    return sum;
  }
  [[nodiscard]] constexpr std::int64_t elements(int slot) const noexcept { return slots_[static_cast<std::size_t>(slot)].elements; }

  /// Sizes of the buffers to add so that there are as many of each size as in `wanted`. A buffer serves its own size only, so it does not matter
  /// which of them is taken: what `wanted` was enough for, this is enough for.
  [[nodiscard]] constexpr PlainArray<std::int64_t> missing(PoolShape const& wanted) const {
    PoolShape have = *this;
    for (Slot& slot : have.slots_) slot.in_use = false;
    PlainArray<std::int64_t> sizes;
    for (Slot const& slot : wanted.slots_) {
      int const found = have.find(slot.elements);
      if (found == none) sizes.push_back(slot.elements);
      else have.take(found);
    }
    return sizes;
  }
  /// Room for `more` buffers, so that adding them cannot fail.
  constexpr void make_room(std::size_t more) { slots_.reserve_more(more); }

private:
  struct Slot {
    std::int64_t elements;
    bool in_use;
  };
  PlainArray<Slot> slots_;
};

/// The buffers themselves, each with the event after which it may be written again.
template <Element T, class Device>
class BufferPool {
public:
  using Event = typename Device::Event;

  BufferPool(MemoryResource& memory, Purpose purpose) noexcept : memory_(&memory), purpose_(purpose) {}

  /// Takes a buffer; `ready(slot)` is the event that it still waits for.
  /// @throws MemoryError, or UsageError where the pool is fixed; the pool is then as before.
  int acquire(std::int64_t elements, SourceLocation where) {
    int slot = shape_.find(elements);
    if (slot == PoolShape::none) {
      if (fixed_)
        throw UsageError("a captured pass needs a buffer that none before it needed: run such a pass, or reserve(), before the capture",
                         where);
      make_room(1);
      slot = add(Buffer<T>(*memory_, elements, purpose_));
    }
    shape_.take(slot);
    return slot;
  }
  /// Buffers for `add`, so that `acquire` finds as many of each size as there are in `wanted`.
  /// @throws MemoryError; the pool is then as before.
  [[nodiscard]] std::vector<Buffer<T>> missing(PoolShape const& wanted) {
    auto const sizes = shape_.missing(wanted);
    make_room(sizes.size());
    std::vector<Buffer<T>> buffers;
    for (std::int64_t elements : sizes) buffers.emplace_back(*memory_, elements, purpose_);
    return buffers;
  }
  /// Adds what `missing` has made.
  void add(std::vector<Buffer<T>> buffers) noexcept {
    for (Buffer<T>& buffer : buffers) add(std::move(buffer));
  }
  /// Gives a buffer back; whoever takes it next waits for `ready`.
  void release(int slot, Event ready = Event{}) noexcept {
    ready_[static_cast<std::size_t>(slot)] = ready;
    shape_.give_back(slot);
  }
  /// Whether there are to be no more buffers for now: memory cannot be allocated in a capture.
  void fix(bool fixed) noexcept { fixed_ = fixed; }
  /// Whoever takes a buffer next is behind everything that used it.
  void forget_events() noexcept {
    for (Event& ready : ready_) ready = Event{};
  }
  [[nodiscard]] T* data(int slot) noexcept { return buffers_[static_cast<std::size_t>(slot)].data(); }
  [[nodiscard]] Event ready(int slot) const noexcept { return ready_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] std::int64_t elements(int slot) const noexcept { return shape_.elements(slot); }

private:
  void make_room(std::size_t more) {
    buffers_.reserve(buffers_.size() + more);
    ready_.reserve_more(more);
    shape_.make_room(more);
  }
  // NOLINTNEXTLINE(bugprone-exception-escape): there is room
  int add(Buffer<T> buffer) noexcept {
    int const slot = shape_.add(buffer.size());
    buffers_.push_back(std::move(buffer));
    ready_.push_back(Event{});
    return slot;
  }

  MemoryResource* memory_;
  Purpose purpose_;
  PoolShape shape_;
  std::vector<Buffer<T>> buffers_;
  PlainArray<Event> ready_;
  bool fixed_ = false;
};

}  // namespace zero::detail
