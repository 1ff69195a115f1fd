// SPDX-License-Identifier: Apache-2.0
/// @file
/// Collectives between MPI processes: `Ordered<MpiCommunicator>` and `MpiCommunicator` against MPI's own blocking calls in the same run. Every run
/// checks its result. To be started by mpirun.
///
/// `bench_collectives_mpi [largest size in MiB = 64] [repetitions = 9] [staging in KiB = 16384]`

#include <zero/comm/mpi_environment.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <zero/comm/mpi.hpp>
#include <zero/comm/ordered.hpp>

#include "timing.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::HostStreamRef;
using zero::MpiCommunicator;
using zero::ReduceScatter;

class Bench {
public:
  Bench(MpiCommunicator& comm, int repetitions, std::int64_t staging_bytes)
      : comm_(comm), ordered_(zero::Borrowed{comm}, zero::host_memory(), {.staging_bytes = staging_bytes}), repetitions_(repetitions) {}

  [[nodiscard]] bool right() const {
    int good = right_ ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return good != 0;
  }

  /// One line of the table. @param bytes of the whole vector on each rank.
  void run(std::int64_t bytes) {
    int const n = comm_.size();
    std::int64_t const part = bytes / 4 / n;
    std::int64_t const count = part * n;
    std::vector<float> buffer(static_cast<std::size_t>(count));
    std::vector<float> other(buffer.size());
    float* const b = buffer.data();
    float* const o = other.data();
    HostStreamRef const here = HostStreamRef::calling_thread();
    auto const sum = static_cast<float>(n * (n + 1) / 2);
    auto const fill = [&] { std::fill(buffer.begin(), buffer.end(), static_cast<float>(comm_.rank() + 1)); };
    auto const check = [&](float const* values, std::int64_t size) {
      for (std::int64_t i = 0; i < size; i += 97) right_ = right_ && values[i] == sum;
    };
    auto const reduced = [&](auto const& call) { return median([&] { fill(); }, call, [&] { check(o, part); }); };
    auto const all_reduced = [&](auto const& call) { return median([&] { fill(); }, call, [&] { check(b, count); }); };
    auto const gathered = [&](auto const& call) {
      return median([&] { fill(); }, call,
                    [&] {
                      for (std::int64_t i = 0; i < count; i += 97) right_ = right_ && b[i] == static_cast<float>(i / part + 1);
                    });
    };
    int const ints = static_cast<int>(part);
    double const scatter_raw = reduced([&] { MPI_Reduce_scatter_block(b, o, ints, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    double const scatter_plain = reduced([&] { comm_.enqueue(here, ReduceScatter<float>{.send = b, .receive = o, .count = part}); });
    double const scatter_ordered = reduced([&] { ordered_.enqueue(here, ReduceScatter<float>{.send = b, .receive = o, .count = part}); });
    double const reduce_raw =
        all_reduced([&] { MPI_Allreduce(MPI_IN_PLACE, b, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    double const reduce_plain = all_reduced([&] { comm_.enqueue(here, AllReduce<float>{.send = b, .receive = b, .count = count}); });
    double const reduce_ordered = all_reduced([&] { ordered_.enqueue(here, AllReduce<float>{.send = b, .receive = b, .count = count}); });
    double const gather_raw = gathered([&] { MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, b, ints, MPI_FLOAT, MPI_COMM_WORLD); });
    double const gather_plain =
        gathered([&] { comm_.enqueue(here, AllGather<float>{.send = b + comm_.rank() * part, .receive = b, .count = part}); });
    if (comm_.rank() != 0) return;
    auto const three = [](double raw, double plain, double ordered) {
      std::printf("  %9.3f %5.2f %5.2f", raw, plain / raw, ordered / raw);
    };
    std::printf("%6lld KiB %5d", static_cast<long long>(bytes / 1024), n);
    three(scatter_raw, scatter_plain, scatter_ordered);
    three(reduce_raw, reduce_plain, reduce_ordered);
    std::printf("  %9.3f %5.2f\n", gather_raw, gather_plain / gather_raw);
    std::fflush(stdout);
  }

private:
  /// The median of the time that the slowest rank takes [milliseconds].
  template <class Before, class Call, class After>
  double median(Before const& before, Call const& call, After const& after) {
    std::vector<double> samples;
    for (int i = -1; i < repetitions_; ++i) {
      before();
      comm_.enqueue(HostStreamRef::calling_thread(), zero::Barrier{});
      double const begin = MPI_Wtime();
      call();
      double took = (MPI_Wtime() - begin) * 1e3;
      comm_.enqueue(HostStreamRef::calling_thread(), AllReduce<double, zero::Max>{.send = &took, .receive = &took, .count = 1});
      after();
      if (i >= 0) samples.push_back(took);  // The first call connects processes.
    }
    return bench::spread(samples).median;
  }

  MpiCommunicator& comm_;
  zero::Ordered<zero::Borrowed<MpiCommunicator>> ordered_;
  int repetitions_;
  bool right_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  std::int64_t const mib = argc > 1 ? std::atoll(argv[1]) : 64;
  int const repetitions = argc > 2 ? std::atoi(argv[2]) : 9;
  std::int64_t const staging_kib = argc > 3 ? std::atoll(argv[3]) : 16384;
  if (mib < 1 || repetitions < 1 || staging_kib < 1) {
    std::fprintf(stderr, "usage: %s [largest MiB] [repetitions] [KiB of staging memory]\n", argv[0]);
    return 2;
  }
  return zero::run_mpi(argc, argv, [&](MpiCommunicator& comm) {
    if (comm.rank() == 0) {
      std::printf(
          "fp32 in vectors of this size on each rank; MPI's blocking call [ms, of the slowest rank, median of %d], and MpiCommunicator and\n"
          "Ordered (%lld KiB of staging memory) as multiples of it\n%10s %5s  %21s  %21s  %15s\n%10s %5s  %9s %5s %5s  %9s %5s %5s  %9s %5s\n",
          repetitions, static_cast<long long>(staging_kib), "", "", "reduce-scatter", "all-reduce", "all-gather", "size", "ranks", "MPI",
          "plain", "ord.", "MPI", "plain", "ord.", "MPI", "plain");
    }
    Bench bench(comm, repetitions, staging_kib * 1024);
    for (std::int64_t kib : {64, 512, 4096, 16 * 1024, 64 * 1024, 256 * 1024}) {
      if (kib <= mib * 1024) bench.run(kib * 1024);
    }
    bool const right = bench.right();
    if (comm.rank() == 0) std::puts(right ? "results right" : "RESULTS WRONG");
    return right ? 0 : 1;
  });
}
