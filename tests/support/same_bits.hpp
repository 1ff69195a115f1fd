// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Comparison to the bit: NaNs are equal to themselves, zeros of different sign are not.

#include <cstring>
#include <vector>

namespace zero::test {

template <class T>
[[nodiscard]] bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace zero::test
