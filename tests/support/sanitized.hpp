// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// `ZERO_TEST_SANITIZED`: defined where a sanitizer slows the program down and would report the races that a test makes on purpose.

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ZERO_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define ZERO_TEST_SANITIZED 1
#endif
#endif
