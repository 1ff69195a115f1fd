// SPDX-License-Identifier: Apache-2.0
/// @file
/// For check_test.cmake: fails with a sentence, and compiles with ZERO_COMPILES.

#if defined(ZERO_COMPILES)
constexpr int ranks = 1;
#else
constexpr int ranks = 0;
#endif
static_assert(ranks > 0, "a number of ranks is positive");
