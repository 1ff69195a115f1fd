// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Device memory from NCCL's own allocator, and, where asked for, registered as symmetric windows.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/comm/detail/nccl_calls.hpp>
#include <zero/comm/detail/nccl_handle.hpp>
#include <zero/comm/nccl.hpp>
#include <zero/comm/nccl_error.hpp>
#include <zero/core/error.hpp>
#include <zero/core/spin_lock.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/memory.hpp>

namespace zero {

/// What `NcclMemory` does besides allocating.
struct NcclMemoryOptions {
  /// Registers each block as a symmetric window of the communicator: NCCL 2.27 or newer. Then allocating is collective: all ranks allocate
  /// blocks of the same sizes in the same order, as the library does for equal layouts where ranks end their scopes at the same places, and give
  /// them back so. `ShardedParameters::reserve` has those of passes registered before the first one, when no rank waits for another yet.
  bool windows = false;
};

/// Memory of the communicator's device from ncclMemAlloc: what NCCL can send and receive without copying, on machines where it can. The
/// communicator must outlive the resource and its blocks. For blocks that collectives use; one window belongs to one block, and blocks
/// are few, because NCCL does not take back the addresses of windows.
///
/// @par Communication
/// None, or as `NcclMemoryOptions::windows` says.
/// @par Memory
/// NCCL rounds sizes up to its granularity, which counting resources do not see. Both calls may wait for the whole device.
class NcclMemory final : public MemoryResource {
public:
  /// @throws UsageError where the communicator was moved from, or this NCCL is too old: 2.19, or 2.27 for windows.
  explicit NcclMemory(NcclCommunicator& communicator, NcclMemoryOptions options = {}, SourceLocation where = SourceLocation::current())
      : handle_(detail::NcclAccess::handle(communicator, where)), options_(options) {
    need(21900, "ncclMemAlloc", where);
    if (options.windows) need(22700, "ncclCommWindowRegister", where);
  }

  /// @throws MemoryError also where NCCL registers a block but gives no window for it, which says that this machine has none.
  [[nodiscard]] void* allocate(std::int64_t bytes, Purpose purpose) override {
    if (bytes == 0) return nullptr;
    if (bytes < 0) detail::throw_memory_error(bytes, purpose, "a negative size");
    try {
      detail::CudaDeviceGuard const guard(handle_.device(), SourceLocation::current());
      Block block{allocate_block(bytes)};
      if (options_.windows) add_window(block, bytes);
      return std::exchange(block.address, nullptr);
    } catch (std::exception const& error) {
      detail::throw_memory_error(bytes, purpose, error.what());
    }
  }

  void deallocate(void* block, std::int64_t, Purpose) noexcept override {
    if (block == nullptr) return;
    if (options_.windows) remove_window(block);
    free_block(block);
  }

  /// How many blocks are registered as windows.
  [[nodiscard]] std::int64_t windows() const noexcept {
    detail::LockGuard const guard(lock_);
    return static_cast<std::int64_t>(windows_.size());
  }

private:
  /// Freed, unless it is taken.
  struct Block {
    ~Block() { free_block(address); }
    void* address;
  };

  void need(int version, char const* call, SourceLocation where) const {
    int const running = nccl_version();
    if (NCCL_VERSION_CODE >= version && running >= version) return;
    throw UsageError(std::string("NcclMemory: ") + call + " needs NCCL " + detail::nccl_version_text(version) + "; compiled with " +
                         detail::nccl_version_text(NCCL_VERSION_CODE) + ", running " + detail::nccl_version_text(running),
                     where, handle_.name());
  }

#if NCCL_VERSION_CODE >= 21900
  static void* allocate_block(std::int64_t bytes) {
    void* block = nullptr;
    detail::check_nccl("ncclMemAlloc", ncclMemAlloc(&block, static_cast<std::size_t>(bytes)));
    return block;
  }
  static void free_block(void* block) noexcept {
    if (block != nullptr) static_cast<void>(ncclMemFree(block));
  }
#else
  static void* allocate_block(std::int64_t) { return nullptr; }  // Refused by the constructor.
  static void free_block(void*) noexcept {}
#endif

#if NCCL_VERSION_CODE >= 22700
  struct Window {
    void* block;
    ncclWindow_t window = nullptr;  // NCCL may write it after the call has returned.
  };

  void add_window(Block& block, std::int64_t bytes) {
    handle_.check_outside_group("NcclMemory", SourceLocation::current());
    auto added = std::make_unique<Window>(Window{block.address});
    {
      detail::LockGuard const guard(lock_);
      windows_.reserve(windows_.size() + 1);
    }
    try {
      detail::NcclUse const use(handle_, SourceLocation::current());
      handle_.settle("ncclCommWindowRegister", ncclCommWindowRegister(handle_.native(), block.address, static_cast<std::size_t>(bytes),
                                                                      &added->window, NCCL_WIN_COLL_SYMMETRIC));
    } catch (...) {
      if (!handle_.wait_for_abort()) {  // NCCL may be using both still.
        static_cast<void>(added.release());
        block.address = nullptr;
      }
      throw;
    }
    if (added->window == nullptr) {
      throw CommunicationError("ncclCommWindowRegister gives no window: there are no symmetric windows on this machine", handle_.name());
    }
    detail::LockGuard const guard(lock_);
    windows_.push_back(std::move(added));
  }

  void remove_window(void* block) noexcept {
    std::unique_ptr<Window> removed;
    {
      detail::LockGuard const guard(lock_);
      for (auto& window : windows_) {
        if (window->block != block) continue;
        std::swap(window, windows_.back());
        removed = std::move(windows_.back());
        windows_.pop_back();
        break;
      }
    }
    if (removed == nullptr) return;
    try {
      detail::NcclUse const use(handle_, SourceLocation::current());
      static_cast<void>(ncclCommWindowDeregister(handle_.native(), removed->window));
    } catch (...) {  // The communicator has failed, and its windows went with it.
    }
  }
#else
  struct Window {};
  void add_window(Block&, std::int64_t) {}  // Refused by the constructor.
  void remove_window(void*) noexcept {}
#endif

  detail::NcclHandle& handle_;
  NcclMemoryOptions options_;
  mutable detail::SpinLock lock_;
  std::vector<std::unique_ptr<Window>> windows_;
};

}  // namespace zero
