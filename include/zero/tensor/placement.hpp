// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The three placements: how a value of n elements lies over the N ranks of a group.

#include <type_traits>

namespace zero {

/// Every rank holds all n elements, and they are equal.
struct Replicated {
  static constexpr char const* name = "Replicated";
};

/// Each rank holds its own contiguous part; the value is their concatenation in rank order.
struct Sharded {
  static constexpr char const* name = "Sharded";
};

/// Each rank holds all n elements, and the value is their sum over the ranks. (A mean is that sum with a factor that is applied where the
/// value is read.)
struct Partial {
  static constexpr char const* name = "Partial";
};

/// One of `Replicated`, `Sharded`, `Partial`.
template <class P>
concept Placement = std::is_same_v<P, Replicated> || std::is_same_v<P, Sharded> || std::is_same_v<P, Partial>;

}  // namespace zero
