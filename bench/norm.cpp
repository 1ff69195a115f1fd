// SPDX-License-Identifier: Apache-2.0
/// @file
/// The exactly mergeable sum of squares against a plain vectorised fp32 sum of squares of the same elements, one thread.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <zero/train/norm.hpp>

#include "timing.hpp"

namespace {

/// The limit: as many lanes as it takes to wait for the memory only.
template <class T>
ZERO_TARGET_CLONES ZERO_ELEMENT_LOOP float plain_sum(T const* data, std::int64_t n) {
  constexpr int lanes = 64;
  float sums[lanes] = {};
  for (std::int64_t i = 0; i + lanes <= n; i += lanes) {
    for (int l = 0; l < lanes; ++l) {
      float const x = static_cast<float>(data[i + l]);
      sums[l] += x * x;
    }
  }
  float sum = 0;
  for (float s : sums) sum += s;
  return sum;
}

template <class T>
bool measure(char const* name, std::int64_t n, int rounds) {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("u"), "w", {n});
  zero::Partition const partition{layout, 1};
  zero::SegmentId const id{};
  std::int64_t const end = partition.segment(id).padded_elements;
  std::vector<T> data(static_cast<std::size_t>(end));
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    T const x{static_cast<float>(i % 251) * 0x1p-7f - 1};
    data[static_cast<std::size_t>(i)] = x;
    expected += static_cast<double>(static_cast<float>(x)) * static_cast<double>(static_cast<float>(x));
  }
  std::vector<double> exact, plain, ratio;
  double result = 0;
  float volatile other = 0;
  for (int round = 0; round <= rounds; ++round) {
    double const a = bench::thread_seconds([&] { other = plain_sum(data.data(), n); });
    double const b = bench::thread_seconds([&] {
      zero::exact_square_sum_t<T> sum{};
      zero::accumulate_square_sum(sum, data.data(), partition, id, 0, end);
      result = sum.value();
    });
    if (round == 0) continue;
    plain.push_back(a * 1e3);
    exact.push_back(b * 1e3);
    ratio.push_back(b / a);
  }
  bench::Spread const e = bench::spread(exact), p = bench::spread(plain), r = bench::spread(ratio);
  bool const right = std::fabs(result / expected - 1) < 1e-12 && std::fabs(static_cast<double>(other) / expected - 1) < 1e-2;
  std::printf("%s, %lld elements, %lld bytes\n", name, static_cast<long long>(n),
              static_cast<long long>(n * static_cast<std::int64_t>(sizeof(T))));
  std::printf("  exact  %6.2f [%.2f, %.2f] ms\n", e.median, e.low, e.high);
  std::printf("  plain  %6.2f [%.2f, %.2f] ms\n", p.median, p.low, p.high);
  std::printf("  ratio  %6.2f [%.2f, %.2f] (goal: at most 1.5)\n", r.median, r.low, r.high);
  std::printf("  result %s\n", right ? "right" : "WRONG");
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t const n = argc > 1 ? std::atoll(argv[1]) : std::int64_t{16} << 20;
  int const rounds = argc > 2 ? std::atoi(argv[2]) : 41;
  std::printf("sum of squares, 1 thread, %d rounds; median [10 %%, 90 %%]\n", rounds);
  bool const fp32_right = measure<float>("fp32", n, rounds);
  bool const bf16_right = measure<zero::bf16>("bf16", n, rounds);
  return fp32_right && bf16_right ? 0 : 1;
}
