// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A CUDA GPU as a device: `CudaDevice` enqueues copies, fills and functors to CUDA streams.

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/device/cuda_call.hpp>
#include <zero/device/cuda_graph.hpp>
#include <zero/device/cuda_memory.hpp>
#include <zero/device/cuda_stream.hpp>
#include <zero/device/device.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/wait_id.hpp>

namespace zero {

namespace detail {

/// Where a kernel goes, and what lets the functions that launch one be found. They are declared only in cuda_kernels.cuh:
///   cudaError_t launch_for_each(CudaLaunch, std::int64_t n, F const&), launch_accumulate(the same), launch_run(CudaLaunch, F const&),
///   launch_fill(CudaLaunch, T* to, std::int64_t n, T const& value)
struct CudaLaunch {
  cudaStream_t stream;
};

/// What a kernel takes as an argument: the same as the host's queue does.
inline constexpr std::size_t cuda_functor_bytes = 248;

template <class F>
concept CudaFunctor = std::is_trivially_copyable_v<F> && sizeof(F) <= cuda_functor_bytes;

}  // namespace detail

/// CUDA GPUs: streams are `CudaStream`s, of any of them. A model of `Device`; it has no state.
///
/// Functors and fills are kernels: what calls `for_each`, `accumulate`, `run` or `fill` of elements of more than one byte, or trains on this
/// device, is compiled by nvcc and includes zero/zero.hpp (or zero/device/cuda_kernels.cuh). Everything else compiles in plain C++ too.
///
/// @par Stream order
/// All functions but `record` and `synchronize` enqueue to the stream and return, except `copy` from or to host memory that is not
/// page-locked, for which CUDA may block the calling thread. The default stream is not used, and the current device stays what it is.
struct CudaDevice {
  using Stream = CudaStreamRef;
  using Event = CudaEvent;
  using Graph = CudaGraph;

  static constexpr char const* name = "cuda";

  /// The point after everything enqueued to the stream so far.
  [[nodiscard]] static Event record(Stream stream) noexcept { return stream.record(); }

  /// Lets what is enqueued to the stream from now on start only when the event is complete, see `CudaStreamRef::wait`.
  static void wait(Stream stream, Event event, WaitId, SourceLocation where = SourceLocation::current()) { stream.wait(event, where); }

  /// Blocks the calling thread until the stream is idle. @throws what failed the stream.
  static void synchronize(Stream stream, SourceLocation where = SourceLocation::current()) { stream.synchronize(where); }

  /// Blocks the calling thread until the event is complete. @throws what failed the stream at or before the event.
  static void synchronize(Event event, SourceLocation where = SourceLocation::current()) { event.synchronize(where); }

  /// Page-locked memory of the host.
  [[nodiscard]] static MemoryResource& pinned_memory() noexcept { return cuda_pinned_memory(); }

  /// Refuses memory that kernels cannot access: the host's, where it is not page-locked, unless the current device reads pageable memory.
  /// @throws UsageError, DeviceError
  static void check_memory(void const* block, SourceLocation where = SourceLocation::current()) {
    if (block == nullptr) return;
    cudaPointerAttributes attributes{};
    detail::check_cuda("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, block), where);
    if (attributes.type != cudaMemoryTypeUnregistered) return;
    int device = 0;
    int reads_pageable = 0;
    detail::check_cuda("cudaGetDevice", cudaGetDevice(&device), where);
    detail::check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, device), where);
    if (reads_pageable == 0) {
      throw UsageError("this memory is the host's, and the CUDA device cannot use it: give the library a zero::CudaMemory", where);
    }
  }

  /// Copies memory that does not overlap, or is the same, between any two of host and devices.
  /// @param bytes size [bytes]; with 0 the pointers may be null.
  /// @throws UsageError for a negative size; DeviceError
  static void copy(Stream stream, void* to, void const* from, std::int64_t bytes, SourceLocation where = SourceLocation::current()) {
    if (!check_size("copy", bytes, where) || to == from) return;
    stream.enqueue("cudaMemcpyAsync", where,
                   [&] { return cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream.native()); });
  }

  /// Sets n elements to a value.
  /// @throws UsageError for a negative n; DeviceError
  template <class T>
    requires std::is_trivially_copyable_v<T>
  static void fill(Stream stream, T* to, std::int64_t n, std::type_identity_t<T> value, SourceLocation where = SourceLocation::current()) {
    if (!check_size("fill", n, where)) return;
    if constexpr (sizeof(T) == 1) {
      int const byte = __builtin_bit_cast(unsigned char, value);
      stream.enqueue("cudaMemsetAsync", where, [&] { return cudaMemsetAsync(to, byte, static_cast<std::size_t>(n), stream.native()); });
    } else {
      constexpr bool launches = requires(detail::CudaLaunch launch) { launch_fill(launch, to, n, value); };
      check_launches<launches>();
      if constexpr (launches) {
        stream.enqueue("a kernel that fills", where, [&] { return launch_fill(detail::CudaLaunch{stream.native()}, to, n, value); });
      }
    }
  }

  /// Calls f(i) for 0 <= i < n, in any order and at once: the calls must be independent of each other.
  /// @param f trivially copyable, at most 248 bytes, callable on the device: ZERO_HOST_DEVICE.
  /// @throws UsageError for a negative n; DeviceError
  template <std::invocable<std::int64_t> F>
  static void for_each(Stream stream, std::int64_t n, F f, SourceLocation where = SourceLocation::current()) {
    constexpr bool launches = requires(detail::CudaLaunch launch) { launch_for_each(launch, n, f); };
    check_launches<launches>();
    check_functor<F>();
    if (!check_size("for_each", n, where)) return;
    if constexpr (launches) {
      stream.enqueue("a kernel of for_each", where, [&] { return launch_for_each(detail::CudaLaunch{stream.native()}, n, f); });
    }
  }

  /// Calls f(i) for 0 <= i < n such that calls may add to integers that they share: one after the other, by one thread, except for functors
  /// that the library knows how to run at once.
  /// @param f as for `for_each`.
  /// @throws UsageError for a negative n; DeviceError
  template <std::invocable<std::int64_t> F>
  static void accumulate(Stream stream, std::int64_t n, F f, SourceLocation where = SourceLocation::current()) {
    constexpr bool launches = requires(detail::CudaLaunch launch) { launch_accumulate(launch, n, f); };
    check_launches<launches>();
    check_functor<F>();
    if (!check_size("accumulate", n, where)) return;
    if constexpr (launches) {
      stream.enqueue("a kernel of accumulate", where, [&] { return launch_accumulate(detail::CudaLaunch{stream.native()}, n, f); });
    }
  }

  /// Calls f() once, by one thread of the device.
  /// @param f as for `for_each`.
  /// @throws DeviceError
  template <std::invocable F>
  static void run(Stream stream, F f, SourceLocation where = SourceLocation::current()) {
    constexpr bool launches = requires(detail::CudaLaunch launch) { launch_run(launch, f); };
    check_launches<launches>();
    check_functor<F>();
    if constexpr (launches) {
      stream.enqueue("a kernel of run", where, [&] { return launch_run(detail::CudaLaunch{stream.native()}, f); });
    }
  }

  /// Makes a graph of what `work()` enqueues to these streams, and to streams that wait for their events meanwhile. Nothing of it runs. What
  /// was enqueued before is before a launch on `origin`. `work` may not wait for a device, nor allocate or free memory of one.
  ///
  /// `zero::ShardedParameters::capture` is the one for passes and steps.
  /// @param sides  Any of them may be the same stream as another, or as `origin`.
  /// @throws what `work` throws; UsageError where a stream is captured already; DeviceError
  template <std::invocable Work>
  [[nodiscard]] static Graph capture(Stream origin, std::span<Stream const> sides, Work&& work,
                                     SourceLocation where = SourceLocation::current()) {
    detail::CudaDeviceGuard const guard(origin.device(), where);
    detail::CudaCaptureScope scope(origin, sides, where);
    std::forward<Work>(work)();
    return scope.end(where);
  }
  /// The same with one other stream.
  template <std::invocable Work>
  [[nodiscard]] static Graph capture(Stream origin, Stream side, Work&& work, SourceLocation where = SourceLocation::current()) {
    return capture(origin, std::span<Stream const>(&side, 1), std::forward<Work>(work), where);
  }

  /// Whether work that is enqueued now would go into a graph, whoever began its capture.
  [[nodiscard]] static bool is_capturing(Stream stream) noexcept { return stream.natively_capturing(); }

  /// Enqueues the whole graph.
  /// @throws UsageError for an empty graph; DeviceError
  static void launch(Stream stream, Graph const& graph, SourceLocation where = SourceLocation::current()) {
    if (graph.native() == nullptr) throw UsageError("launch: the graph is empty", where);
    stream.enqueue("cudaGraphLaunch", where, [&] { return cudaGraphLaunch(graph.native(), stream.native()); });
  }

private:
  template <bool Launches>
  static constexpr void check_launches() {
    static_assert(Launches,
                  "zero: this needs a kernel of the CUDA device: compile this translation unit with nvcc and include <zero/zero.hpp> with "
                  "the CUDA back end on (target zero::cuda), or <zero/device/cuda_kernels.cuh>");
  }

  template <class F>
  static constexpr void check_functor() {
    static_assert(
        detail::CudaFunctor<F>,
        "zero: a device functor is trivially copyable and holds at most 248 bytes: it is copied into the stream's queue (or to a GPU)");
  }

  static bool check_size(char const* call, std::int64_t size, SourceLocation where) {
    if (size < 0) throw UsageError(std::string(call) + " of size " + std::to_string(size), where);
    return size > 0;
  }
};

static_assert(check_device<CudaDevice>() && CapturesGraphs<CudaDevice>);

}  // namespace zero
