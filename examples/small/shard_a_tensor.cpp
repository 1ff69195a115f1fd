// SPDX-License-Identifier: Apache-2.0
/// @file
/// Shards a vector over four ranks, works on each part with an algorithm (Thrust's where it is installed), and gathers the whole.

#include <cstdio>
#include <zero/zero.hpp>

#if defined(EXAMPLE_HAS_THRUST)
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/transform.h>
#else
#include <algorithm>
#include <numeric>
#endif

namespace {

struct Square {
  double operator()(double x) const { return x * x; }
};

/// Sets x to first, first + 1, ..., squares each element, and returns the sum.
double sum_of_squares(std::span<double> x, double first) {
#if defined(EXAMPLE_HAS_THRUST)
  thrust::sequence(thrust::host, x.begin(), x.end(), first);
  thrust::transform(thrust::host, x.begin(), x.end(), x.begin(), Square{});
  return thrust::reduce(thrust::host, x.begin(), x.end());
#else
  std::iota(x.begin(), x.end(), first);
  std::transform(x.begin(), x.end(), x.begin(), Square{});
  return std::reduce(x.begin(), x.end());
#endif
}

}  // namespace

int main() {
  constexpr std::int64_t n = 100'003;  // any size: the last rank has less

  zero::run_ranks(4, [](zero::ThreadCommunicator& comm) {
    auto const here = zero::HostStreamRef::calling_thread();
    zero::ShardedTensor<double, zero::Sharded> x{comm, n, zero::host_memory()};

    // local() is this rank's part without padding; first() is the global index of its first element.
    double const part = sum_of_squares(x.local(), static_cast<double>(x.first()));

    // Bytes move, so this is an owner: all n elements on every rank.
    auto const whole = zero::convert<zero::Replicated>(comm, here, x);

    // One number on each rank is a Partial value of one element: its sum is the Replicated one.
    zero::ShardedTensor<double, zero::Partial> sum{comm, 1, zero::host_memory()};
    sum.local()[0] = part;
    auto const total = zero::convert<zero::Replicated>(comm, here, sum);

    double const expected = static_cast<double>(n - 1) * static_cast<double>(n) * static_cast<double>(2 * n - 1) / 6;
    double const last = static_cast<double>(n - 1) * static_cast<double>(n - 1);
    if (whole.local().back() != last) throw zero::Error("the last element is wrong", comm.rank());
    double const error = total.local()[0] / expected - 1;
    if (!(error < 1e-12 && error > -1e-12)) throw zero::Error("the sum is wrong", comm.rank());
    if (comm.rank() == 0)
      std::printf("sum of squares below %lld over %d ranks: %.17g\n", static_cast<long long>(n), comm.size(), total.local()[0]);
  });
}
