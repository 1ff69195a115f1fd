// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Small memory that host and device can use, for barriers and splits.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/memory.hpp>

namespace zero::detail {

/// Page-locked memory that the process keeps and uses again: giving it back to CUDA would wait for all streams of the process, and where ranks
/// are threads of one process those may wait for this rank. Zero at first.
class NcclScratch {
public:
  NcclScratch() = default;
  /// @throws MemoryError
  explicit NcclScratch(std::int64_t bytes) {
    Pool& pool = instance();
    {
      LockGuard const guard(pool.lock);
      for (std::size_t i = 0; i < pool.free.size() && block_.data == nullptr; ++i) {
        if (pool.free[i].bytes < bytes) continue;
        block_ = pool.free[i];
        pool.free[i] = pool.free.back();
        pool.free.pop_back();
      }
      if (block_.data == nullptr) pool.free.reserve(++pool.blocks);  // so that giving back cannot fail
    }
    if (block_.data == nullptr) {
      std::int64_t const rounded = (bytes + 4095) / 4096 * 4096;
      block_ = {static_cast<std::byte*>(cuda_pinned_memory().allocate(rounded, Purpose::control)), rounded};
    }
    std::memset(block_.data, 0, static_cast<std::size_t>(block_.bytes));
  }
  NcclScratch(NcclScratch&& other) noexcept : block_(std::exchange(other.block_, {})) {}
  NcclScratch& operator=(NcclScratch&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~NcclScratch() {
    if (block_.data == nullptr) return;
    Pool& pool = instance();
    LockGuard const guard(pool.lock);
    pool.free.push_back(block_);
  }

  [[nodiscard]] std::byte* data() noexcept { return block_.data; }

private:
  struct Block {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  struct Pool {
    SpinLock lock;
    std::vector<Block> free;
    std::size_t blocks = 0;
  };

  static Pool& instance() noexcept {
    // Never destroyed, so that communicators with static storage may still give memory back.
    alignas(Pool) static std::byte storage[sizeof(Pool)];
    static Pool* const pool = ::new (static_cast<void*>(storage)) Pool;
    return *pool;
  }

  Block block_;
};

}  // namespace zero::detail
