// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Who is in a group that a split makes, in its order.

#include <cstddef>

#include <zero/core/plain_array.hpp>

namespace zero::detail {

/// The ranks of a color, ordered by key, then by rank.
/// @param choice_of choice_of(rank) has the members `color` and `key`.
template <class ChoiceOf>
[[nodiscard]] PlainArray<int> ranks_of_color(int ranks, int color, ChoiceOf const& choice_of) {
  PlainArray<int> order;
  for (int rank = 0; rank < ranks; ++rank) {
    if (choice_of(rank).color != color) continue;
    std::size_t place = order.size();
    while (place > 0 && choice_of(order[place - 1]).key > choice_of(rank).key) --place;
    order.insert(place, rank);
  }
  return order;
}

}  // namespace zero::detail
