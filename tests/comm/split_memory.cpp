// SPDX-License-Identifier: Apache-2.0
/// @file
/// One rank has no memory left while a group is split: a typed error on every rank, at every allocation, and nothing is lost.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>

#include "support/ranks.hpp"

// clang's sanitizers bring operators of their own, which cannot be replaced.
#if defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ZERO_TEST_FAILS_ALLOCATIONS 0
#endif
#endif
#if !defined(ZERO_TEST_FAILS_ALLOCATIONS)
#define ZERO_TEST_FAILS_ALLOCATIONS 1
#endif

namespace {

std::atomic<std::int64_t> live = 0;

/// How many more blocks this thread gets; negative: as many as it likes. After the first that it does not get it gets none, or all again.
thread_local std::int64_t blocks_left = -1;
thread_local bool for_good = false;
thread_local bool failed = false;

[[gnu::noinline]] void* block_of(std::size_t bytes, std::size_t alignment) {
  if (blocks_left == 0) {
    failed = true;
    if (!for_good) blocks_left = -1;
    throw std::bad_alloc();
  }
  if (blocks_left > 0) --blocks_left;
  std::size_t const whole = (bytes + alignment - 1) / alignment * alignment;
  void* const block = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (block == nullptr) throw std::bad_alloc();
  live.fetch_add(1, std::memory_order_relaxed);
  return block;
}

[[gnu::noinline]] void free_block(void* block) noexcept {
  if (block == nullptr) return;
  live.fetch_sub(1, std::memory_order_relaxed);
  std::free(block);
}

}  // namespace

#if ZERO_TEST_FAILS_ALLOCATIONS
void* operator new(std::size_t bytes) { return block_of(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return block_of(bytes, static_cast<std::size_t>(alignment)); }
void operator delete(void* block) noexcept { free_block(block); }
void operator delete(void* block, std::size_t) noexcept { free_block(block); }
void operator delete(void* block, std::align_val_t) noexcept { free_block(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { free_block(block); }
#endif

namespace {

using zero::Barrier;
using zero::HostStreamRef;
using zero::ThreadCommunicator;

/// Splits `colors` groups off; one rank gets `blocks` blocks for it. False once that is enough.
bool split_with(int poor_rank, std::int64_t blocks, bool for_ever, int colors) {
  int const ranks = zero::test::ranks();
  bool fails = false;
  std::atomic<int> without_memory = 0;
  std::atomic<int> told = 0;
  std::atomic<int> others = 0;
  try {
    zero::run_ranks(ranks,
                    [&](ThreadCommunicator& comm) {
                      bool const poor = comm.rank() == poor_rank;
                      try {
                        if (poor) {
                          for_good = for_ever;
                          failed = false;
                          blocks_left = blocks;
                        }
                        {
                          ThreadCommunicator part = [&] {
                            struct Restore {
                              ~Restore() { blocks_left = -1; }
                            } const restore;
                            return comm.split(comm.rank() % colors);
                          }();
                          part.enqueue(HostStreamRef::calling_thread(), Barrier{});
                        }
                        comm.enqueue(HostStreamRef::calling_thread(), Barrier{});
                      } catch (std::bad_alloc const&) {
                        if (poor) fails = failed;
                        without_memory += poor ? 1 : 0;
                        others += poor ? 0 : 1;
                        throw;
                      } catch (zero::PeerError const& error) {
                        told += error.peer_in_first_group() == poor_rank ? 1 : 0;
                        throw;
                      } catch (...) {
                        ++others;
                        throw;
                      }
                    },
                    {.deadline_ms = 20'000});
  } catch (std::bad_alloc const&) {
    CHECK(fails);
    CHECK(without_memory.load() == 1);
    CHECK(told.load() == ranks - 1);
    CHECK(others.load() == 0);
    return true;
  }
  CHECK_FALSE(fails);
  CHECK(without_memory.load() + told.load() + others.load() == 0);
  return false;
}

}  // namespace

TEST_CASE("a rank without memory for a split throws, its peers are told, and nothing leaks") {
  if (ZERO_TEST_FAILS_ALLOCATIONS == 0) {
    MESSAGE("allocations cannot be made to fail here");
    return;
  }
  int const ranks = zero::test::ranks();
  int failures = 0;
  for (bool const for_ever : {false, true}) {
    for (int const colors : {1, 2, ranks}) {
      for (int poor_rank : {0, ranks - 1}) {
        CAPTURE(for_ever);
        CAPTURE(colors);
        CAPTURE(poor_rank);
        static_cast<void>(split_with(poor_rank, -1, false, colors));  // What the first run allocates for good.
        for (std::int64_t blocks = 0;; ++blocks) {
          CAPTURE(blocks);
          REQUIRE(blocks < 100);
          std::int64_t const before = live.load();
          bool const failed_now = split_with(poor_rank, blocks, for_ever, colors);
          CHECK(live.load() == before);
          if (!failed_now) break;
          ++failures;
        }
      }
    }
  }
  CHECK(failures > 4);
}
