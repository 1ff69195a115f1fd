// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Counts what a test program allocates. Replaces the global operators new and delete: to be included by one source file of a program.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

// clang's sanitizers bring operators of their own, which cannot be replaced.
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ZERO_TEST_COUNTS_ALLOCATIONS 0
#endif
#endif
#if !defined(ZERO_TEST_COUNTS_ALLOCATIONS)
#define ZERO_TEST_COUNTS_ALLOCATIONS 1
#endif

namespace zero::test {

/// False where allocations cannot be counted: a test of them says so and ends.
inline constexpr bool counts_allocations = ZERO_TEST_COUNTS_ALLOCATIONS != 0;

namespace detail {

inline std::atomic<std::int64_t> allocations = 0;

[[gnu::noinline]] inline void* counted_block(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  std::size_t const whole = (bytes + alignment - 1) / alignment * alignment;
  void* const block = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// Not inlined: g++ would see std::free at the end of what began with a new-expression, and warn.
[[gnu::noinline]] inline void free_block(void* block) noexcept { std::free(block); }

inline void* counted_block_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  try {
    return counted_block(bytes, alignment);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

}  // namespace detail

/// How many blocks the program has allocated with operator new so far, on all threads.
inline std::int64_t allocations() noexcept { return detail::allocations.load(); }

}  // namespace zero::test

#if ZERO_TEST_COUNTS_ALLOCATIONS
void* operator new(std::size_t bytes) { return zero::test::detail::counted_block(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return zero::test::detail::counted_block(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  return zero::test::detail::counted_block_or_null(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, std::nothrow_t const&) noexcept {
  return zero::test::detail::counted_block_or_null(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { zero::test::detail::free_block(block); }
void operator delete(void* block, std::size_t) noexcept { zero::test::detail::free_block(block); }
void operator delete(void* block, std::align_val_t) noexcept { zero::test::detail::free_block(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { zero::test::detail::free_block(block); }
#endif
