// SPDX-License-Identifier: Apache-2.0
/// @file
/// Collectives between MPI processes: `Ordered<MpiCommunicator>` and `MpiCommunicator` against MPI's own blocking calls in the same run. Every run
/// checks its result. To be started by mpirun.
///
/// `bench_collectives_mpi [largest size in MiB = 64] [repetitions = 9] [staging in KiB = 16384]`

#include <zero/comm/mpi_environment.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
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
    int const ints = static_cast<int>(part);
    auto const check_part = [&] { check(o, part); };
    auto const check_all = [&] { check(b, count); };
    auto const check_gathered = [&] {
      for (std::int64_t i = 0; i < count; i += 97) right_ = right_ && b[i] == static_cast<float>(i / part + 1);
    };
    auto const scattered = measure(
        fill, check_part, [&] { MPI_Reduce_scatter_block(b, o, ints, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
        [&] { comm_.enqueue(here, ReduceScatter<float>{.send = b, .receive = o, .count = part}); },
        [&] { ordered_.enqueue(here, ReduceScatter<float>{.send = b, .receive = o, .count = part}); });
    auto const reduced = measure(
        fill, check_all, [&] { MPI_Allreduce(MPI_IN_PLACE, b, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
        [&] { comm_.enqueue(here, AllReduce<float>{.send = b, .receive = b, .count = count}); },
        [&] { ordered_.enqueue(here, AllReduce<float>{.send = b, .receive = b, .count = count}); });
    auto const gathered = measure(
        fill, check_gathered, [&] { MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, b, ints, MPI_FLOAT, MPI_COMM_WORLD); },
        [&] { comm_.enqueue(here, AllGather<float>{.send = b + comm_.rank() * part, .receive = b, .count = part}); });
    if (comm_.rank() != 0) return;
    std::printf("%6lld KiB %5d", static_cast<long long>(bytes / 1024), n);
    for (auto const& [raw, plain, ordered] : {scattered, reduced}) std::printf("  %9.3f %5.2f %5.2f", raw, plain, ordered);
    std::printf("  %9.3f %5.2f\n", gathered[0], gathered[1]);
    std::fflush(stdout);
  }

private:
  /// Times MPI's call and others in turn, so that what the machine does meanwhile meets all of them: the median of MPI's [milliseconds], and of
  /// what the others take as multiples of the one before them.
  template <class Before, class After, class Raw, class... Others>
  std::array<double, 1 + sizeof...(Others)> measure(Before const& before, After const& after, Raw const& raw, Others const&... others) {
    std::array<std::vector<double>, 1 + sizeof...(Others)> samples;
    for (int i = -1; i < repetitions_; ++i) {
      double const limit = time(before, raw, after);
      std::array<double, 1 + sizeof...(Others)> const took{limit, time(before, others, after) / limit...};
      for (std::size_t k = 0; k < took.size() && i >= 0; ++k) samples[k].push_back(took[k]);  // The first calls connect processes.
    }
    std::array<double, 1 + sizeof...(Others)> medians{};
    for (std::size_t k = 0; k < medians.size(); ++k) medians[k] = bench::spread(samples[k]).median;
    return medians;
  }

  /// How long the slowest rank takes [milliseconds].
  template <class Before, class Call, class After>
  double time(Before const& before, Call const& call, After const& after) {
    before();
    comm_.enqueue(HostStreamRef::calling_thread(), zero::Barrier{});
    double const begin = MPI_Wtime();
    call();
    double took = (MPI_Wtime() - begin) * 1e3;
    comm_.enqueue(HostStreamRef::calling_thread(), AllReduce<double, zero::Max>{.send = &took, .receive = &took, .count = 1});
    after();
    return took;
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
