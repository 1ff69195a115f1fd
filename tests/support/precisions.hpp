// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The precisions that this build has models of: the macro ZERO_TEST_PRECISIONS, which CMake makes of its variable of that name.

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <vector>

#include "support/model.hpp"

namespace zero::test {

/// A namespace of its own, as the names hide element types.
namespace built {

using enum PrecisionName;
inline constexpr PrecisionName precisions[] = {ZERO_TEST_PRECISIONS};

template <PrecisionName... names>
inline constexpr decltype(&ModelMaker<fp32>::make) makers_of[] = {ModelMaker<names>::make...};
inline constexpr auto const& makers = makers_of<ZERO_TEST_PRECISIONS>;

}  // namespace built

/// All precisions of this build.
[[nodiscard]] constexpr auto const& precisions() { return built::precisions; }

/// Those of `wanted` that this build has. @throws std::logic_error if it has none: a test that runs over nothing must not pass.
[[nodiscard]] inline std::vector<PrecisionName> precisions_of(std::initializer_list<PrecisionName> wanted) {
  std::vector<PrecisionName> result;
  std::ranges::copy_if(wanted, std::back_inserter(result), [](PrecisionName p) { return std::ranges::count(precisions(), p) != 0; });
  if (result.empty()) throw std::logic_error("this build has none of the precisions of this test");
  return result;
}

/// @throws std::logic_error if this build does not have the precision.
inline std::unique_ptr<Model> make_model(PrecisionName precision, StageNumber stage, ParameterLayout const& layout, CountedThreads& group,
                                         Streams<HostDevice> streams, MemoryResource& memory, ModelOptions const& options) {
  auto const* const found = std::ranges::find(precisions(), precision);
  if (found == std::end(precisions())) throw std::logic_error("this build has no models of precision " + name(precision));
  return built::makers[found - std::begin(precisions())](stage, layout, group, streams, memory, options);
}

}  // namespace zero::test
