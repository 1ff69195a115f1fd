// SPDX-License-Identifier: Apache-2.0
/// @file
/// A level that would switch off nothing is no level.

#if !defined(ZERO_COMPILES)
#define ZERO_ASSERTION_LEVEL 0
#endif
#include <zero/core/config.hpp>
