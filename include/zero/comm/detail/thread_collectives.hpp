// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The data movement of the collectives between threads: what one rank does between meeting and parting.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include <zero/comm/detail/fingerprint.hpp>
#include <zero/comm/detail/fixed_order.hpp>
#include <zero/comm/detail/rendezvous.hpp>
#include <zero/comm/detail/streaming_copy.hpp>
#include <zero/comm/operations.hpp>
#include <zero/device/host_stream.hpp>

namespace zero::detail {

/// Pushing a block to all peers reads it from memory once: it stays in the second-level cache meanwhile.
inline constexpr std::int64_t push_block_bytes = 64 * 1024;

/// A reduced block is handed on while it is in the first-level cache.
inline constexpr std::int64_t reduce_block_bytes = 16 * 1024;

/// One rank's side of one collective.
class ThreadCall {
public:
  ThreadCall(Rendezvous& group, int rank) noexcept : group_(group), rank_(rank) {}

  template <class Operation>
  void perform(Operation const& operation) {
    Rendezvous::Slot& own = group_.slot(rank_);
    own.call = fingerprint(operation);
    if constexpr (requires { operation.buffer; }) {
      own.receive = operation.buffer;
    } else if constexpr (requires { operation.send; }) {
      own.send = operation.send;
      own.receive = operation.receive;
    }
    group_.meet(rank_);
    move(operation);
    group_.part(rank_);
  }

private:
  template <Element T>
  void move(AllGather<T> const& o) noexcept {
    std::int64_t const place = rank_ * o.count;
    bool const streaming = streams<T>(size() * o.count);
    if (o.receive + place != o.send) copy(o.receive + place, o.send, o.count, streaming);
    push(o.send, o.count, place, streaming);
    if (streaming) end_streaming_copies();
    count_pushed<T>(o.count);
  }

  template <Element T, class Op>
  void move(ReduceScatter<T, Op> const& o) noexcept {
    T const* const* const operands = operands_at<T>(rank_ * o.count);
    reduce_in_order<Op>(operands, size(), o.receive, o.count, o.factor);
    count_received<T>((size() - 1) * o.count);
  }

  /// Every rank reduces one range and hands it on block by block. Only this rank reads the range of anybody's operand, so results may go to
  /// the peers' buffers at once, in place too.
  template <Element T, class Op>
  void move(AllReduce<T, Op> const& o) noexcept {
    WorkRange const range = work_range(o.count, sizeof(T), size(), rank_);
    constexpr std::int64_t block = reduce_block_bytes / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t begin = range.begin; begin < range.end; begin += block) {
      std::int64_t const part = range.end - begin < block ? range.end - begin : block;
      reduce_in_order<Op>(operands_at<T>(begin), size(), o.receive + begin, part, o.factor);
      push(o.receive + begin, part, begin, false);  // The block is in the cache; the peers' lines were read for the reduction.
    }
    delay_point();
    count_received<T>((size() - 1) * range.size());
    count_pushed<T>(range.size());
  }

  /// Every rank hands one range of the root's buffer to everybody, so that all ranks work and the root's memory is read once.
  template <Element T>
  void move(Broadcast<T> const& o) noexcept {
    WorkRange const range = work_range(o.count, sizeof(T), size(), rank_);
    T const* const from = static_cast<T const*>(group_.slot(o.root).receive);
    bool const streaming = streams<T>(o.count);
    constexpr std::int64_t block = push_block_bytes / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t begin = range.begin; begin < range.end; begin += block) {
      std::int64_t const part = range.end - begin < block ? range.end - begin : block;
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != o.root) copy(static_cast<T*>(group_.slot(peer).receive) + begin, from + begin, part, streaming);
      }
    }
    if (streaming) end_streaming_copies();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != o.root) count_received<T>(range.size(), peer);
    }
  }

  template <Element T>
  void move(AllToAll<T> const& o) noexcept {
    bool const streaming = streams<T>(size() * o.count);
    for (int k = o.own_part ? 0 : 1; k < size(); ++k) {
      int const peer = (rank_ + k) % size();
      copy(static_cast<T*>(group_.slot(peer).receive) + o.place(rank_, peer), o.count > 0 ? o.send + peer * o.send_stride() : o.send,
           o.count, streaming);
    }
    if (streaming) end_streaming_copies();
    count_pushed<T>(o.count);
  }

  void move(Barrier const&) noexcept {}

  /// Copies elements to the same place in all peers' receive buffers, first to the next rank's: the ranks start at different ones.
  template <Element T>
  void push(T const* from, std::int64_t count, std::int64_t place, bool streaming) noexcept {
    constexpr std::int64_t block = push_block_bytes / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t begin = 0; begin < count; begin += block) {
      std::int64_t const part = count - begin < block ? count - begin : block;
      for (int k = 1; k < size(); ++k) {
        copy(static_cast<T*>(group_.slot((rank_ + k) % size()).receive) + place + begin, from + begin, part, streaming);
      }
    }
  }

  template <Element T>
  static void copy(T* to, T const* from, std::int64_t count, bool streaming) noexcept {
    if (streaming) {
      streaming_copy(to, from, count * static_cast<std::int64_t>(sizeof(T)));
    } else if (count > 0) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
    }
  }

  template <Element T>
  static constexpr bool streams(std::int64_t received) noexcept {
    return received * static_cast<std::int64_t>(sizeof(T)) >= streaming_bytes;
  }

  /// All ranks' operands from one element on. Valid until the next call.
  template <Element T>
  [[nodiscard]] T const* const* operands_at(std::int64_t element) noexcept {
    std::byte* const storage = group_.slot(rank_).operands.data();
    for (int peer = 0; peer < size(); ++peer) {
      ::new (static_cast<void*>(storage + static_cast<std::size_t>(peer) * sizeof(T const*))) auto(
          static_cast<T const*>(group_.slot(peer).send) + element);
    }
    return std::launder(reinterpret_cast<T const* const*>(storage));
  }

  template <Element T>
  void count_received(std::int64_t count, int receiver) noexcept {
    group_.slot(receiver).copied_bytes.fetch_add(count * static_cast<std::int64_t>(sizeof(T)), std::memory_order_relaxed);
  }
  template <Element T>
  void count_received(std::int64_t count) noexcept {
    count_received<T>(count, rank_);
  }
  template <Element T>
  void count_pushed(std::int64_t count) noexcept {
    for (int k = 1; k < size(); ++k) count_received<T>(count, (rank_ + k) % size());
  }

  [[nodiscard]] int size() const noexcept { return group_.size(); }

  Rendezvous& group_;
  int rank_;
};

}  // namespace zero::detail
