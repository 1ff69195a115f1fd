// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Names numbered in the order of their addition and found by hash, in constant expressions too.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include <zero/core/config.hpp>
#include <zero/core/hash.hpp>
#include <zero/core/plain_array.hpp>

namespace zero::detail {

/// Names in the order of their addition; found through open addressing over a power of two of slots. Their text is one array of characters:
/// `std::string` members do not work in constant expressions with every compiler.
class NameTable {
  // Above its uses: clang 14 evaluates no member template that it has not seen the body of.
  template <class Matches>
  [[nodiscard]] constexpr std::int32_t search(std::uint64_t hash, Matches matches) const noexcept {
    if (slots_.size() == 0) {
      return none;
    }
    std::size_t const mask = slots_.size() - 1;
    for (std::size_t slot = static_cast<std::size_t>(hash) & mask;; slot = (slot + 1) & mask) {
      std::int32_t const index = slots_[slot];
      if (index == none || (this->hash(index) == hash && matches((*this)[index]))) {
        return index;
      }
    }
  }

public:
  static constexpr std::int32_t none = -1;

  [[nodiscard]] constexpr std::int32_t size() const noexcept { return static_cast<std::int32_t>(entries_.size()); }

  /// Valid until the next `add`.
  [[nodiscard]] constexpr std::string_view operator[](std::int32_t index) const noexcept {
    Entry const& entry = entries_[static_cast<std::size_t>(index)];
    return {characters_.data() + entry.begin, entry.size};
  }

  /// Hash of a name's characters (FNV-1a, then mixed).
  [[nodiscard]] constexpr std::uint64_t hash(std::int32_t index) const noexcept { return entries_[static_cast<std::size_t>(index)].hash; }

  /// The number of a name, `none` if it was not added.
  [[nodiscard]] constexpr std::int32_t find(std::string_view name) const noexcept {
    return search(mixed_bits(absorb(fnv_offset, name)), [&](std::string_view candidate) { return candidate == name; });
  }

  /// The number of the name `prefix` + '.' + `rest`, `none` if it was not added.
  [[nodiscard]] constexpr std::int32_t find(std::string_view prefix, std::string_view rest) const noexcept {
    return search(mixed_bits(absorb(absorb(absorb(fnv_offset, prefix), "."), rest)), [&](std::string_view candidate) {
      return candidate.size() == prefix.size() + 1 + rest.size() && candidate.substr(0, prefix.size()) == prefix &&
             candidate[prefix.size()] == '.' && candidate.substr(prefix.size() + 1) == rest;
    });
  }

  /// Adds a name that is not in the table yet; it may be a part of one that is. Strong guarantee.
  constexpr std::int32_t add(std::string_view name) {
    entries_.reserve_more(1);
    if (2 * (entries_.size() + 1) > slots_.size()) {
      grow_slots();
    }
    std::int32_t const index = size();
    Entry const entry{mixed_bits(absorb(fnv_offset, name)), characters_.size(), name.size()};  // `name` may end with the next line
    characters_.append(name.data(), name.size());                                              // the last that can fail
    entries_.push_back(entry);
    take_slot(slots_, entry.hash, index);
    return index;
  }

private:
  struct Entry {
    std::uint64_t hash;
    std::size_t begin;
    std::size_t size;
  };

  static constexpr std::uint64_t fnv_offset = 0xcbf29ce484222325u;

  static constexpr std::uint64_t absorb(std::uint64_t state, std::string_view text) noexcept {
    char const* const characters = text.data();  // pointers cost fewer steps than iterators
    for (std::size_t i = 0, n = text.size(); i < n; ++i) {
      state = (state ^ static_cast<unsigned char>(characters[i])) * 0x100000001b3u;
    }
    return state;
  }

  static constexpr void take_slot(PlainArray<std::int32_t>& slots, std::uint64_t hash, std::int32_t index) noexcept {
    std::size_t const mask = slots.size() - 1;
    std::size_t slot = static_cast<std::size_t>(hash) & mask;
    while (slots[slot] != none) {
      slot = (slot + 1) & mask;
    }
    slots[slot] = index;
  }

  constexpr void grow_slots() {
    PlainArray<std::int32_t> slots(slots_.size() == 0 ? 16 : 4 * slots_.size(), none);
    for (std::int32_t index = 0; index < size(); ++index) {
      take_slot(slots, hash(index), index);
    }
    slots_ = std::move(slots);
  }

  PlainArray<char> characters_;
  PlainArray<Entry> entries_;
  PlainArray<std::int32_t> slots_;
};

}  // namespace zero::detail
