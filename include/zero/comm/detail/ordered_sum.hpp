// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The reduction of what all ranks have sent to one, lying rank after rank in one buffer, and of its own, in the order of fixed_order.hpp, on any
/// device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include <zero/comm/detail/fixed_order.hpp>
#include <zero/core/config.hpp>
#include <zero/core/element.hpp>
#include <zero/device/device.hpp>
#include <zero/device/host_device.hpp>

namespace zero::detail {

/// One step of a reduction. On a device in PTX for fp32: the compiler's own would take denormal numbers for 0 under --use_fast_math.
template <class Op, class C>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline C merged(C a, C b) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<C, float> && std::is_same_v<Op, Sum>) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
  } else if constexpr (std::is_same_v<C, float> && std::is_same_v<Op, Max>) {
    float larger;
    asm("{.reg .pred less; setp.lt.f32 less, %1, %2; selp.f32 %0, %2, %1, less;}" : "=f"(larger) : "f"(a), "f"(b));
    return is_nan(a) ? a : is_nan(b) ? b : larger;
  }
#endif
  return combine<C>(Op{}, a, b);
}

/// The one rounding, of fp32 on a device for the same reason.
template <class Op, Element T>
ZERO_HOST_DEVICE ZERO_FIXED_ORDER inline T rounded_once(compute_t<T> value, float factor) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<compute_t<T>, float> && std::is_same_v<Op, Sum>) {
    float scaled;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(scaled) : "f"(value), "f"(factor));
    return static_cast<T>(scaled);
  } else if constexpr (std::is_same_v<T, double> && std::is_same_v<Op, Sum>) {
    double widened_factor;
    asm("cvt.f64.f32 %0, %1;" : "=d"(widened_factor) : "f"(factor));
    return value * widened_factor;
  }
#endif
  return rounded<Op, T>(value, factor);
}

/// Reduces one element. Up to eight ranks are one expression. Of more, subtrees of eight are merged as in a binary counter; what is left at the
/// end, each of half the size of the one before or less, from the right. Recursion of templates: with constant indices all of it stays in
/// registers of a device.
template <class Op, Element T>
struct OrderedElement {
  T const* staged;  ///< What has been received: parts of `count` elements, in the order of the ranks.
  T const* own;     ///< This rank's part.
  T* to;            ///< May be `own`.
  std::int64_t count;
  std::int32_t ranks;
  std::int32_t rank;  ///< Whose part is not staged; `ranks` where all are.
  float factor;

  ZERO_HOST_DEVICE ZERO_FIXED_ORDER void operator()(std::int64_t i) const noexcept {
    to[i] = rounded_once<Op, T>(ranks <= 8 ? small_tree(0, ranks, i) : large_tree(i), factor);
  }

  /// Where the part of that rank begins.
  [[nodiscard]] ZERO_HOST_DEVICE T const* part(std::int32_t of) const noexcept {
    return of == rank ? own : staged + (of > rank ? of - 1 : of) * count;
  }

private:
  using C = compute_t<T>;

  /// The tree over N ranks. (P is a parameter because nvcc wants no host function in the body.)
  template <int N, int P = tree_split(N)>
  ZERO_HOST_DEVICE ZERO_FIXED_ORDER C tree_from(std::int32_t first, std::int64_t i) const noexcept {
    if constexpr (N == 1) {
      return widened(part(first)[i]);
    } else {
      return merged<Op>(tree_from<P>(first, i), tree_from<N - P>(first + P, i));
    }
  }

  ZERO_HOST_DEVICE ZERO_FIXED_ORDER C small_tree(std::int32_t first, std::int32_t n, std::int64_t i) const noexcept {
    switch (n) {
      case 1: return tree_from<1>(first, i);
      case 2: return tree_from<2>(first, i);
      case 3: return tree_from<3>(first, i);
      case 4: return tree_from<4>(first, i);
      case 5: return tree_from<5>(first, i);
      case 6: return tree_from<6>(first, i);
      case 7: return tree_from<7>(first, i);
      default: return tree_from<8>(first, i);
    }
  }

  static constexpr int levels = 28;  // of 8 << level ranks: more than an int counts

  ZERO_HOST_DEVICE ZERO_FIXED_ORDER C large_tree(std::int64_t i) const noexcept {
    C sums[levels] = {};
    std::int32_t const blocks = ranks / 8;
    for (std::int32_t block = 0; block < blocks; ++block) add_block<0>(sums, block, tree_from<8>(8 * block, i));
    if (ranks % 8 == 0) return collected<0>(sums, blocks, false, C{});
    return collected<0>(sums, blocks, true, small_tree(8 * blocks, ranks % 8, i));
  }

  /// Adds one to the counter, whose value is `block`.
  template <int Level>
  ZERO_HOST_DEVICE ZERO_FIXED_ORDER static void add_block(C (&sums)[levels], std::int32_t block, C sum) noexcept {
    if ((block >> Level & 1) == 0) sums[Level] = sum;
    else if constexpr (Level + 1 < levels) add_block<Level + 1>(sums, block, merged<Op>(sums[Level], sum));
  }

  /// What the levels of the counter hold, with what comes after them, if there is `any`.
  template <int Level>
  ZERO_HOST_DEVICE ZERO_FIXED_ORDER static C collected(C const (&sums)[levels], std::int32_t blocks, bool any, C sum) noexcept {
    if constexpr (Level < levels) {
      bool const held = (blocks >> Level & 1) != 0;
      if (held) sum = any ? merged<Op>(sums[Level], sum) : sums[Level];
      return collected<Level + 1>(sums, blocks, any || held, sum);
    } else {
      return sum;
    }
  }
};

/// The same for all elements, on the host: one pass over N pointers, which the compiler vectorises.
template <class Op, Element T>
struct OrderedPass {
  OrderedElement<Op, T> what;
  std::byte* pointers;  ///< Room for one pointer a rank.

  void operator()() const noexcept {
    for (std::int32_t rank = 0; rank < what.ranks; ++rank) {
      ::new (static_cast<void*>(pointers + static_cast<std::size_t>(rank) * sizeof(T const*))) auto(what.part(rank));
    }
    reduce_in_order<Op>(std::launder(reinterpret_cast<T const* const*>(pointers)), what.ranks, what.to, what.count, what.factor);
  }
};

/// Reduces `sum.count` elements on the stream.
/// @param pointers room for one pointer a rank, used on the host until the stream has passed.
template <Device D, class Op, Element T>
void reduce_staged(typename D::Stream stream, OrderedElement<Op, T> const& sum, std::byte* pointers) {
  if constexpr (std::is_same_v<D, HostDevice>) {
    D::run(stream, OrderedPass<Op, T>{sum, pointers});
  } else {
    D::for_each(stream, sum.count, sum);
  }
}

}  // namespace zero::detail
