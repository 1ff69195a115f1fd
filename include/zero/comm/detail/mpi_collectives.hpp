// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The collectives of MPI processes: which of MPI's nonblocking ones, or which messages, an operation is.

#include <zero/comm/mpi_error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include <zero/comm/detail/alone.hpp>
#include <zero/comm/detail/fingerprint.hpp>
#include <zero/comm/detail/mpi_group.hpp>
#include <zero/comm/detail/mpi_types.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/device/host_device.hpp>

namespace zero::detail {

/// One rank's side of one collective. What is rare is a function of its own, called on a copy: an object whose address is known elsewhere is
/// not kept in registers.
class MpiCall {
public:
  explicit MpiCall(MpiGroup& group) noexcept : group_(group) {}

  /// True if this rank may be done before all others have begun: a broadcast's root only sends, and where nothing is moved MPI may do nothing.
  template <class Operation>
  [[nodiscard]] static bool may_end_alone(Operation const& o) noexcept {
    if constexpr (Operation::kind == OperationKind::barrier) return false;
    else return Operation::kind == OperationKind::broadcast || o.count == 0;
  }

  template <Element T>
  void perform(AllGather<T> const& o) const {
    bool const in_place = o.send == o.receive + group_.rank() * o.count;
    if (o.count * bytes_of_one<T>() * group_.size() > largest()) return MpiCall(*this).gather_in_parts(o, in_place);
    int const bytes = static_cast<int>(o.count * bytes_of_one<T>());
    run(o, "MPI_Iallgather", [&](MPI_Request* request) {
      return MPI_Iallgather(in_place ? MPI_IN_PLACE : o.send, bytes, MPI_BYTE, o.receive, bytes, MPI_BYTE, comm(), request);
    });
  }

  /// Messages between every two ranks: MPI_Ialltoall would move the own part too.
  template <Element T>
  void perform(AllToAll<T> const& o) const {
    if (o.own_part && o.count > 0) {
      T const* const own = o.send + group_.rank() * o.send_stride();
      std::memcpy(o.receive + group_.rank() * o.count, own, static_cast<std::size_t>(o.count) * sizeof(T));
    }
    for_parts(o.count, bytes_of_one<T>(), [*this, &o](std::int64_t begin, std::int64_t count) {
      if (group_.size() == 2) exchange(o, begin, count, 1, 2);
      else exchange_in_batches(o, begin, count);
    });
  }

  template <Element T>
  void perform(Broadcast<T> const& o) const {
    for_parts(o.count, bytes_of_one<T>(), [*this, &o](std::int64_t begin, std::int64_t count) {
      int const bytes = static_cast<int>(count * bytes_of_one<T>());
      run(o, "MPI_Ibcast", [&](MPI_Request* request) { return MPI_Ibcast(o.buffer + begin, bytes, MPI_BYTE, o.root, comm(), request); });
    });
  }

  void perform(Barrier const& o) const {
    run(o, "MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm(), request); });
  }

  template <Element T, class Op>
  void perform(AllReduce<T, Op> const& o) const {
    MpiReduction<Op, T> const reduction(group_.own_name());
    for_parts(o.count, 1, [*this, &o, op = reduction.get()](std::int64_t begin, std::int64_t count) {
      run(o, "MPI_Iallreduce", [&](MPI_Request* request) {
        return MPI_Iallreduce(o.send == o.receive ? MPI_IN_PLACE : o.send + begin, o.receive + begin, static_cast<int>(count),
                              mpi_type_for_sums<T>(), op, comm(), request);
      });
    });
    scale(o);
  }

  template <Element T, class Op>
  void perform(ReduceScatter<T, Op> const& o) const {
    MpiReduction<Op, T> const reduction(group_.own_name());
    if (o.count * group_.size() > largest()) MpiCall(*this).reduce_in_parts(o, reduction.get());
    else if (o.receive == o.send + group_.rank() * o.count) MpiCall(*this).reduce_in_place(o, reduction.get());
    else reduce_scatter(o, o.receive, reduction.get());
    scale(o);
  }

private:
  static constexpr int most_peers_at_once = 32;

  [[noreturn, gnu::noinline]] void fail_exchange(int code, char const* call, bool others_have_begun) const {
    if (others_have_begun) mpi_may_still_write() = true;
    throw_mpi_error(code, call, group_.own_name());
  }

  /// With some peers after the other: no more messages at once than an array holds, and no more bytes than MPI is given at once.
  template <Element T>
  [[gnu::noinline]] void exchange_in_batches(AllToAll<T> const& o, std::int64_t begin, std::int64_t count) const {
    std::int64_t const fitting = count > 0 ? at_least_one(largest() / (count * bytes_of_one<T>())) : most_peers_at_once;
    int const at_once = fitting < most_peers_at_once ? static_cast<int>(fitting) : most_peers_at_once;
    int const size = group_.size();
    for (int first = 1; first < size; first += at_once) exchange(o, begin, count, first, size - first < at_once ? size : first + at_once);
  }

  /// With the peers that are from `first` to `end` ranks away, each way. What peers wait for is sent first.
  template <Element T>
  void exchange(AllToAll<T> const& o, std::int64_t begin, std::int64_t count, int first, int end) const {
    int const rank = group_.rank();
    int const size = group_.size();
    int const bytes = static_cast<int>(count * bytes_of_one<T>());
    T const* const from = o.send + begin;
    T* const to = o.receive + begin;
    std::int64_t const stride = o.count > 0 ? o.send_stride() : 0;
    MPI_Request requests[2 * most_peers_at_once];
    MPI_Request* next = requests;
    for (int k = first; k < end; ++k, ++next) {
      int const peer = rank + k < size ? rank + k : rank + k - size;
      int const code = MPI_Isend(from + peer * stride, bytes, MPI_BYTE, peer, 0, comm(), next);
      if (code != MPI_SUCCESS) fail_exchange(code, "MPI_Isend", next != requests);
    }
    for (int k = first; k < end; ++k, ++next) {
      int const peer = rank >= k ? rank - k : rank - k + size;
      int const code = MPI_Irecv(to + o.place(peer, rank), bytes, MPI_BYTE, peer, 0, comm(), next);
      if (code != MPI_SUCCESS) fail_exchange(code, "MPI_Irecv", next != requests);
    }
    int const started = static_cast<int>(next - requests);
    group_.complete(requests, started, [&] { return fingerprint(o); });
  }

  template <Element T>
  [[gnu::noinline]] void gather_in_parts(AllGather<T> const& o, bool in_place) const {
    in_parts(o.count, largest() / bytes_of_one<T>() / group_.size(), [&](std::int64_t begin, std::int64_t count) {
      MpiBytes const part(count * bytes_of_one<T>(), o.count * bytes_of_one<T>(), group_.own_name());
      int const bytes = static_cast<int>(count * bytes_of_one<T>());
      run(o, "MPI_Iallgather", [&](MPI_Request* request) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : o.send + begin, bytes, MPI_BYTE, o.receive + begin, part.count(), part.type(),
                              comm(), request);
      });
    });
  }

  template <Element T, class Op>
  void reduce_scatter(ReduceScatter<T, Op> const& o, void* to, MPI_Op op) const {
    run(o, "MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(o.send, to, static_cast<int>(o.count), mpi_type_for_sums<T>(), op, comm(), request);
    });
  }

  /// In place MPI would put every rank's result at the front of its buffer.
  template <Element T, class Op>
  [[gnu::noinline]] void reduce_in_place(ReduceScatter<T, Op> const& o, MPI_Op op) const {
    std::size_t const bytes = static_cast<std::size_t>(o.count) * sizeof(T);
    std::unique_ptr<std::byte[]> scratch(new std::byte[bytes]);
    try {
      reduce_scatter(o, scratch.get(), op);
    } catch (...) {
      static_cast<void>(scratch.release());  // MPI may still write to it.
      throw;
    }
    if (bytes > 0) std::memcpy(o.receive, scratch.get(), bytes);
  }

  /// More than MPI is given at once: what it adds in one call is put together in memory of our own.
  template <Element T, class Op>
  [[gnu::noinline]] void reduce_in_parts(ReduceScatter<T, Op> const& o, MPI_Op op) const {
    constexpr std::int64_t scratch_bytes = std::int64_t{64} << 20;
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
    std::int64_t const most = at_least_one((largest() < scratch_bytes / bytes ? largest() : scratch_bytes / bytes) / group_.size());
    std::unique_ptr<std::byte[]> scratch(new std::byte[static_cast<std::size_t>(most * group_.size() * bytes)]);
    try {
      in_parts(o.count, most, [&](std::int64_t begin, std::int64_t count) {
        for (int rank = 0; rank < group_.size(); ++rank) {
          std::memcpy(scratch.get() + rank * count * bytes, o.send + rank * o.count + begin, static_cast<std::size_t>(count * bytes));
        }
        run(o, "MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
          return MPI_Ireduce_scatter_block(scratch.get(), o.receive + begin, static_cast<int>(count), mpi_type_for_sums<T>(), op, comm(),
                                           request);
        });
      });
    } catch (...) {
      static_cast<void>(scratch.release());  // MPI may still use it.
      throw;
    }
  }

  template <class Operation>
  static void scale(Operation const& o) {
    using T = typename Operation::element;
    if constexpr (RealElement<T>) {
      if (o.factor != 1.0f) multiply(o.receive, o.count, o.factor);
    }
  }
  template <RealElement T>
  [[gnu::noinline]] static void multiply(T* values, std::int64_t count, float factor) {
    independent_loop(count, Scaled<T>{values, values, factor});
  }

  template <class Operation, class Start>
  void run(Operation const& operation, char const* name, Start const& start) const {
    MPI_Request request = MPI_REQUEST_NULL;
    int const code = start(&request);
    if (code != MPI_SUCCESS) throw_mpi_error(code, name, group_.own_name());
    group_.complete(&request, 1, [&] { return fingerprint(operation); });
  }

  /// Calls part(begin, count) for all elements, or for parts of them that are no more than MPI is given at once. At least once, so that ranks
  /// meet also where nothing is moved.
  /// @param weight what an element counts for in that.
  template <class Part>
  void for_parts(std::int64_t count, std::int64_t weight, Part part) const {
    if (count * weight <= largest()) part(0, count);
    else in_parts(count, largest() / weight, part);
  }
  /// The same for parts of `most` or less; of one element if it is none.
  template <class Part>
  [[gnu::noinline]] static void in_parts(std::int64_t count, std::int64_t most, Part part) {
    std::int64_t const step = at_least_one(most);
    for (std::int64_t begin = 0; begin < count; begin += step) part(begin, count - begin < step ? count - begin : step);
  }

  template <Element T>
  [[nodiscard]] static constexpr std::int64_t bytes_of_one() noexcept {
    return static_cast<std::int64_t>(sizeof(T));
  }
  [[nodiscard]] static std::int64_t at_least_one(std::int64_t count) noexcept { return count > 0 ? count : 1; }

  [[nodiscard]] std::int64_t largest() const noexcept { return group_.options().largest_count; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return group_.comm(); }

  MpiGroup& group_;
};

}  // namespace zero::detail
