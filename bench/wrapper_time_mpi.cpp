// SPDX-License-Identifier: Apache-2.0
/// @file
/// Time of collectives between MPI processes: `MpiCommunicator::enqueue` on a stream that is the calling thread against the nonblocking call and
/// MPI_Test until it is done, in turns in one run. Checks the results. To be started by mpirun.
///
/// `bench_wrapper_time_mpi [rounds = 41]`

#include <zero/comm/mpi_environment.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <zero/comm/mpi.hpp>

#include "compare.hpp"

namespace {

using zero::MpiCommunicator;

class Bench {
public:
  Bench(MpiCommunicator& comm, int rounds) : comm_(comm), rounds_(rounds) {}

  /// @param kib of the whole vector on each rank.
  void run(std::int64_t kib) {
    int const n = comm_.size();
    int const rank = comm_.rank();
    MPI_Comm const raw = comm_.native_handle();
    std::int64_t const part = kib * 256 / n;
    std::int64_t const count = part * n;
    int const part_int = static_cast<int>(part);
    int const count_int = static_cast<int>(count);
    std::vector<float> sent(static_cast<std::size_t>(count), static_cast<float>(rank + 1));
    std::vector<float> received(sent.size());
    float* const from = sent.data();
    float* const to = received.data();
    auto const before = [&] {
      std::fill(received.begin(), received.end(), -1.0f);
      std::fill_n(to + rank * part, part, static_cast<float>(rank + 1));
    };
    auto const check = [&](std::int64_t size, auto const& expected) {
      return [this, to, size, expected] {
        for (std::int64_t i = 0; i < size; i += 97) right_ = right_ && to[i] == expected(i);
      };
    };
    auto const sum = [n](std::int64_t) { return static_cast<float>(n * (n + 1) / 2); };
    auto const of_rank = [part](std::int64_t i) { return static_cast<float>(i / part + 1); };
    auto const row = [&](char const* name, auto const& start, auto const& operation, auto const& after) {
      std::int64_t const calls = std::max(std::int64_t{4}, 32 * 1024 / kib);
      bench::Comparison const result = bench::compare(
          rounds_,
          [&] {
            return seconds(
                calls, before, [&] { raw_call(start); }, after);
          },
          [&] {
            return seconds(
                calls, before, [&] { comm_.enqueue(here_, operation); }, after);
          });
      std::string const size = kib < 1024 ? std::to_string(kib) + " KiB" : std::to_string(kib / 1024) + " MiB";
      if (rank == 0) bench::print((std::string(name) + ", " + size).c_str(), result);
    };
    row(
        "all-gather",
        [=](MPI_Request* request) { MPI_Iallgather(MPI_IN_PLACE, part_int, MPI_FLOAT, to, part_int, MPI_FLOAT, raw, request); },
        zero::AllGather<float>{.send = to + rank * part, .receive = to, .count = part}, check(count, of_rank));
    row(
        "all-to-all", [=](MPI_Request* request) { MPI_Ialltoall(from, part_int, MPI_FLOAT, to, part_int, MPI_FLOAT, raw, request); },
        zero::AllToAll<float>{.send = from, .receive = to, .count = part}, check(count, of_rank));
    row(
        "reduce-scatter", [=](MPI_Request* request) { MPI_Ireduce_scatter_block(from, to, part_int, MPI_FLOAT, MPI_SUM, raw, request); },
        zero::ReduceScatter<float>{.send = from, .receive = to, .count = part}, check(part, sum));
    row(
        "all-reduce", [=](MPI_Request* request) { MPI_Iallreduce(from, to, count_int, MPI_FLOAT, MPI_SUM, raw, request); },
        zero::AllReduce<float>{.send = from, .receive = to, .count = count}, check(count, sum));
  }

  [[nodiscard]] bool right() const {
    int good = right_ ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return good != 0;
  }

private:
  template <class Start>
  static void raw_call(Start const& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    start(&request);
    for (int done = 0; done == 0;) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }

  /// Of one call of many, on the slowest rank.
  template <class Before, class Call, class After>
  static double seconds(std::int64_t calls, Before const& before, Call const& call, After const& after) {
    before();
    MPI_Barrier(MPI_COMM_WORLD);
    double const begin = MPI_Wtime();
    for (std::int64_t i = 0; i < calls; ++i) call();
    double took = (MPI_Wtime() - begin) / static_cast<double>(calls);
    MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    after();
    return took;
  }

  MpiCommunicator& comm_;
  zero::HostStreamRef here_ = zero::HostStreamRef::calling_thread();
  int rounds_;
  bool right_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  int const rounds = argc > 1 ? std::atoi(argv[1]) : 41;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: %s [rounds]\n", argv[0]);
    return 2;
  }
  return zero::run_mpi(argc, argv, [&](MpiCommunicator& comm) {
    if (comm.rank() == 0) {
      std::printf("MpiCommunicator, fp32 in vectors of this size on each of %d ranks, %d rounds\n", comm.size(), rounds);
      bench::print_head();
    }
    Bench bench(comm, rounds);
    for (std::int64_t kib : {64, 1024, 16 * 1024}) bench.run(kib);
    bool const right = bench.right();
    if (comm.rank() == 0) std::puts(right ? "results right" : "RESULTS WRONG");
    return right ? 0 : 1;
  });
}
