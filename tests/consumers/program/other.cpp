// SPDX-License-Identifier: Apache-2.0
/// @file
/// The second translation unit of a consumer's program.

#include <zero/zero.hpp>

zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("unit"), "weight", {3, 4});
  return layout;
}
