// SPDX-License-Identifier: Apache-2.0
/// @file
/// For check_test.cmake: compiles always.

constexpr int ranks = 1;
static_assert(ranks > 0, "a number of ranks is positive");
