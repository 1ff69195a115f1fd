// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Models to plan for: GPT-2 in its four published sizes, parameter by parameter, and the sizes of the ZeRO paper.

#include <cstdint>
#include <string_view>

#include <zero/layout/parameter_layout.hpp>

#include "gpt/config.hpp"
#include "gpt/layout.hpp"

namespace plan {

/// GPT-2 as published by OpenAI, with the names and shapes of Hugging Face's checkpoints: 124M, 350M (355M in later texts), 774M, 1.5B.
constexpr zero::ParameterLayout gpt2(std::int64_t layers, std::int64_t heads, std::int64_t channels) {
  return gpt::make_layout({.layers = layers, .heads = heads, .channels = channels, .context = 1024, .vocabulary = 50257});
}

/// A model of which only the number of parameters is known, in units of equal size. @param units at most `elements`
constexpr zero::ParameterLayout equal_units(std::int64_t elements, std::int64_t units = 32) {
  zero::ParameterLayout layout;
  for (std::int64_t i = 0; i < units; ++i) {
    gpt::detail::BlockName const name(i);
    layout.add(layout.add_unit(name), name.dot("weights"), {elements / units + (i < elements % units ? 1 : 0)});
  }
  return layout;
}

/// A model by name. `make` gives its layout, in constant expressions too.
struct Model {
  std::string_view name;
  zero::ParameterLayout (*make)();
};

/// The ZeRO paper is Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020: figure 1 is drawn for
/// 7.5B, table 1 for 7.5B, 128B and 1T.
inline constexpr Model models[] = {
    {"gpt2-124M", +[] { return gpt2(12, 12, 768); }},       {"gpt2-350M", +[] { return gpt2(24, 16, 1024); }},
    {"gpt2-774M", +[] { return gpt2(36, 20, 1280); }},      {"gpt2-1.5B", +[] { return gpt2(48, 25, 1600); }},
    {"7.5B", +[] { return equal_units(7'500'000'000); }},   {"128B", +[] { return equal_units(128'000'000'000); }},
    {"1T", +[] { return equal_units(1'000'000'000'000); }},
};

// The numbers of parameters of the published checkpoints.
static_assert(models[0].make().elements() == 124'439'808);
static_assert(models[1].make().elements() == 354'823'168);
static_assert(models[2].make().elements() == 774'030'080);
static_assert(models[3].make().elements() == 1'557'611'200);

/// The model of this name, null if there is none.
constexpr Model const* find_model(std::string_view name) {
  for (Model const& model : models) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

}  // namespace plan
