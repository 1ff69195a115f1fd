// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Ranks over NCCL as threads of one process, for the conformance of communicators and for tests. The same code runs over the stand-in libraries
/// (ZERO_TEST_STANDIN) and over CUDA and NCCL themselves, one GPU a rank.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_start.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/cuda_device.hpp>

#include "comm/conformance.hpp"

#if defined(ZERO_TEST_STANDIN)
#include "support/standin/standin_cuda.hpp"
#include "support/standin/standin_nccl.hpp"
#endif

namespace zero::test {

/// Page-locked memory that is used again and never given back: cudaFreeHost waits for all streams of the process, those of other ranks too.
class PinnedPool {
public:
  static void* take(std::size_t bytes) {
    PinnedPool& pool = instance();
    std::lock_guard const lock(pool.mutex_);
    std::vector<void*>& free = pool.free_[rounded(bytes)];
    if (free.empty()) {
      void* block = nullptr;
      if (cudaHostAlloc(&block, rounded(bytes), cudaHostAllocPortable) != cudaSuccess) throw std::bad_alloc();
      return block;
    }
    void* const block = free.back();
    free.pop_back();
    return block;
  }
  static void give(void* block, std::size_t bytes) {
    PinnedPool& pool = instance();
    std::lock_guard const lock(pool.mutex_);
    pool.free_[rounded(bytes)].push_back(block);
  }

private:
  static PinnedPool& instance() {
    static PinnedPool* const pool = new PinnedPool;
    return *pool;
  }
  static std::size_t rounded(std::size_t bytes) {
    std::size_t size = 4096;
    while (size < bytes) size *= 2;
    return size;
  }

  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;
};

template <class T>
struct PinnedAllocator {
  using value_type = T;

  PinnedAllocator() = default;
  template <class U>
  PinnedAllocator(PinnedAllocator<U> const&) noexcept {}  // NOLINT: containers convert

  T* allocate(std::size_t n) { return static_cast<T*>(PinnedPool::take(n * sizeof(T))); }
  void deallocate(T* block, std::size_t n) noexcept { PinnedPool::give(block, n * sizeof(T)); }

  friend bool operator==(PinnedAllocator, PinnedAllocator) noexcept { return true; }
};

template <>
struct DeviceTraits<CudaDevice> {
  using Stream = CudaStream;
  template <class T>
  using Allocator = PinnedAllocator<T>;
  static constexpr bool scales_alone = false;

  static Stream make_stream(bool) { return CudaStream(); }
  template <class F>
  static void call_on(CudaStreamRef stream, F f) {
    stream.enqueue("cudaLaunchHostFunc", SourceLocation::current(), [&] {
      return cudaLaunchHostFunc(
          stream.native(), [](void* data) { (*std::unique_ptr<F>(static_cast<F*>(data)))(); }, new F(f));
    });
  }
};

/// One GPU for each of so many ranks, or the program is skipped.
inline void need_devices(int ranks, std::uint64_t delay_seed = 0) {
#if defined(ZERO_TEST_STANDIN)
  standin::reset({.devices = ranks, .delay_seed = delay_seed});
  standin::reset_nccl();
#else
  static_cast<void>(delay_seed);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (count < ranks) {
    std::printf("SKIPPED: %d CUDA devices are here, %d are needed\n", count, ranks);
    std::exit(77);
  }
#endif
}

/// Says to the stand-in which rank the thread is.
inline void this_is_rank(int rank) {
#if defined(ZERO_TEST_STANDIN)
  standin::set_nccl_rank(rank);
#else
  static_cast<void>(rank);
#endif
}

/// Calls `body(communicator)` on a thread for each rank, on the device of its number.
template <class Body>
void run_nccl(int ranks, Body const& body, NcclOptions const& options = {.deadline_ms = 60'000}) {
  run_ranks(ranks, [&](ThreadCommunicator& threads) {
    this_is_rank(threads.rank());
    detail::check_cuda("cudaSetDevice", cudaSetDevice(threads.rank()), SourceLocation::current());
    NcclCommunicator comm = nccl_over(threads, options);
    body(comm);
  });
}

}  // namespace zero::test
