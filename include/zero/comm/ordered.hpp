// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// `Ordered`: an adaptor that adds over the ranks in one fixed order, with one rounding, on any transport that moves elements.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <zero/comm/communicator.hpp>
#include <zero/comm/detail/alone.hpp>
#include <zero/comm/detail/arguments.hpp>
#include <zero/comm/detail/ordered_sum.hpp>
#include <zero/comm/detail/staging_order.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>
#include <zero/device/memory.hpp>

namespace zero {

/// How `Ordered` is made.
struct OrderedOptions {
  /// Memory for what has been received and is not added yet [bytes]. What is larger is done in parts of this size. At least 64 bytes a rank
  /// are taken.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
};

namespace detail {

/// A reduction over ranks that `Ordered<Inner>` performs itself. Sums of integers are the same in any order: who can form them, does.
template <class Inner, class Operation>
concept ReducesInOrder =
    (std::is_same_v<Operation, ReduceScatter<typename Operation::element, typename Operation::reduction>> ||
     std::is_same_v<Operation, AllReduce<typename Operation::element,
                                         typename Operation::reduction>>)&&(RealElement<typename Operation::element> ||
                                                                            !Performs<Inner,
                                                                                      Operation>)&&AllToAlls<Inner,
                                                                                                             typename Operation::element> &&
    GathersAll<Inner, typename Operation::element>;

}  // namespace detail

/// A communicator that adds real elements in the fixed binary tree over ranks of the threads of one process, whatever `Inner` is: sums over
/// MPI or NCCL are then equal to those over threads to the bit, 16-bit elements are added in fp32 and rounded once, and nothing depends on
/// the algorithm that a library chooses.
///
/// A reduce-scatter is `Inner`'s all-to-all into staging memory and a sum by this rank's device; an all-reduce is that and an all-gather.
/// Everything else is passed on, reductions of integers too where `Inner` performs them.
///
/// `Ordered ordered{Borrowed{communicator}, memory};` adapts a communicator that somebody else owns. `Counting` around it counts the
/// program's calls and the bytes of their formulas, as `plan` does; inside it counts what moves, call by call. A `Checked` belongs around
/// it.
///
/// @par Communication
/// Reduce-scatter: (N - 1) * count elements received per rank, as any other. All-reduce: 2 (N - 1) / N of the elements that N divides; the
/// fewer than N at the end are gathered from all ranks. That is `AllReduce`'s formula on every rank where the N ranges are whole cache
/// lines, as those of the library's own states are with the default alignments.
/// @par Memory
/// `staging_bytes`, at least 64 N, for `Purpose::staging`, and a pointer a rank; for each group made by `split` again. Nothing is allocated
/// later.
/// @par Stream order
/// Everything runs on the stream of the call. Reductions share the staging memory, so one on another stream than the last waits for it.
/// Streams that are not host streams must exist until the next reduction, or the end of this object. The destructor waits for what it has
/// enqueued itself; if an exception is passing, and there is something to wait for, it first aborts the group.
template <RankGroup Inner>
class Ordered {
public:
  using Device = typename Inner::Device;
  static_assert(zero::Device<Device>, "zero: Ordered adds on the communicator's device: its member type Device must model zero::Device");

  /// @param inner  what moves the elements, kept by value.
  /// @param memory where the staging memory comes from; must outlive this and all groups split from it, and be memory of the device.
  /// @throws UsageError for a negative size.
  /// @throws MemoryError where there is no staging memory.
  Ordered(Inner inner, MemoryResource& memory, OrderedOptions options = {}, SourceLocation where = SourceLocation::current())
      : inner_(std::move(inner)),
        memory_(&memory),
        options_(options),
        staging_(memory, staging_size(inner_, options, where), Purpose::staging, where),
        pointers_(std::make_unique<std::byte[]>(static_cast<std::size_t>(inner_.size()) * sizeof(void*))),
        exceptions_(std::uncaught_exceptions()) {}

  Ordered(Ordered&&) noexcept = default;
  Ordered& operator=(Ordered&&) = delete;
  ~Ordered() {
    if (pointers_ == nullptr) return;  // Moved from.
    if (!order_.idle() && std::uncaught_exceptions() > exceptions_) {
      try {
        throw CommunicationError("an exception is leaving the code that uses the group", rank());
      } catch (...) {
        inner_.abort(std::current_exception());
      }
    }
    order_.finish();
  }

  [[nodiscard]] int rank() const noexcept { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept { return inner_.size(); }
  void abort(std::exception_ptr cause) noexcept { inner_.abort(std::move(cause)); }

  /// A reduction of real elements, in the fixed order.
  /// @throws UsageError for wrong arguments, as the operation says; nothing is enqueued then.
  /// @throws what failed the group or the stream before. With a stream that is the calling thread, also what fails this collective.
  template <class Operation>
    requires detail::ReducesInOrder<Inner, Operation>
  void enqueue(StreamOf<Inner> stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    using T = typename Operation::element;
    if (pointers_ == nullptr) throw UsageError("this communicator was moved from: it is in no group", where);
    detail::check_arguments(operation, size(), rank(), where);
    if (size() == 1) {
      detail::enqueue_at(inner_, stream, AllGather<T>{.send = nullptr, .receive = nullptr, .count = 0, .label = operation.label}, where);
      detail::enqueue_alone<Device>(stream, operation);
    } else {
      order_.use(stream, where, [&] { reduce(stream, operation, where); });
    }
  }

  /// Passed on.
  template <class Operation>
    requires(Performs<Inner, Operation> && !detail::ReducesInOrder<Inner, Operation>)
  void enqueue(StreamOf<Inner> stream, Operation const& operation, SourceLocation where = SourceLocation::current()) {
    detail::enqueue_at(inner_, stream, operation, where);
  }

  /// Calls body(), whose reductions are several operations that depend on each other and cannot run as one.
  template <class Body>
  void group(StreamOf<Inner>, Body&& body) {
    std::forward<Body>(body)();
  }

  /// Passed on.
  template <class Launch>
    requires WatchesLaunches<Inner>
  void watch(StreamOf<Inner> stream, Launch&& launch, SourceLocation where = SourceLocation::current()) {
    inner_.watch(stream, std::forward<Launch>(launch), where);
  }

  /// See `Splits`. The new group adds in order too, with staging memory of its own.
  [[nodiscard]] auto split(int color, int key = 0, SourceLocation where = SourceLocation::current())
    requires Splits<Inner>
  {
    auto child = detail::split_at(inner_, color, key, where);
    return Ordered<decltype(child)>(std::move(child), *memory_, options_, where);
  }

private:
  static constexpr std::int64_t line_bytes = 64;

  static std::int64_t staging_size(Inner const& inner, OrderedOptions const& options, SourceLocation where) {
    if (options.staging_bytes < 0) {
      throw UsageError("Ordered: " + std::to_string(options.staging_bytes) + " bytes of staging memory", where, inner.rank());
    }
    std::int64_t const least = line_bytes * inner.size();
    return inner.size() == 1 ? 0 : options.staging_bytes > least ? options.staging_bytes : least;
  }

  /// How many elements of so many ranks the staging memory holds: whole cache lines.
  template <Element T>
  [[nodiscard]] std::int64_t capacity(int ranks) const noexcept {
    return staging_.size() / ranks / line_bytes * line_bytes / static_cast<std::int64_t>(sizeof(T));
  }

  /// Calls part(begin, count) for the parts of `count` elements, `most` or less; at least once, so that ranks meet also where nothing is moved.
  template <class Part>
  static void for_parts(std::int64_t count, std::int64_t most, Part const& part) {
    std::int64_t begin = 0;
    do {
      std::int64_t const rest = count - begin;
      part(begin, rest < most ? rest : most);
      begin += most;
    } while (begin < count);
  }

  /// Reduces what the peers have sent, `count` elements each, and this rank's own part into `to`.
  template <class Op, Element T>
  void reduce_staging(StreamOf<Inner> stream, T const* own, T* to, std::int64_t count, float factor) {
    detail::reduce_staged<Device>(stream, detail::OrderedElement<Op, T>{staged<T>(), own, to, count, size(), rank(), factor},
                                  pointers_.get());
  }

  template <Element T, class Op>
  void reduce(StreamOf<Inner> stream, ReduceScatter<T, Op> const& o, SourceLocation where) {
    for_parts(o.count, capacity<T>(size() - 1), [&](std::int64_t begin, std::int64_t count) {
      T const* const parts = o.send + begin;
      detail::enqueue_at(
          inner_, stream,
          AllToAll<T>{.send = parts, .receive = staged<T>(), .count = count, .label = o.label, .stride = o.count, .own_part = false},
          where);
      reduce_staging<Op>(stream, parts + rank() * o.count, o.receive + begin, count, o.factor);
    });
  }

  template <Element T, class Op>
  void reduce(StreamOf<Inner> stream, AllReduce<T, Op> const& o, SourceLocation where) {
    std::int64_t const share = o.count / size();
    if (share > 0) {
      for_parts(share, capacity<T>(size() - 1), [&](std::int64_t begin, std::int64_t count) {
        T const* const parts = o.send + begin * size();
        T* const result = o.receive + begin * size();
        T* const own = result + count * rank();
        detail::enqueue_at(inner_, stream,
                           AllToAll<T>{.send = parts, .receive = staged<T>(), .count = count, .label = o.label, .own_part = false}, where);
        reduce_staging<Op>(stream, parts + count * rank(), own, count, o.factor);
        detail::enqueue_at(inner_, stream, AllGather<T>{.send = own, .receive = result, .count = count, .label = o.label}, where);
      });
    }
    std::int64_t const done = share * size();
    if (done == o.count && done > 0) return;
    for_parts(o.count - done, capacity<T>(size()), [&](std::int64_t begin, std::int64_t count) {
      detail::enqueue_at(inner_, stream,
                         AllGather<T>{.send = o.send + done + begin, .receive = staged<T>(), .count = count, .label = o.label}, where);
      // From all ranks, this one too.
      detail::OrderedElement<Op, T> const sum{staged<T>(), nullptr, o.receive + done + begin, count, size(), size(), o.factor};
      detail::reduce_staged<Device>(stream, sum, pointers_.get());
    });
  }

  template <Element T>
  [[nodiscard]] T* staged() noexcept {
    return reinterpret_cast<T*>(staging_.data());
  }

  Inner inner_;
  MemoryResource* memory_;
  OrderedOptions options_;
  Buffer<std::byte> staging_;
  std::unique_ptr<std::byte[]> pointers_;
  detail::StagingOrder<Device> order_;
  int exceptions_;
};

}  // namespace zero
