// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A 64-bit hash for constant expressions: ranks compare layouts and options by it, initial values are keyed by names through it.

#include <cstdint>
#include <string_view>

namespace zero {

/// Mixes the bits of one 64-bit value so that each output bit depends on each input bit (the finaliser of SplitMix64:
/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
[[nodiscard]] constexpr std::uint64_t mixed_bits(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// Hash of a sequence of integers and texts. Order matters and texts are delimited: ("ab", "c") and ("a", "bc") differ.
/// It tells apart what differs by accident; it is no defence against someone who looks for collisions.
class Hasher {
public:
  constexpr Hasher& add(std::uint64_t value) noexcept {
    state_ = mixed_bits(state_ ^ value);
    return *this;
  }

  constexpr Hasher& add(std::string_view text) noexcept {
    add(static_cast<std::uint64_t>(text.size()));
    for (char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    return *this;
  }

  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return state_; }

private:
  std::uint64_t state_ = 0x7a65726fu;
};

}  // namespace zero
