// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The sum of squares of a gradient, formed so that it has the same bits for every way of cutting the gradient over ranks.

#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/layout/ids.hpp>
#include <zero/layout/partition.hpp>
#include <zero/train/arithmetic.hpp>
#include <zero/train/exact_sum.hpp>

namespace zero {

namespace detail {

/// A block of a segment is this many elements from a multiple of it on. Shards begin at multiples of the default shard alignment, the same
/// number, so no cut divides a block.
inline constexpr std::int64_t norm_block = 128;
inline constexpr int norm_lanes = 16;
inline constexpr std::uintptr_t norm_prefetch_bytes = 4096;

/// The sum of the squares of up to `norm_block` elements in fp64: element i is added to lane i mod 16, the lanes are added as a binary
/// tree. Always this order, whatever the flags. Squares of fp32 and 16-bit numbers are exact in fp64, so that fusing them into the addition
/// does not change its rounding.
/// @tparam Fused by multiply-adds, which only pays on a processor that has them; not for fp64
template <int Lanes, bool Fused = false, RealElement T>
ZERO_HOST_DEVICE ZERO_INLINE double tree_of_squares(T const* data, std::int64_t count) {
  ZERO_WRITTEN_ORDER_BODY
  static_assert(!Fused || sizeof(T) < sizeof(double));
  double lanes[Lanes];
  for (int l = 0; l < Lanes; ++l) {
    double const x = l < count ? static_cast<double>(static_cast<compute_t<T>>(data[l])) : 0.0;
    lanes[l] = product(x, x);
  }
  std::int64_t i = Lanes;
  for (; i + Lanes <= count; i += Lanes) {
    for (int l = 0; l < Lanes; ++l) {
      double const x = static_cast<double>(static_cast<compute_t<T>>(data[i + l]));
      if constexpr (Fused) lanes[l] = __builtin_fma(x, x, lanes[l]);
      else lanes[l] += product(x, x);
    }
  }
  for (int l = 0; i + l < count; ++l) {
    double const x = static_cast<double>(static_cast<compute_t<T>>(data[i + l]));
    lanes[l] += product(x, x);
  }
  for (int width = Lanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

/// `tree_of_squares` of a whole block.
template <bool Fused, RealElement T>
ZERO_INLINE ZERO_WRITTEN_ORDER double block_of_squares(T const* data) {
  if constexpr (element_traits<T>::type == ElementType::bf16 && std::endian::native == std::endian::little) {
    // Elements with even and with odd numbers apart, which are fp32 numbers where they lie in words of 32 bits. Between them the tree
    // adds last. Widening 16 bits by 16 bits is what the processor would wait for.
    ZERO_WRITTEN_ORDER_BODY
    constexpr int words = norm_block / 2;
    constexpr int lanes = norm_lanes / 2;
    float values[2][words];
    for (int k = 0; k < words; ++k) {
      std::uint32_t pair;
      std::memcpy(&pair, data + 2 * k, sizeof(pair));
      values[0][k] = __builtin_bit_cast(float, pair << 16);
      values[1][k] = __builtin_bit_cast(float, pair & 0xffff0000u);
    }
    return tree_of_squares<lanes, Fused>(values[0], words) + tree_of_squares<lanes, Fused>(values[1], words);
  } else {
    return tree_of_squares<norm_lanes, Fused>(data, norm_block);
  }
}

template <bool Fused, RealElement T>
ZERO_INLINE ZERO_WRITTEN_ORDER void sum_blocks(T const* data, int blocks, double* sums) {
  for (int b = 0; b < blocks; ++b, data += norm_block) {
    // While the sums are added exactly nothing else asks for memory.
    std::uintptr_t const ahead = reinterpret_cast<std::uintptr_t>(data) + norm_prefetch_bytes;
    for (std::uintptr_t k = 0; k < norm_block * sizeof(T); k += 64) {
      __builtin_prefetch(reinterpret_cast<void const*>(ahead + k));  // NOLINT(performance-no-int-to-ptr): may lie behind the array
    }
    sums[b] = block_of_squares<Fused>(data);
  }
}

#if defined(__FMA__)
inline constexpr bool built_for_fma = true;
#else
inline constexpr bool built_for_fma = false;
#endif

/// The sums of whole blocks that follow each other, one number a block.
template <RealElement T>
ZERO_TARGET_CLONES ZERO_WRITTEN_ORDER void block_sums(T const* data, int blocks, double* sums) {
  sum_blocks<built_for_fma && sizeof(T) < sizeof(double)>(data, blocks, sums);
}

#if defined(ZERO_TARGET_FMA)
/// The same sums on a processor that has multiply-adds.
template <RealElement T>
ZERO_TARGET_FMA ZERO_WRITTEN_ORDER void fused_block_sums(T const* data, int blocks, double* sums) {
  sum_blocks<true>(data, blocks, sums);
}
#endif

/// The same sums, as fast as this processor can.
template <RealElement T>
void fastest_block_sums(T const* data, int blocks, double* sums) {
#if defined(ZERO_TARGET_FMA)
  if constexpr (sizeof(T) < sizeof(double)) {
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fused_block_sums(data, blocks, sums);
  }
#endif
  block_sums(data, blocks, sums);
}

/// The sum of a part of a block.
template <RealElement T>
ZERO_WRITTEN_ORDER double part_sum(T const* data, std::int64_t count) {
  return tree_of_squares<norm_lanes>(data, count);
}

/// The elements of one block that are in [offset, offset + count) are a part of it; each part has a sum of its own.
template <RealElement T>
void accumulate_square_sum(exact_square_sum_t<T>& into, T const* data, std::int64_t offset, std::int64_t count, std::int64_t block) {
  constexpr int batch = 64;
  double sums[batch];
  std::int64_t i = 0;
  while (i < count) {
    for (std::int64_t blocks = 0; blocks + batch <= into.adds_between_carries && i < count;) {
      std::int64_t const inside = (offset + i) % block;
      std::int64_t const whole = block == norm_block && inside == 0 ? (count - i) / norm_block : 0;
      if (whole > 0) {
        int const n = whole < batch ? static_cast<int>(whole) : batch;
        fastest_block_sums(data + i, n, sums);
        for (int b = 0; b < n; ++b) into.add(sums[b]);
        i += n * norm_block;
        blocks += n;
      } else {
        std::int64_t const rest = block - inside < count - i ? block - inside : count - i;
        into.add(part_sum(data + i, rest));
        i += rest;
        ++blocks;
      }
    }
    into.carry();
  }
}

/// The parts of blocks that a run of elements without gaps has, as a functor over them for `Device::accumulate`.
template <RealElement T>
struct SquareSum {
  static constexpr bool does_ranges = true;

  exact_square_sum_t<T>* into;
  T const* data;        ///< [count]
  std::int64_t offset;  ///< of the run in its segment [elements]
  std::int64_t count;   ///< [elements]
  std::int64_t block;   ///< [elements]

  /// How many blocks the run touches.
  [[nodiscard]] ZERO_HOST_DEVICE std::int64_t parts() const noexcept {
    return count == 0 ? 0 : (offset + count - 1) / block - offset / block + 1;
  }
  /// Where a part begins in the run; the last one ends at `begin(parts())`.
  [[nodiscard]] ZERO_HOST_DEVICE std::int64_t begin(std::int64_t part) const noexcept {
    std::int64_t const at = (offset / block + part) * block - offset;
    return at < 0 ? 0 : at < count ? at : count;
  }

  void operator()(std::int64_t part) const { (*this)(part, part + 1); }
  /// The parts [first, last), on the calling thread.
  void operator()(std::int64_t first, std::int64_t last) const {
    std::int64_t const from = begin(first);
    accumulate_square_sum(*into, data + from, offset + from, begin(last) - from, block);
  }
};

/// Calls `f(SquareSum)` for each run without a gap among the elements [begin, end) of a segment.
/// @param data  element `begin` of the segment
template <RealElement T, class F>
void for_each_square_sum(exact_square_sum_t<T>* into, T const* data, Partition const& partition, SegmentId segment, std::int64_t begin,
                         std::int64_t end, F&& f) {
  std::int64_t const block = std::gcd(partition.options().shard_alignment, norm_block);
  std::int64_t first = begin;
  std::int64_t last = begin;
  partition.pieces(segment, begin, end, [&](ParameterId, std::int64_t, std::int64_t offset, std::int64_t count) {
    if (offset != last) {
      if (last > first) f(SquareSum<T>{into, data + (first - begin), first, last - first, block});
      first = offset;
    }
    last = offset + count;
  });
  if (last > first) f(SquareSum<T>{into, data + (first - begin), first, last - first, block});
}

}  // namespace detail

/// Adds the squares of the elements [begin, end) of a segment to an exact sum; gaps and padding are left out, whatever they hold.
///
/// Squares are added in fp64 inside fixed blocks of 128 elements at the segment's offsets (a fixed tree of 16 lanes; a gap between
/// parameters divides a block), then the block sums exactly. So the sum over all owners, each element once, has the same bits for every
/// number of ranks, every stage and every order of merging, as long as the shard alignment is a multiple of 128, which the default is.
/// (With another alignment the blocks are the greatest common divisor of both, and sums of that alignment agree with each other.)
///
/// Relative error of a block sum: at most 12 * 2^-53 for fp32 and 16-bit elements; nothing is lost after that. Runs on the calling thread:
/// enqueue it.
///
/// @param into carried (as it is after zeroing, and after this function); carried again afterwards
/// @param data element `begin` of the segment
/// @param begin, end a shard range, or multiples of 128 or the segment's end [elements]
/// @throws LayoutError if not 0 <= begin <= end <= padded_elements
template <RealElement T>
void accumulate_square_sum(exact_square_sum_t<T>& into, T const* data, Partition const& partition, SegmentId segment, std::int64_t begin,
                           std::int64_t end) {
  detail::for_each_square_sum(&into, data, partition, segment, begin, end, [](detail::SquareSum<T> const& run) { run(0, run.parts()); });
}

}  // namespace zero
