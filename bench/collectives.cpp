// SPDX-License-Identifier: Apache-2.0
/// @file
/// Collectives between threads against memcpy of the same size in the same run. Every run checks its result.
///
/// `bench_collectives [MiB per rank = 64] [repetitions = 15]`

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <zero/comm/run_ranks.hpp>
#include <zero/comm/threads.hpp>

#include "timing.hpp"

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::Barrier;
using zero::HostStreamRef;
using zero::ReduceScatter;
using zero::ThreadCommunicator;

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Result {
  bench::Spread gather, reduce_scatter, all_reduce, copy;
  bool right = true;
};

Result measure(int ranks, std::int64_t count, int repetitions) {
  Result result;
  std::vector<double> gather, reduce_scatter, all_reduce, copy;
  std::vector<char> right(static_cast<std::size_t>(ranks), 1);
  zero::run_ranks(ranks, [&](ThreadCommunicator& comm) {
    HostStreamRef const here = HostStreamRef::calling_thread();
    std::int64_t const part = count / ranks;
    std::vector<float> buffer(static_cast<std::size_t>(count));
    std::vector<float> other(static_cast<std::size_t>(count));
    bool good = true;
    auto const timed = [&](std::vector<double>& samples, auto const& call) {
      comm.enqueue(here, Barrier{});
      double const begin = now_ms();
      call();
      comm.enqueue(here, Barrier{});
      if (comm.rank() == 0) samples.push_back(now_ms() - begin);
    };
    auto const sum = static_cast<float>(ranks * (ranks + 1) / 2);
    for (int i = 0; i < repetitions; ++i) {
      timed(copy, [&] {
        if (comm.rank() == 0) std::memcpy(other.data(), buffer.data(), buffer.size() * sizeof(float));
      });
      std::fill(buffer.begin(), buffer.end(), static_cast<float>(comm.rank() + 1));
      timed(gather, [&] {
        comm.enqueue(here, AllGather<float>{.send = buffer.data() + comm.rank() * part, .receive = buffer.data(), .count = part});
      });
      for (std::int64_t k = 0; k < part * ranks; k += 997)
        good = good && buffer[static_cast<std::size_t>(k)] == static_cast<float>(k / part + 1);
      std::fill(buffer.begin(), buffer.end(), static_cast<float>(comm.rank() + 1));
      timed(reduce_scatter,
            [&] { comm.enqueue(here, ReduceScatter<float>{.send = buffer.data(), .receive = other.data(), .count = part}); });
      for (std::int64_t k = 0; k < part; k += 97) good = good && other[static_cast<std::size_t>(k)] == sum;
      timed(all_reduce, [&] { comm.enqueue(here, AllReduce<float>{.send = buffer.data(), .receive = buffer.data(), .count = count}); });
      for (std::int64_t k = 0; k < count; k += 997) good = good && buffer[static_cast<std::size_t>(k)] == sum;
    }
    right[static_cast<std::size_t>(comm.rank())] = good ? 1 : 0;
  });
  result.gather = bench::spread(gather);
  result.reduce_scatter = bench::spread(reduce_scatter);
  result.all_reduce = bench::spread(all_reduce);
  result.copy = bench::spread(copy);
  for (char good : right) result.right = result.right && good != 0;
  return result;
}

void print(char const* name, int ranks, bench::Spread const& t, double copy_ms, double bus_mib) {
  std::printf("%-15s %5d  %8.2f (%8.2f to %8.2f)  %6.2f  %8.1f\n", name, ranks, t.median, t.low, t.high, t.median / copy_ms,
              bus_mib / 1024 / t.median * 1000);
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t const mib = argc > 1 ? std::atoll(argv[1]) : 64;
  int const repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  if (mib < 1 || repetitions < 1) {
    std::fprintf(stderr, "usage: %s [MiB per rank] [repetitions]\n", argv[0]);
    return 2;
  }
  std::int64_t const count = mib * 1024 * 1024 / 4;
  std::printf(
      "%lld MiB fp32 per rank, median of %d (a tenth to nine tenths) [ms]; ratio to memcpy of %lld MiB on one thread in the same run;\n"
      "bus bandwidth [GiB/s]: bytes received per rank over time\n",
      static_cast<long long>(mib), repetitions, static_cast<long long>(mib));
  std::printf("%-15s %5s  %8s %22s  %6s  %8s\n", "", "ranks", "median", "", "ratio", "bus");
  bool right = true;
  for (int ranks : {2, 4, 8}) {
    Result const r = measure(ranks, count, repetitions);
    double const received = static_cast<double>(mib) * (ranks - 1) / ranks;
    print("memcpy", ranks, r.copy, r.copy.median, static_cast<double>(mib));
    print("all-gather", ranks, r.gather, r.copy.median, received);
    print("reduce-scatter", ranks, r.reduce_scatter, r.copy.median, received);
    print("all-reduce", ranks, r.all_reduce, r.copy.median, 2 * received);
    right = right && r.right;
  }
  std::puts(right ? "results right" : "RESULTS WRONG");
  return right ? 0 : 1;
}
