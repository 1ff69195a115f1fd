// SPDX-License-Identifier: Apache-2.0
/// @file
/// For check_test.cmake: has the right sentence, but fails with ZERO_COMPILES too.

constexpr int ranks = 0;
static_assert(ranks > 0, "a number of ranks is positive");
