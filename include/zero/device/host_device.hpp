// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The host as a device: `HostDevice` enqueues copies, fills and loops to host streams.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include <zero/core/config.hpp>
#include <zero/core/error.hpp>
#include <zero/device/device.hpp>
#include <zero/device/host_stream.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/wait_id.hpp>

namespace zero {

namespace detail {

/// Calls f(i) for 0 <= i < n where the calls are independent of each other, so that the loop can be vectorised.
///
/// By value, because what a local object points to is seen to stay the same. The blocks of constant length are what g++ vectorises at -O2
/// too: its cost model there allows no loop that needs a scalar rest. Shards are padded to whole blocks. Flattened, because a call that
/// is not inlined ends vectorisation, and a long functor called twice would not be.
template <class F>
ZERO_TARGET_CLONES __attribute__((flatten)) void independent_loop(std::int64_t n, F f) {
  constexpr std::int64_t block = 64;
  std::int64_t begin = 0;
  for (; begin + block <= n; begin += block) {
    ZERO_INDEPENDENT_LOOP
    for (std::int64_t i = 0; i < block; ++i) f(begin + i);
  }
  for (; begin < n; ++begin) f(begin);
}

template <class F>
concept HostFunctor = std::is_trivially_copyable_v<F> && sizeof(F) + sizeof(std::int64_t) <= task_bytes;

}  // namespace detail

/// The host: streams are `HostStream`s or the calling thread. A model of `Device`; it has no state.
///
/// @par Stream order
/// All functions but `record` and `synchronize` enqueue one task and return. Without a worker thread they return when the work is done.
struct HostDevice {
  using Stream = HostStreamRef;
  using Event = HostEvent;

  static constexpr char const* name = "host";

  /// The point after everything enqueued to the stream so far.
  [[nodiscard]] static Event record(Stream stream) noexcept { return stream.record(); }

  /// Lets what is enqueued to the stream from now on start only when the event is complete, see `HostStreamRef::wait`.
  static void wait(Stream stream, Event event, WaitId id, SourceLocation where = SourceLocation::current()) {
    stream.wait(event, id, where);
  }

  /// Blocks the calling thread until the stream is idle. @throws what failed the stream.
  static void synchronize(Stream stream, SourceLocation where = SourceLocation::current()) { stream.synchronize(where); }

  /// Blocks the calling thread until the event is complete. @throws what failed the stream at or before the event.
  static void synchronize(Event event, SourceLocation where = SourceLocation::current()) { event.synchronize(where); }

  /// The heap: the host copies from and to all of its memory.
  [[nodiscard]] static MemoryResource& pinned_memory() noexcept { return host_memory(); }

  /// Accepts every block: nothing tells memory of a GPU from the host's without that GPU's runtime.
  static void check_memory(void const*, SourceLocation = SourceLocation::current()) noexcept {}

  /// Copies memory that does not overlap, or is the same.
  /// @param bytes size [bytes]; with 0 the pointers may be null.
  /// @throws UsageError for a negative size.
  static void copy(Stream stream, void* to, void const* from, std::int64_t bytes, SourceLocation where = SourceLocation::current()) {
    if (!check_size("copy", bytes, where) || to == from) return;
    stream.enqueue([to, from, bytes]() noexcept { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }, where);
  }

  /// Sets n elements to a value.
  /// @throws UsageError for a negative n.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  static void fill(Stream stream, T* to, std::int64_t n, std::type_identity_t<T> value, SourceLocation where = SourceLocation::current()) {
    if (!check_size("fill", n, where)) return;
    stream.enqueue([to, n, value]() noexcept { detail::independent_loop(n, [to, value](std::int64_t i) { to[i] = value; }); }, where);
  }

  /// Calls f(i) for 0 <= i < n in any order, or f(0, n) where f is a `RangeFunctor`; the calls must be independent of each other: the loop is vectorised on that word.
  /// @param f trivially copyable, at most 248 bytes, copied into the queue.
  /// @throws UsageError for a negative n.
  template <std::invocable<std::int64_t> F>
  static void for_each(Stream stream, std::int64_t n, F f, SourceLocation where = SourceLocation::current()) {
    check_functor<F>();
    if (!check_size("for_each", n, where)) return;
    if constexpr (RangeFunctor<F>) {
      stream.enqueue([n, f] { f(std::int64_t{0}, n); }, where);
    } else {
      stream.enqueue([n, f] { detail::independent_loop(n, f); }, where);
    }
  }

  /// Calls f(i) for 0 <= i < n in order, or f(0, n) where f is a `RangeFunctor`: f may add to integers that several calls share.
  /// @param f as for `for_each`.
  /// @throws UsageError for a negative n.
  template <std::invocable<std::int64_t> F>
  static void accumulate(Stream stream, std::int64_t n, F f, SourceLocation where = SourceLocation::current()) {
    check_functor<F>();
    if (!check_size("accumulate", n, where)) return;
    stream.enqueue(
        [n, f]() mutable {
          if constexpr (RangeFunctor<F>) {
            f(std::int64_t{0}, n);
          } else {
            for (std::int64_t i = 0; i < n; ++i) f(i);
          }
        },
        where);
  }

  /// Calls f() once.
  /// @param f as for `for_each`.
  template <std::invocable F>
  static void run(Stream stream, F f, SourceLocation where = SourceLocation::current()) {
    check_functor<F>();
    stream.enqueue([f]() mutable { f(); }, where);
  }

private:
  template <class F>
  static constexpr void check_functor() {
    static_assert(
        detail::HostFunctor<F>,
        "zero: a device functor is trivially copyable and holds at most 248 bytes: it is copied into the stream's queue (or to a GPU)");
  }

  static bool check_size(char const* call, std::int64_t size, SourceLocation where) {
    if (size < 0) throw UsageError(std::string(call) + " of size " + std::to_string(size), where);
    return size > 0;
  }
};

static_assert(check_device<HostDevice>());

}  // namespace zero
