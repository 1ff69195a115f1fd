// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Checks of one collective's arguments that need no other rank: counts, pointers, overlap, root, factor.

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>

namespace zero::detail {

/// Throws in the name of one operation.
template <class Operation>
[[noreturn]] void refuse(std::string const& what, SourceLocation where, RankName rank) {
  throw UsageError(std::string(Operation::name) + ": " + what, where, rank);
}

/// True if two ranges of elements share memory.
template <class T>
[[nodiscard]] bool overlap(T const* a, std::int64_t a_count, T const* b, std::int64_t b_count) noexcept {
  auto const a_begin = reinterpret_cast<std::uintptr_t>(a);
  auto const b_begin = reinterpret_cast<std::uintptr_t>(b);
  auto const bytes = [](std::int64_t count) { return static_cast<std::uintptr_t>(count) * sizeof(T); };
  return a_count > 0 && b_count > 0 && a_begin < b_begin + bytes(b_count) && b_begin < a_begin + bytes(a_count);
}

/// Why a count or pointer is refused. Apart from the checks, which are inlined.
template <class Operation>
[[noreturn, gnu::noinline]] void refuse_count(Operation const& operation, SourceLocation where, RankName rank) {
  std::string const count = std::to_string(operation.count);
  if (operation.count < 0) refuse<Operation>("the count is " + count, where, rank);
  refuse<Operation>("a count of " + count + " does not fit into an address space", where, rank);
}
template <class Operation>
[[noreturn, gnu::noinline]] void refuse_null(char const* which, Operation const& operation, SourceLocation where, RankName rank) {
  refuse<Operation>(which + (" is null, the count is " + std::to_string(operation.count)), where, rank);
}
template <class Operation>
[[noreturn, gnu::noinline]] void refuse_text(char const* text, SourceLocation where, RankName rank) {
  refuse<Operation>(text, where, rank);
}

template <class Operation>
void check_count(Operation const& operation, int parts, SourceLocation where, RankName rank) {
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(typename Operation::element));
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / bytes;
  if (operation.count < 0 || operation.count > most / parts) refuse_count(operation, where, rank);
}

template <class Operation>
void check_pointers(Operation const& operation, SourceLocation where, RankName rank) {
  if (operation.send != nullptr && operation.receive != nullptr) return;
  if (operation.count != 0) refuse_null(operation.send == nullptr ? "send" : "receive", operation, where, rank);
}

template <class Operation>
void check_factor(Operation const& operation, SourceLocation where, RankName rank) {
  constexpr bool scales = RealElement<typename Operation::element> && std::is_same_v<typename Operation::reduction, Sum>;
  if (!scales && operation.factor != 1.0f) refuse_text<Operation>("only sums of real elements take a factor other than 1", where, rank);
}

template <Element T>
[[gnu::noinline]] void inspect_arguments(AllGather<T> const& o, int ranks, RankName rank, SourceLocation where) {
  check_count(o, ranks, where, rank);
  check_pointers(o, where, rank);
  if (overlap(o.send, o.count, o.receive, ranks * o.count) && o.send != o.receive + rank.number * o.count) {
    refuse_text<AllGather<T>>("send overlaps with receive and is not receive + rank * count, the place of this rank's part", where, rank);
  }
}

template <Element T, class Op>
[[gnu::noinline]] void inspect_arguments(ReduceScatter<T, Op> const& o, int ranks, RankName rank, SourceLocation where) {
  check_count(o, ranks, where, rank);
  check_pointers(o, where, rank);
  check_factor(o, where, rank);
  if (overlap<T>(o.send, ranks * o.count, o.receive, o.count) && o.receive != o.send + rank.number * o.count) {
    refuse_text<ReduceScatter<T, Op>>("receive overlaps with send and is not send + rank * count, the place of this rank's part", where,
                                      rank);
  }
}

template <Element T, class Op>
[[gnu::noinline]] void inspect_arguments(AllReduce<T, Op> const& o, int, RankName rank, SourceLocation where) {
  check_count(o, 1, where, rank);
  check_pointers(o, where, rank);
  check_factor(o, where, rank);
  if (overlap<T>(o.send, o.count, o.receive, o.count) && o.send != o.receive) {
    refuse_text<AllReduce<T, Op>>("send and receive overlap and are not the same", where, rank);
  }
}

template <Element T>
[[gnu::noinline]] void inspect_arguments(Broadcast<T> const& o, int ranks, RankName rank, SourceLocation where) {
  check_count(o, 1, where, rank);
  if (o.count > 0 && o.buffer == nullptr) refuse_null("buffer", o, where, rank);
  if (o.root < 0 || o.root >= ranks) {
    refuse<Broadcast<T>>("the root is " + std::to_string(o.root) + ", the ranks are 0 to " + std::to_string(ranks - 1), where, rank);
  }
}

template <Element T>
[[gnu::noinline]] void inspect_arguments(AllToAll<T> const& o, int ranks, RankName rank, SourceLocation where) {
  check_count(o, ranks, where, rank);
  if (o.own_part || ranks > 1) check_pointers(o, where, rank);  // One rank receives nothing from others.
  if (o.stride != 0 && o.stride < o.count) {
    refuse<AllToAll<T>>("the stride is " + std::to_string(o.stride) + ", the count " + std::to_string(o.count), where, rank);
  }
  if (o.stride > std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(sizeof(T)) / ranks) {
    refuse<AllToAll<T>>("a stride of " + std::to_string(o.stride) + " does not fit into an address space", where, rank);
  }
  std::int64_t const sent = o.count == 0 ? 0 : (ranks - 1) * o.send_stride() + o.count;
  if (overlap<T>(o.send, sent, o.receive, (o.own_part ? ranks : ranks - 1) * o.count))
    refuse_text<AllToAll<T>>("send and receive overlap", where, rank);
}

inline void inspect_arguments(Barrier const&, int, RankName, SourceLocation) noexcept {}

/// True for counts of which it takes one comparison to see that all parts together fit into an address space: not 0, and bytes in 32 bits.
template <class T>
[[nodiscard]] constexpr bool plain_count(std::int64_t count) noexcept {
  constexpr std::uint64_t most = (std::uint64_t{1} << 32) / sizeof(T);
  return static_cast<std::uint64_t>(count) - 1 < most;
}

/// True if `part` is the one of that number in `whole`, which has `parts` of `count` elements, or shares no memory with it. Not of null pointers.
template <class T>
[[nodiscard, gnu::always_inline]] inline bool in_place_or_apart(T const* part, T const* whole, std::int64_t count, int parts,
                                                                int number) noexcept {
  if (whole == nullptr) return false;
  std::uintptr_t const bytes = static_cast<std::uintptr_t>(count) * sizeof(T);
  std::uintptr_t const begin = reinterpret_cast<std::uintptr_t>(part) - reinterpret_cast<std::uintptr_t>(whole);
  if (begin == static_cast<std::uintptr_t>(number) * bytes) return true;
  // Seen from the begin of `whole` the part begins in [-bytes + 1, parts * bytes) where they overlap.
  return part != nullptr && begin + (bytes - 1) >= (static_cast<std::uintptr_t>(parts) + 1) * bytes - 1;
}

/// By its bits: floating-point numbers are compared twice, for order and for NaN.
[[nodiscard]] inline bool is_one(float factor) noexcept {
  return std::bit_cast<std::uint32_t>(factor) == std::bit_cast<std::uint32_t>(1.0f);
}

/// True where a few comparisons show that the arguments are right. False says nothing: `inspect_arguments` finds out.
template <class Operation>
[[nodiscard]] constexpr bool plainly_right(Operation const&, int, int) noexcept {
  return false;
}
template <Element T>
[[nodiscard, gnu::always_inline]] inline bool plainly_right(AllGather<T> const& o, int ranks, int rank) noexcept {
  return plain_count<T>(o.count) && in_place_or_apart<T>(o.send, o.receive, o.count, ranks, rank);
}
template <Element T, class Op>
[[nodiscard, gnu::always_inline]] inline bool plainly_right(ReduceScatter<T, Op> const& o, int ranks, int rank) noexcept {
  return plain_count<T>(o.count) && is_one(o.factor) && in_place_or_apart<T>(o.receive, o.send, o.count, ranks, rank);
}
template <Element T, class Op>
[[nodiscard, gnu::always_inline]] inline bool plainly_right(AllReduce<T, Op> const& o, int, int) noexcept {
  return plain_count<T>(o.count) && is_one(o.factor) && in_place_or_apart<T>(o.send, o.receive, o.count, 1, 0);
}
template <Element T>
[[nodiscard, gnu::always_inline]] inline bool plainly_right(Broadcast<T> const& o, int ranks, int) noexcept {
  return plain_count<T>(o.count) && o.buffer != nullptr && static_cast<unsigned>(o.root) < static_cast<unsigned>(ranks);
}
template <Element T>
[[nodiscard, gnu::always_inline]] inline bool plainly_right(AllToAll<T> const& o, int ranks, int) noexcept {
  if (!plain_count<T>(o.count) || o.send == nullptr || o.receive == nullptr) return false;
  std::int64_t const stride = o.send_stride();
  if (!plain_count<T>(stride) || stride < o.count) return false;
  // Either begins where the other has ended, seen around the address space.
  auto const apart = reinterpret_cast<std::uintptr_t>(o.receive) - reinterpret_cast<std::uintptr_t>(o.send);
  auto const sent = static_cast<std::uintptr_t>((ranks - 1) * stride + o.count) * sizeof(T);
  auto const received = static_cast<std::uintptr_t>((o.own_part ? ranks : ranks - 1) * o.count) * sizeof(T);
  return apart >= sent && std::uintptr_t{0} - apart >= received;
}
[[nodiscard]] constexpr bool plainly_right(Barrier const&, int, int) noexcept { return true; }

/// @throws UsageError for arguments that are wrong on this rank alone.
template <class Operation>
  requires requires(Operation const& o) { inspect_arguments(o, 1, 0, SourceLocation()); }
void check_arguments(Operation const& operation, int ranks, RankName rank, SourceLocation where) {
  if (!plainly_right(operation, ranks, rank.number)) inspect_arguments(operation, ranks, rank, where);
}

}  // namespace zero::detail
