// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The collectives of MPI processes: which of MPI's nonblocking ones an operation is.

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

/// One rank's side of one collective.
class MpiCall {
public:
  explicit MpiCall(MpiGroup& group) noexcept : group_(group) {}

  template <Element T>
  void perform(AllGather<T> const& o) {
    bool const in_place = o.send == o.receive + group_.rank() * o.count;
    for_parts(o.count, elements_at_once<T>(group_.size()), [&](std::int64_t begin, std::int64_t count) {
      MpiBytes const part = bytes_of<T>(count, o.count);
      MpiBytes const own = bytes_of<T>(count, count);
      run(o, "MPI_Iallgather", [&](MPI_Request* request) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : o.send + begin, own.count(), own.type(), o.receive + begin, part.count(),
                              part.type(), comm(), request);
      });
    });
  }

  /// Messages between every two ranks. MPI_Ialltoall would move the own part too, and takes longer (bench/collectives_mpi.cpp).
  template <Element T>
  void perform(AllToAll<T> const& o) {
    T const* const own = o.send + group_.rank() * o.send_stride();
    if (o.own_part && o.count > 0) std::memcpy(o.receive + group_.rank() * o.count, own, static_cast<std::size_t>(o.count) * sizeof(T));
    for_parts(o.count, elements_at_once<T>(1), [&](std::int64_t begin, std::int64_t count) {
      for (int first = 1; first < group_.size(); first += peers_at_once) exchange(o, begin, count, first);
    });
  }

  template <Element T>
  void perform(Broadcast<T> const& o) {
    for_parts(o.count, elements_at_once<T>(1), [&](std::int64_t begin, std::int64_t count) {
      MpiBytes const part = bytes_of<T>(count, count);
      run(o, "MPI_Ibcast",
          [&](MPI_Request* request) { return MPI_Ibcast(o.buffer + begin, part.count(), part.type(), o.root, comm(), request); });
    });
  }

  void perform(Barrier const& o) {
    run(o, "MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm(), request); });
  }

  template <Element T, class Op>
  void perform(AllReduce<T, Op> const& o) {
    MpiReduction<Op, T> const reduction(group_.own_name());
    for_parts(o.count, largest(), [&](std::int64_t begin, std::int64_t count) {
      run(o, "MPI_Iallreduce", [&](MPI_Request* request) {
        return MPI_Iallreduce(o.send == o.receive ? MPI_IN_PLACE : o.send + begin, o.receive + begin, static_cast<int>(count),
                              mpi_type_for_sums<T>(), reduction.get(), comm(), request);
      });
    });
    scale(o);
  }

  template <Element T, class Op>
  void perform(ReduceScatter<T, Op> const& o) {
    MpiReduction<Op, T> const reduction(group_.own_name());
    if (o.count * group_.size() <= largest()) {
      // In place MPI would put every rank's result at the front of its buffer.
      bool const in_place = o.receive == o.send + group_.rank() * o.count;
      std::unique_ptr<std::byte[]> scratch;
      if (in_place) scratch = std::make_unique<std::byte[]>(static_cast<std::size_t>(o.count) * sizeof(T));
      void* const to = in_place ? static_cast<void*>(scratch.get()) : o.receive;
      try {
        run(o, "MPI_Ireduce_scatter_block", [&](MPI_Request* request) {
          return MPI_Ireduce_scatter_block(o.send, to, static_cast<int>(o.count), mpi_type_for_sums<T>(), reduction.get(), comm(), request);
        });
      } catch (...) {
        static_cast<void>(scratch.release());  // MPI may still write to it.
        throw;
      }
      if (in_place && o.count > 0) std::memcpy(o.receive, scratch.get(), static_cast<std::size_t>(o.count) * sizeof(T));
    } else {
      reduce_in_parts(o, reduction.get());
    }
    scale(o);
  }

private:
  static constexpr int peers_at_once = 32;

  /// With the peers that are `first` ranks away and further, each way.
  template <Element T>
  void exchange(AllToAll<T> const& o, std::int64_t begin, std::int64_t count, int first) {
    int const rank = group_.rank();
    int const size = group_.size();
    int const end = size - first < peers_at_once ? size : first + peers_at_once;
    int const bytes = static_cast<int>(count * static_cast<std::int64_t>(sizeof(T)));
    MPI_Request requests[2 * peers_at_once];
    int started = 0;
    try {
      for (int k = first; k < end; ++k) {
        int const peer = (rank + k) % size;
        T const* const from = o.send + peer * o.send_stride() + begin;
        check_mpi(MPI_Isend(from, bytes, MPI_BYTE, peer, 0, comm(), requests + started), "MPI_Isend", group_.own_name());
        ++started;
      }
      for (int k = first; k < end; ++k) {
        int const peer = (rank + size - k) % size;
        T* const to = o.receive + o.place(peer, rank) + begin;
        check_mpi(MPI_Irecv(to, bytes, MPI_BYTE, peer, 0, comm(), requests + started), "MPI_Irecv", group_.own_name());
        ++started;
      }
    } catch (...) {
      if (started > 0) mpi_may_still_write() = true;
      throw;
    }
    group_.complete(requests, started, [&] { return fingerprint(o); });
  }

  /// More than MPI is given at once: what it adds in one call is put together in memory of our own.
  template <Element T, class Op>
  void reduce_in_parts(ReduceScatter<T, Op> const& o, MPI_Op op) {
    constexpr std::int64_t scratch_bytes = std::int64_t{64} << 20;
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
    std::int64_t const most = at_least_one((largest() < scratch_bytes / bytes ? largest() : scratch_bytes / bytes) / group_.size());
    std::unique_ptr<std::byte[]> scratch(new std::byte[static_cast<std::size_t>(most * group_.size() * bytes)]);
    try {
      for_parts(o.count, most, [&](std::int64_t begin, std::int64_t count) {
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
      if (o.factor != 1.0f) independent_loop(o.count, Scaled<T>{o.receive, o.receive, o.factor});
    }
  }

  template <class Operation, class Start>
  void run(Operation const& operation, char const* name, Start const& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(start(&request), name, group_.own_name());
    group_.complete(&request, 1, [&] { return fingerprint(operation); });
  }

  /// Calls part(begin, count) for parts of `count` elements, `most` or less. At least once, so that ranks meet also where nothing is moved.
  template <class Part>
  static void for_parts(std::int64_t count, std::int64_t most, Part const& part) {
    std::int64_t begin = 0;
    do {
      part(begin, count - begin < most ? count - begin : most);
      begin += most;
    } while (begin < count);
  }

  /// Of how many elements so many copies are no more than MPI is given at once; one that does not fit goes alone.
  template <Element T>
  [[nodiscard]] std::int64_t elements_at_once(int copies) const noexcept {
    return at_least_one(largest() / static_cast<std::int64_t>(sizeof(T)) / copies);
  }
  [[nodiscard]] static std::int64_t at_least_one(std::int64_t count) noexcept { return count > 0 ? count : 1; }

  /// @param stride from one rank's part to the next [elements].
  template <Element T>
  [[nodiscard]] MpiBytes bytes_of(std::int64_t count, std::int64_t stride) const {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
    return MpiBytes(count * bytes, stride * bytes, group_.own_name());
  }

  [[nodiscard]] std::int64_t largest() const noexcept { return group_.options().largest_count; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return group_.comm(); }

  MpiGroup& group_;
};

}  // namespace zero::detail
