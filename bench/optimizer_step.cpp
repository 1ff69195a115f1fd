// SPDX-License-Identifier: Apache-2.0
/// @file
/// AdamW's loop over the elements against memcpy, one thread: bf16 parameters and gradients, fp32 masters and states, 28 bytes an element.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <zero/train/optimizer_step.hpp>

namespace {

/// Of this thread's own time: what other programs take of the cores does not count (what they take of the memory's bandwidth does).
template <class F>
double seconds(F&& f) {
  auto const now = [] {
    std::timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  double const begin = now();
  f();
  return now() - begin;
}

struct Spread {
  double low, median, high;
};

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::size_t const n = values.size();
  return {values[n / 10], values[n / 2], values[n - 1 - n / 10]};
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
      &decision, &update, n, master.data(), gradient.data(), parameter.data(), {mean.data(), square.data()}};

  std::vector<double> step_rate, copy_rate, ratio;
  double const bytes = 28.0 * static_cast<double>(n);
  for (int round = 0; round <= rounds; ++round) {
    double const copying = seconds([&] { std::memcpy(to.data(), from.data(), copied_bytes); });
    decide(decision, rules);
    advance(update, optimizer, decision);
    double const stepping = seconds([&] { step(); });
    if (round == 0) continue;  // page faults
    step_rate.push_back(bytes / stepping * 1e-9);
    copy_rate.push_back(bytes / copying * 1e-9);
    ratio.push_back(copying / stepping);
  }

  // Any element, stepped alone from the start, must be what the loop made of it.
  std::int64_t wrong = to[copied_bytes / 2] != 1 ? 1 : 0;
  for (std::int64_t i = 0; i < n; i += 997) {
    auto const k = static_cast<std::size_t>(i);
    float p = start[k], m = 0, v = 0;
    zero::bf16 rounded;
    zero::StepState d{};
    zero::UpdateState<zero::AdamW> u{};
    zero::detail::OptimizerStep<zero::AdamW, float, zero::bf16, zero::bf16> const single{&d, &u, 1, &p, &gradient[k], &rounded, {&m, &v}};
    for (int round = 0; round <= rounds; ++round) {
      decide(d, rules);
      advance(u, optimizer, d);
      single();
    }
    if (p != master[k] || m != mean[k] || v != square[k] || rounded.bits != parameter[k].bits) ++wrong;
  }

  Spread const s = spread(step_rate), c = spread(copy_rate), r = spread(ratio);
  std::printf("AdamW, %lld elements of 28 bytes, 1 thread, %d rounds; median [10 %%, 90 %%]\n", static_cast<long long>(n), rounds);
  std::printf("step    %6.1f [%.1f, %.1f] GB/s\n", s.median, s.low, s.high);
  std::printf("memcpy  %6.1f [%.1f, %.1f] GB/s (read + write)\n", c.median, c.low, c.high);
  std::printf("ratio   %6.2f [%.2f, %.2f] (goal: at least 1.35)\n", r.median, r.low, r.high);
  std::printf("result  %s\n", wrong == 0 ? "equal to single calls" : "WRONG");
  return wrong == 0 ? 0 : 1;
}
