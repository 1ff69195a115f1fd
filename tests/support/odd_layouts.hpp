// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Layouts that hit the corners of the geometry: sizes around the alignments, scalars, empty and frozen parameters, ties, empty units.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <zero/core/hash.hpp>
#include <zero/layout/parameter_layout.hpp>

namespace zero::test {

/// Two units of odd sizes, one parameter frozen, one tied: small enough for runs of many passes.
inline ParameterLayout small_layout() {
  ParameterLayout layout;
  Unit const a = layout.add_unit("a");
  Unit const b = layout.add_unit("b");
  layout.add(a, "a.weight", {7, 5});
  layout.add(a, "a.frozen", {3}, {.trainable = false});
  ParameterId const shared = layout.add(a, "a.shared", {131});
  layout.add(b, "b.weight", {2, 3});
  layout.add(b, "b.scale", {});
  layout.tie(shared, b);
  return layout;
}

/// Two tied parameters, one frozen, units of several sizes.
inline ParameterLayout tied_layout() {
  ParameterLayout layout;
  Unit const embed = layout.add_unit("embed");
  Unit const block = layout.add_unit("block");
  Unit const head = layout.add_unit("head");
  ParameterId const tokens = layout.add(embed, "tokens", {37, 11});
  layout.add(embed, "positions", {13, 11});
  layout.add(block, "matrix", {11, 23});
  layout.add(block, "bias", {23});
  layout.add(block, "fixed", {9}, {.trainable = false});
  ParameterId const scale = layout.add(block, "scale", {});
  layout.add(head, "norm", {11});
  layout.tie(tokens, head);
  layout.tie(scale, embed);
  layout.tie(scale, head);
  return layout;
}

/// A layout drawn from `seed`: up to 4 units of up to 4 parameters, about one in four parameters frozen, about one in five tied to other units.
/// At least one parameter is trainable.
inline ParameterLayout odd_layout(std::uint64_t seed) {
  std::uint64_t draws = 0;
  auto const draw = [&](int n) { return static_cast<int>(Hasher{}.add(seed).add(++draws).value() % static_cast<std::uint64_t>(n)); };
  Shape const shapes[] = {{}, {0}, {1}, {2}, {3}, {31}, {7, 5}, {127}, {128}, {129}, {2, 0, 3}, {13, 11}, {1, 257}, {509}};
  ParameterLayout layout;
  int const units = 1 + draw(4);
  for (int u = 0; u < units; ++u) layout.add_unit("unit" + std::to_string(u));
  std::vector<ParameterId> ids{layout.add(Unit{}, "unit0.first", {61})};
  for (int u = 0; u < units; ++u) {
    int const parameters = draw(5);
    for (int p = 0; p < parameters; ++p) {
      Shape const& shape = shapes[draw(static_cast<int>(sizeof(shapes) / sizeof(shapes[0])))];
      ids.push_back(layout.add(Unit{u}, "unit" + std::to_string(u) + ".p" + std::to_string(p), shape, {.trainable = draw(4) != 0}));
    }
  }
  for (ParameterId id : ids) {
    if (draw(5) != 0) continue;
    for (int u = 0; u < units; ++u) {
      if (Unit{u} != layout.unit(id) && draw(2) == 0) layout.tie(id, Unit{u});
    }
  }
  return layout;
}

}  // namespace zero::test
