// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A model's values on the host, put together from what the ranks hold, and compared to the bit.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <zero/core/hash.hpp>
#include <zero/layout/parameter_layout.hpp>

#include "support/model.hpp"

namespace zero::test {

/// By parameter, then by element.
using Values = std::vector<std::vector<double>>;

[[nodiscard]] inline Values empty_values(ParameterLayout const& layout) {
  Values result;
  for (ParameterId id : layout.parameters()) result.emplace_back(static_cast<std::size_t>(layout.elements(id)));
  return result;
}

/// What one rank holds.
class RankValues final : public Visitor {
public:
  RankValues() = default;
  RankValues(AnyModel& model, Kept kept) : values(empty_values(model.partition().layout())), held(values) { model.visit(kept, *this); }
  static RankValues whole(AnyModel& model) {
    RankValues result;
    result.values = empty_values(model.partition().layout());
    result.held = result.values;
    model.visit_whole(result);
    return result;
  }

  void visit(ParameterId id, std::int64_t first, std::span<double const> run) override {
    for (std::size_t i = 0; i < run.size(); ++i) {
      auto const at = static_cast<std::size_t>(first) + i;
      values[static_cast<std::size_t>(to_index(id))][at] = run[i];
      held[static_cast<std::size_t>(to_index(id))][at] += 1;
    }
  }

  Values values;
  Values held;  ///< how often an element was visited
};

/// How many elements differ in their bits.
[[nodiscard]] inline std::int64_t differences(Values const& a, Values const& b) {
  if (a.size() != b.size()) return -1;
  std::int64_t result = 0;
  for (std::size_t id = 0; id < a.size(); ++id) {
    if (a[id].size() != b[id].size()) return -1;
    for (std::size_t i = 0; i < a[id].size(); ++i) {
      result += std::bit_cast<std::uint64_t>(a[id][i]) != std::bit_cast<std::uint64_t>(b[id][i]) ? 1 : 0;
    }
  }
  return result;
}

/// How many elements that `rank` holds differ from `expected`, or are visited twice.
[[nodiscard]] inline std::int64_t differences(RankValues const& rank, Values const& expected) {
  std::int64_t result = 0;
  for (std::size_t id = 0; id < expected.size(); ++id) {
    for (std::size_t i = 0; i < expected[id].size(); ++i) {
      if (rank.held[id][i] == 0) continue;
      bool const equal = std::bit_cast<std::uint64_t>(rank.values[id][i]) == std::bit_cast<std::uint64_t>(expected[id][i]);
      result += equal && rank.held[id][i] == 1 ? 0 : 1;
    }
  }
  return result;
}

/// What the ranks hold together. `faults` counts elements that two ranks hold with different bits, and (of trainable parameters, or all) those
/// that no rank holds.
[[nodiscard]] inline Values together(ParameterLayout const& layout, std::span<RankValues const> ranks, bool all, std::int64_t& faults) {
  Values result = empty_values(layout);
  for (ParameterId id : layout.parameters()) {
    auto const p = static_cast<std::size_t>(to_index(id));
    for (std::size_t i = 0; i < result[p].size(); ++i) {
      bool found = false;
      for (RankValues const& rank : ranks) {
        if (rank.held[p][i] == 0) continue;
        if (found && std::bit_cast<std::uint64_t>(rank.values[p][i]) != std::bit_cast<std::uint64_t>(result[p][i])) ++faults;
        result[p][i] = rank.values[p][i];
        found = true;
      }
      if (!found && (all || layout.trainable(id))) ++faults;
    }
  }
  return result;
}

[[nodiscard]] inline std::uint64_t hash_of(Values const& values) {
  Hasher hasher;
  for (auto const& parameter : values) {
    for (double value : parameter) hasher.add(std::bit_cast<std::uint64_t>(value));
  }
  return hasher.value();
}

}  // namespace zero::test
