// SPDX-License-Identifier: Apache-2.0
/// @file
/// AdamW's loop over the elements against memcpy, one thread: bf16 parameters and gradients, fp32 masters and states, 28 bytes an element.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <zero/train/optimizer_step.hpp>

#include "timing.hpp"

namespace {

/// A copy in blocks that stay in the caches' view: memcpy of a large block may write past the caches and then reads less.
void copy_in_blocks(char* to, char const* from, std::size_t bytes) {
  constexpr std::size_t block = std::size_t{64} << 10;
  for (std::size_t at = 0; at < bytes; at += block) std::memcpy(to + at, from + at, std::min(block, bytes - at));
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t const n = argc > 1 ? std::atoll(argv[1]) : std::int64_t{16} << 20;
  int const rounds = argc > 2 ? std::atoi(argv[2]) : 21;
  auto const size = static_cast<std::size_t>(n);

  std::vector<float> master(size), mean(size), square(size);
  std::vector<zero::bf16> gradient(size), parameter(size);
  for (std::size_t i = 0; i < size; ++i) {
    master[i] = static_cast<float>(i % 1000) * 1e-3f - 0.5f;
    gradient[i] = zero::bf16{static_cast<float>(i % 257) * 1e-2f - 1.28f};
  }
  std::vector<float> const start = master;
  std::size_t const copied_bytes = size * 14;  // read and written: 28 bytes an element, as the step
  std::vector<char> from(copied_bytes, 1), to(copied_bytes, 2);

  zero::AdamW const optimizer{.learning_rate = 1e-3, .weight_decay = 0.1};
  zero::StepRules const rules{.factor = 0.5};
  zero::StepState decision{};
  zero::UpdateState<zero::AdamW> update{};
  zero::detail::OptimizerStep<zero::AdamW, float, zero::bf16, zero::bf16> const step{
      &decision, &update, master.data(), gradient.data(), parameter.data(), {mean.data(), square.data()}};

  std::vector<double> step_rate, copy_rate, block_rate, ratio, block_ratio;
  double const bytes = 28.0 * static_cast<double>(n);
  for (int round = 0; round <= rounds; ++round) {
    double const copying = bench::thread_seconds([&] { std::memcpy(to.data(), from.data(), copied_bytes); });
    double const in_blocks = bench::thread_seconds([&] { copy_in_blocks(to.data(), from.data(), copied_bytes); });
    decide(decision, rules);
    advance(update, optimizer, decision);
    double const stepping = bench::thread_seconds([&] { step(0, n); });
    if (round == 0) continue;  // page faults
    step_rate.push_back(bytes / stepping * 1e-9);
    copy_rate.push_back(bytes / copying * 1e-9);
    block_rate.push_back(bytes / in_blocks * 1e-9);
    ratio.push_back(copying / stepping);
    block_ratio.push_back(in_blocks / stepping);
  }

  // Any element, stepped alone from the start, must be what the loop made of it.
  std::int64_t wrong = to[copied_bytes / 2] != 1 ? 1 : 0;
  for (std::int64_t i = 0; i < n; i += 997) {
    auto const k = static_cast<std::size_t>(i);
    float p = start[k], m = 0, v = 0;
    zero::bf16 rounded;
    zero::StepState d{};
    zero::UpdateState<zero::AdamW> u{};
    zero::detail::OptimizerStep<zero::AdamW, float, zero::bf16, zero::bf16> const single{&d, &u, &p, &gradient[k], &rounded, {&m, &v}};
    for (int round = 0; round <= rounds; ++round) {
      decide(d, rules);
      advance(u, optimizer, d);
      single(0, 1);
    }
    if (p != master[k] || m != mean[k] || v != square[k] || rounded.bits != parameter[k].bits) ++wrong;
  }

  std::printf("AdamW, %lld elements of 28 bytes, 1 thread, %d rounds; median [10 %%, 90 %%]\n", static_cast<long long>(n), rounds);
  auto const print = [](char const* what, std::vector<double> const& values, char const* unit) {
    bench::Spread const s = bench::spread(values);
    std::printf("%-38s %6.2f [%.2f, %.2f] %s\n", what, s.median, s.low, s.high, unit);
  };
  print("step", step_rate, "GB/s");
  print("memcpy, one call", copy_rate, "GB/s, read and written");
  print("memcpy, 64 KiB a call", block_rate, "GB/s, read and written");
  print("step over memcpy, one call", ratio, "(goal: at least 1.35 where that copies through the caches)");
  print("step over memcpy, 64 KiB a call", block_ratio, "(goal: at least 1.35)");
  std::printf("result  %s\n", wrong == 0 ? "equal to single calls" : "WRONG");
  return wrong == 0 ? 0 : 1;
}
