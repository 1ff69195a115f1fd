// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The concept `Device`: what the library asks of the thing that computes, be it host threads or a GPU.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <zero/core/config.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/wait_id.hpp>

namespace zero {

namespace detail {

/// Stands for any functor over an element index.
struct ElementFunctorProbe {
  ZERO_HOST_DEVICE void operator()(std::int64_t) const noexcept {}
};

/// Stands for any 16-bit element.
struct SmallElementProbe {
  std::uint16_t bits;
};

/// Stands for any functor that one thread runs.
struct SingleFunctorProbe {
  ZERO_HOST_DEVICE void operator()() const noexcept {}
};

}  // namespace detail

/// A device names its streams (`D::Stream`: a view, passed by value, comparable) and its events (`D::Event`: passed by value, a default one
/// is complete), and itself (`D::name`).
template <class D>
concept HasStreamsAndEvents = requires {
  typename D::Stream;
  typename D::Event;
  requires std::is_trivially_copyable_v<typename D::Stream> && std::equality_comparable<typename D::Stream>;
  requires std::is_trivially_copyable_v<typename D::Event> && std::default_initializable<typename D::Event>;
  { D::name } -> std::convertible_to<char const*>;
};

/// `D::record(stream)` marks a point of a stream; `D::wait(stream, event, id)` lets a stream wait for it.
template <class D>
concept OrdersStreams = HasStreamsAndEvents<D> && requires(typename D::Stream stream, typename D::Event event) {
  { D::record(stream) } -> std::same_as<typename D::Event>;
  D::wait(stream, event, WaitId::user);
};

/// `D::synchronize(stream)` and `D::synchronize(event)` block the calling thread.
template <class D>
concept SynchronizesWithHost = HasStreamsAndEvents<D> && requires(typename D::Stream stream, typename D::Event event) {
  D::synchronize(stream);
  D::synchronize(event);
};

/// `D::copy(stream, to, from, bytes)` and `D::fill(stream, to, n, value)`.
template <class D>
concept CopiesMemory = HasStreamsAndEvents<D> && requires(typename D::Stream stream, void* to, void const* from, float* numbers,
                                                          std::byte* bytes, detail::SmallElementProbe* small, std::int64_t n) {
  D::copy(stream, to, from, n);
  D::fill(stream, numbers, n, 0.0f);
  D::fill(stream, bytes, n, std::byte{});
  D::fill(stream, small, n, detail::SmallElementProbe{});
};

/// `D::pinned_memory()` is a resource of host memory that copies of this device reach while the host goes on; `D::check_memory(block)` throws
/// `UsageError` where work on this device cannot use a block that some resource gave.
template <class D>
concept KnowsItsMemory = requires(void const* block) {
  { D::pinned_memory() } -> std::same_as<MemoryResource&>;
  D::check_memory(block);
};

/// A functor over indices that also does a whole range in one call: f(begin, end) is f(i) for begin <= i < end, in any order. It says so by
/// `static constexpr bool does_ranges = true`.
template <class F>
concept RangeFunctor = requires { requires F::does_ranges; } && std::invocable<F const&, std::int64_t, std::int64_t>;

/// `D::for_each(stream, n, f)`, `D::accumulate(stream, n, f)` and `D::run(stream, f)` execute functors.
template <class D>
concept ExecutesFunctors = HasStreamsAndEvents<D> && requires(typename D::Stream stream, std::int64_t n) {
  D::for_each(stream, n, detail::ElementFunctorProbe{});
  D::accumulate(stream, n, detail::ElementFunctorProbe{});
  D::run(stream, detail::SingleFunctorProbe{});
};

/// A type without state whose static functions enqueue work: the host (`HostDevice`) or a GPU.
///
/// What the syntax does not say:
/// - **Order.** Work on one stream runs in the order it was enqueued. Work on two streams has no order but what `wait` gives.
///   `wait(stream, event, id)` holds back only what is enqueued to `stream` afterwards, and does not block the calling thread unless the
///   stream *is* the calling thread. Nothing else orders or synchronises: no function but `synchronize` waits for the device, none uses a
///   default stream.
/// - **Events** are values: nothing destroys them. One may be waited for while its stream exists, however many were recorded since. It
///   stands for its own point; one that many newer ones have followed, as the model says how many, may stand for a later point.
/// - **Memory.** Pointers must stay valid until the work that uses them is done. The source and the destination of `copy` do not overlap,
///   or are the same; either may be memory of the host. Sizes are in elements of the pointer's type, `copy`'s in bytes; zero is allowed and does nothing. No function
///   allocates.
/// - **Functors** are trivially copyable and copied into the queue. `for_each` calls f(i) for 0 <= i < n, in any order, also at once: one
///   call must not depend on another. `accumulate` does the same one call at a time, in any order: calls may add to what they share. A
///   device that knows a functor may do better with it, as the kernel of the square sum does. `run` calls f() once, by one thread. Where f is a
///   `RangeFunctor`, a device may call ranges instead of indices: how work is cut is the device's choice, so what f does must not depend on it.
/// - **Failure.** Work behind a failed operation of a stream does not run. A failed stream refuses later work, and its events carry the
///   failure to every stream that waits for them and to `synchronize`, which throws the first cause. An event before the failure is a
///   success.
/// - **Who may call.** Any thread of the host, one thread at a time per stream. Not from inside enqueued work.
/// - **`id`** names the wait for tests; a device may ignore it.
template <class D>
concept Device =
    HasStreamsAndEvents<D> && OrdersStreams<D> && SynchronizesWithHost<D> && CopiesMemory<D> && KnowsItsMemory<D> && ExecutesFunctors<D>;

/// A device that captures what is enqueued in graphs, which are launched as one: `D::Graph` (an owner, empty by default),
/// `D::capture(origin, sides, work)`, `D::is_capturing(stream)` and `D::launch(stream, graph)`. No part of `Device`.
///
/// While `work` is called nothing that it enqueues to these streams runs, and events that it records stand for points in the graph. What was
/// enqueued to any of them before is complete before the graph begins on `origin`; the graph is done when `origin` is.
template <class D>
concept CapturesGraphs = Device<D> && requires(typename D::Stream stream, std::span<typename D::Stream const> sides,
                                               typename D::Graph const& graph, void (&work)()) {
  requires std::default_initializable<typename D::Graph> && std::movable<typename D::Graph>;
  { D::capture(stream, sides, work) } -> std::same_as<typename D::Graph>;
  { D::is_capturing(stream) } -> std::same_as<bool>;
  D::launch(stream, graph);
};

/// Explains in a sentence what a type lacks to be a `Device`: `static_assert(zero::check_device<MyDevice>());`
template <class D>
consteval bool check_device() {
  static_assert(HasStreamsAndEvents<D>,
                "zero: a device has member types Stream (trivially copyable, comparable with ==) and Event (trivially copyable, "
                "default constructible) and a static member name (char const*)");
  static_assert(OrdersStreams<D>, "zero: a device has static record(Stream) returning its Event, and wait(Stream, Event, zero::WaitId)");
  static_assert(SynchronizesWithHost<D>, "zero: a device has static synchronize(Stream) and synchronize(Event)");
  static_assert(CopiesMemory<D>,
                "zero: a device has static copy(Stream, void* to, void const* from, std::int64_t bytes) and "
                "fill(Stream, T* to, std::int64_t n, T value)");
  static_assert(KnowsItsMemory<D>,
                "zero: a device has static pinned_memory() returning zero::MemoryResource&, host memory that it copies to and from, and "
                "check_memory(void const*), which throws where work on the device cannot use that memory");
  static_assert(ExecutesFunctors<D>,
                "zero: a device has static for_each(Stream, std::int64_t n, F), accumulate(Stream, std::int64_t n, F) and run(Stream, F) "
                "for functors F");
  return Device<D>;
}

}  // namespace zero
