// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Names numbered in the order of their addition and found by hash, in constant expressions too.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <zero/core/config.hpp>
#include <zero/core/hash.hpp>

namespace zero::detail {

/// Makes room for `more` further elements with geometric growth, so that the insertions which follow cannot fail.
template <class T>
constexpr void reserve_more(std::vector<T>& vector, std::size_t more) {
  std::size_t const needed = vector.size() + more;
  if (needed > vector.capacity()) {
    vector.reserve(needed > 2 * vector.capacity() ? needed : 2 * vector.capacity());
  }
}

/// All names lie in one `std::vector<char>`: `std::string` members do not work in constant expressions with every compiler. Open
/// addressing over a power of two of slots keeps the steps of a constant expression few.
class NameTable {
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
    if (entries_.empty()) {
      return none;
    }
    std::uint64_t const hash = hash_of(name);
    for (std::size_t slot = first_slot(hash);; slot = next_slot(slot)) {
      std::int32_t const index = slots_[slot];
      if (index == none || (this->hash(index) == hash && (*this)[index] == name)) {
        return index;
      }
    }
  }

  /// The number of the name `prefix` + '.' + `rest`, `none` if it was not added.
  [[nodiscard]] constexpr std::int32_t find(std::string_view prefix, std::string_view rest) const noexcept {
    if (entries_.empty()) {
      return none;
    }
    std::uint64_t const hash = mixed_bits(absorb(absorb(absorb(fnv_offset, prefix), "."), rest));
    for (std::size_t slot = first_slot(hash);; slot = next_slot(slot)) {
      std::int32_t const index = slots_[slot];
      if (index == none || (this->hash(index) == hash && joined((*this)[index], prefix, rest))) {
        return index;
      }
    }
  }

  /// Adds a name that is not in the table yet. Strong guarantee.
  constexpr std::int32_t add(std::string_view name) {
    reserve_more(characters_, name.size());
    reserve_more(entries_, 1);
    if (2 * (entries_.size() + 1) > slots_.size()) {
      grow_slots();
    }
    std::int32_t const index = size();
    entries_.push_back({hash_of(name), characters_.size(), name.size()});
    characters_.insert(characters_.end(), name.begin(), name.end());
    slots_[free_slot(slots_, entries_.back().hash)] = index;
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
    for (char const c : text) {
      state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    return state;
  }
  static constexpr std::uint64_t hash_of(std::string_view name) noexcept { return mixed_bits(absorb(fnv_offset, name)); }

  static constexpr bool joined(std::string_view name, std::string_view prefix, std::string_view rest) noexcept {
    return name.size() == prefix.size() + 1 + rest.size() && name.substr(0, prefix.size()) == prefix && name[prefix.size()] == '.' &&
           name.substr(prefix.size() + 1) == rest;
  }

  [[nodiscard]] constexpr std::size_t first_slot(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash) & (slots_.size() - 1);
  }
  [[nodiscard]] constexpr std::size_t next_slot(std::size_t slot) const noexcept { return (slot + 1) & (slots_.size() - 1); }

  static constexpr std::size_t free_slot(std::vector<std::int32_t> const& slots, std::uint64_t hash) noexcept {
    std::size_t slot = static_cast<std::size_t>(hash) & (slots.size() - 1);
    while (slots[slot] != none) {
      slot = (slot + 1) & (slots.size() - 1);
    }
    return slot;
  }

  constexpr void grow_slots() {
    std::vector<std::int32_t> slots(slots_.empty() ? 16 : 4 * slots_.size(), none);
    for (std::int32_t index = 0; index < size(); ++index) {
      slots[free_slot(slots, hash(index))] = index;
    }
    slots_ = std::move(slots);
  }

  std::vector<char> characters_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> slots_;
};

}  // namespace zero::detail
