// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Breaks the rules about the content of headers, for check_rules_test.cmake.

#include <algorithm>
#include <iostream>
#include <map>

#if __has_include(<version>)
#define BAD_MACRO 1
#endif

using namespace std;
