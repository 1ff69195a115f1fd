// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The reduction of what all ranks have sent to one, lying rank after rank in one buffer, in the order of fixed_order.hpp, on any device.

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

/// Reduces one element. The recursion of the tree as a loop: complete subtrees are merged as in a binary counter, and what is left at the
/// end, each of half the size of the one before or less, from the right.
template <class Op, Element T>
struct OrderedElement {
  T const* staged;  ///< Rank s's element i lies at staged[s * count + i].
  T* to;
  std::int64_t count;
  std::int32_t ranks;
  float factor;

  ZERO_HOST_DEVICE ZERO_FIXED_ORDER void operator()(std::int64_t i) const noexcept {
    using C = compute_t<T>;
    C sums[32];
    sums[0] = widened(staged[i]);
    std::int32_t top = 1;
    for (std::int32_t rank = 1; rank < ranks; ++rank) {
      sums[top++] = widened(staged[rank * count + i]);
      for (std::uint32_t done = static_cast<std::uint32_t>(rank) + 1; (done & 1u) == 0; done >>= 1, --top)
        sums[top - 2] = combine<C>(Op{}, sums[top - 2], sums[top - 1]);
    }
    for (; top > 1; --top) sums[top - 2] = combine<C>(Op{}, sums[top - 2], sums[top - 1]);
    to[i] = rounded<Op, T>(sums[0], factor);
  }
};

/// The same for all elements, on the host: one pass over N pointers, which the compiler vectorises.
template <class Op, Element T>
struct OrderedPass {
  OrderedElement<Op, T> what;
  std::byte* pointers;  ///< Room for one pointer a rank.

  void operator()() const noexcept {
    for (std::int32_t rank = 0; rank < what.ranks; ++rank) {
      ::new (static_cast<void*>(pointers + static_cast<std::size_t>(rank) * sizeof(T const*))) auto(what.staged + rank * what.count);
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
