// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A copy that writes past the caches, for results that are larger than they are.

#include <cstddef>
#include <cstdint>
#include <cstring>

// Sanitizers do not see such stores: their builds copy as usual.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ZERO_DETAIL_STREAMING_STORES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define ZERO_DETAIL_STREAMING_STORES 0
#endif
#endif
#if !defined(ZERO_DETAIL_STREAMING_STORES)
#if defined(__SSE2__)
#define ZERO_DETAIL_STREAMING_STORES 1
#else
#define ZERO_DETAIL_STREAMING_STORES 0
#endif
#endif

namespace zero::detail {

/// Results from this size on do not stay in a core's share of the caches anyway.
inline constexpr std::int64_t streaming_bytes = std::int64_t{8} << 20;

#if ZERO_DETAIL_STREAMING_STORES
// The compilers' own names: <emmintrin.h> takes long to compile.
using StreamedWords = long long __attribute__((vector_size(16)));

inline void streaming_store(StreamedWords* to, StreamedWords words) noexcept {
#if defined(__clang__)
  __builtin_nontemporal_store(words, to);
#else
  __builtin_ia32_movntdq(to, words);
#endif
}
#endif

/// memcpy whose stores do not first read the lines they overwrite, which saves a third of the traffic. What it wrote becomes visible to
/// other threads with `end_streaming_copies`, and what synchronises after it.
inline void streaming_copy(void* to, void const* from, std::int64_t bytes) noexcept {
  auto* target = static_cast<char*>(to);
  auto const* source = static_cast<char const*>(from);
#if ZERO_DETAIL_STREAMING_STORES
  std::int64_t const unaligned = static_cast<std::int64_t>((64 - (reinterpret_cast<std::uintptr_t>(target) & 63)) & 63);
  std::int64_t const head = unaligned < bytes ? unaligned : bytes;
  if (head > 0) std::memcpy(target, source, static_cast<std::size_t>(head));
  target += head;
  source += head;
  bytes -= head;
  for (; bytes >= 64; bytes -= 64, target += 64, source += 64) {
    StreamedWords words[4];
    std::memcpy(words, source, sizeof(words));
    auto* const line = reinterpret_cast<StreamedWords*>(target);
    for (int i = 0; i < 4; ++i) streaming_store(line + i, words[i]);
  }
#endif
  if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

/// Such stores are not ordered by a release: this orders them.
inline void end_streaming_copies() noexcept {
#if ZERO_DETAIL_STREAMING_STORES
  __builtin_ia32_sfence();
#endif
}

}  // namespace zero::detail
