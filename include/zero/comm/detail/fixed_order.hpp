// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Reductions over ranks in a fixed order: a binary tree over the ranks, whatever the compiler's flags, in one pass over all operands.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <zero/comm/operations.hpp>
#include <zero/core/config.hpp>
#include <zero/core/element.hpp>

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"  // Loops inlined where the count is a small constant are not vectorised, and need not be.
#endif

namespace zero::detail {

/// The value of one element, in the type it is added in. Spelled out for the types whose conversion is a shift: g++ does not inline a
/// function that lacks this one's attribute where flags differ, and a call would keep the loops from being vectorised.
template <class T>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline compute_t<T> widened(T value) noexcept {
  if constexpr (element_traits<T>::type == ElementType::bf16) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(__builtin_bit_cast(std::uint16_t, value)) << 16);
  } else {
    return static_cast<compute_t<T>>(value);
  }
}

/// One addition. Integers wrap around, as they do on every device.
template <class C>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline C combine(Sum, C a, C b) noexcept {
#if defined(__clang__)
#pragma clang fp reassociate(off)  // What ZERO_FIXED_ORDER is to g++: -Ofast would reorder at least the scalar rest of a loop.
#endif
  if constexpr (std::integral<C>) {
    using U = std::make_unsigned_t<C>;
    return static_cast<C>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

/// NaN, asked of the bits: flags that assume finite numbers fold the comparison with itself away.
template <class C>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline bool is_nan(C value) noexcept {
  if constexpr (std::same_as<C, float>) {
    return (__builtin_bit_cast(std::uint32_t, value) & 0x7fffffffu) > 0x7f800000u;
  } else if constexpr (std::same_as<C, double>) {
    return (__builtin_bit_cast(std::uint64_t, value) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
  } else {
    return false;
  }
}

/// The larger one; a NaN wins, of two NaNs the one of the lower rank.
template <class C>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline C combine(Max, C a, C b) noexcept {
  return is_nan(a) ? a : is_nan(b) ? b : a < b ? b : a;
}

/// Where the tree over n > 1 ranks splits: tree(lo, n) = tree(lo, p) + tree(lo + p, n - p) with p the largest power of two below n. A
/// group of 2^k consecutive ranks inside a larger power-of-two group is then a subtree, so sums over a mesh of such groups agree with the
/// sum over all ranks.
[[nodiscard]] constexpr int tree_split(int n) noexcept {
  int p = 1;
  while (2 * p < n) p *= 2;
  return p;
}

/// The reduction of element i over ranks Lo .. Lo + N - 1.
template <class Op, int Lo, int N, class T>
ZERO_FIXED_ORDER inline compute_t<T> tree(T const* const* from, std::int64_t i) noexcept {
  if constexpr (N == 1) {
    return widened(from[Lo][i]);
  } else {
    constexpr int p = tree_split(N);
    return combine<compute_t<T>>(Op{}, tree<Op, Lo, p>(from, i), tree<Op, Lo + p, N - p>(from, i));
  }
}

/// The one rounding at the end of a reduction.
template <class Op, class T>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline T rounded(compute_t<T> value, float factor) noexcept {
  if constexpr (std::is_same_v<Op, Sum> && RealElement<T>) {
    return static_cast<T>(static_cast<compute_t<T>>(value * static_cast<compute_t<T>>(factor)));
  } else {
    return static_cast<T>(value);
  }
}

/// to[i] = the reduction of from[0 .. N - 1][i], in one pass. `to` may be one of the operands.
template <class Op, int N, class T>
ZERO_FIXED_ORDER inline void reduce_pass(T const* const* operands, T* to, std::int64_t count, float factor) noexcept {
  T const* from[N];  // A copy whose address goes nowhere: the loop holds the pointers in registers.
  for (int rank = 0; rank < N; ++rank) from[rank] = operands[rank];
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < count; ++i) to[i] = rounded<Op, T>(tree<Op, 0, N, T>(from, i), factor);
}

/// The same without the rounding, into a block that stays in the first-level cache.
template <class Op, int N, class T>
ZERO_FIXED_ORDER inline void fold_pass(T const* const* operands, std::int64_t begin, std::int64_t count, compute_t<T>* to) noexcept {
  T const* from[N];
  for (int rank = 0; rank < N; ++rank) from[rank] = operands[rank] + begin;
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < count; ++i) to[i] = tree<Op, 0, N, T>(from, i);
}

template <class Op, class C>
ZERO_FIXED_ORDER inline void combine_blocks(C* to, C const* addend, std::int64_t count) noexcept {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < count; ++i) to[i] = combine<C>(Op{}, to[i], addend[i]);
}

template <class Op, class T>
ZERO_FIXED_ORDER inline void round_block(compute_t<T> const* from, T* to, std::int64_t count, float factor) noexcept {
  ZERO_INDEPENDENT_LOOP
  for (std::int64_t i = 0; i < count; ++i) to[i] = rounded<Op, T>(from[i], factor);
}

inline constexpr std::int64_t fold_bytes = 4096;

/// The tree over any number of ranks, for a block of at most fold_bytes. Its leaves are subtrees of up to eight ranks.
template <class Op, class T>
void fold(T const* const* from, int ranks, std::int64_t begin, std::int64_t count, compute_t<T>* to) noexcept {
  switch (ranks) {
    case 1: return fold_pass<Op, 1>(from, begin, count, to);
    case 2: return fold_pass<Op, 2>(from, begin, count, to);
    case 3: return fold_pass<Op, 3>(from, begin, count, to);
    case 4: return fold_pass<Op, 4>(from, begin, count, to);
    case 5: return fold_pass<Op, 5>(from, begin, count, to);
    case 6: return fold_pass<Op, 6>(from, begin, count, to);
    case 7: return fold_pass<Op, 7>(from, begin, count, to);
    case 8: return fold_pass<Op, 8>(from, begin, count, to);
    default: break;
  }
  int const p = tree_split(ranks);
  compute_t<T> upper[static_cast<std::size_t>(fold_bytes) / sizeof(compute_t<T>)];
  fold<Op, T>(from, p, begin, count, to);
  fold<Op, T>(from + p, ranks - p, begin, count, upper);
  combine_blocks<Op>(to, upper, count);
}

template <class Op, class T>
void reduce_folded(T const* const* from, int ranks, T* to, std::int64_t count, float factor) noexcept {
  constexpr auto block = fold_bytes / static_cast<std::int64_t>(sizeof(compute_t<T>));
  compute_t<T> values[static_cast<std::size_t>(block)];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    std::int64_t const part = count - begin < block ? count - begin : block;
    fold<Op, T>(from, ranks, begin, part, values);
    round_block<Op, T>(values, to + begin, part, factor);
  }
}

/// to[i] = round(factor * reduction over ranks of from[rank][i]) for i in [0, count), in the order of the tree. `to` may be one of the
/// operands, else it overlaps with none.
template <class Op, class T>
void reduce_in_order(T const* const* from, int ranks, T* to, std::int64_t count, float factor) noexcept {
  switch (ranks) {
    case 1: return reduce_pass<Op, 1>(from, to, count, factor);
    case 2: return reduce_pass<Op, 2>(from, to, count, factor);
    case 3: return reduce_pass<Op, 3>(from, to, count, factor);
    case 4: return reduce_pass<Op, 4>(from, to, count, factor);
    case 5: return reduce_pass<Op, 5>(from, to, count, factor);
    case 6: return reduce_pass<Op, 6>(from, to, count, factor);
    case 7: return reduce_pass<Op, 7>(from, to, count, factor);
    case 8: return reduce_pass<Op, 8>(from, to, count, factor);
    default: return reduce_folded<Op>(from, ranks, to, count, factor);
  }
}

}  // namespace zero::detail

#if defined(__clang__)
#pragma clang diagnostic pop
#endif
