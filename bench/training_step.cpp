// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer's step: Stage3 against Stage0 at two ranks, and two ranks against one; each as ratios within rounds of one run.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <zero/zero.hpp>

#include "gpt/blas.hpp"
#include "gpt/report.hpp"
#include "gpt/trainer.hpp"
#include "timing.hpp"

namespace {

/// Tokens without meaning: only the time counts.
gpt::Text random_text(std::int64_t tokens) {
  gpt::Text text;
  for (std::int64_t i = 0; i < tokens; ++i)
    text.training.push_back(static_cast<std::uint16_t>(zero::mixed_bits(static_cast<std::uint64_t>(i)) & 0xff));
  text.validation = text.training;
  return text;
}

template <class Stage>
gpt::RunResult train(gpt::Options options, int ranks, gpt::Text const& text) {
  options.ranks = ranks;
  return gpt::train_with_threads<Stage, zero::Precision<float>>(options, text);
}

void print(char const* what, std::vector<double> const& values, char const* goal) {
  bench::Spread const s = bench::spread(values);
  std::printf("%-58s median %.3f, spread %.3f to %.3f of %d   %s\n", what, s.median, s.low, s.high, static_cast<int>(values.size()), goal);
}

}  // namespace

int main(int argc, char** argv) {
  int const rounds = argc > 1 ? std::atoi(argv[1]) : 11;
  gpt::use_one_blas_thread();
  gpt::Options options;
  options.steps = argc > 2 ? std::atoll(argv[2]) : 20;
  options.generate = 0;
  options.validate_every = 0;
  options.quiet = true;
  gpt::Text const text = random_text(1 << 16);

  std::vector<double> stage3, scaling;
  bool equal = true;
  for (int round = 0; round <= rounds; ++round) {
    gpt::RunResult const one = train<zero::Stage0>(options, 1, text);
    gpt::RunResult const zero = train<zero::Stage0>(options, 2, text);
    gpt::RunResult const three = train<zero::Stage3>(options, 2, text);
    equal = equal && gpt::same_losses(zero, three);
    if (round == 0) continue;  // page faults
    stage3.push_back(three.seconds / zero.seconds);
    scaling.push_back(zero.tokens_per_second / one.tokens_per_second);
  }
  zero::ParameterLayout const layout = gpt::make_layout(options.config);
  std::printf("GPT-2 with %lld parameters, fp32, %lld tokens a rank and step, %lld steps a round\n",
              static_cast<long long>(layout.elements()), static_cast<long long>(options.config.rows()),
              static_cast<long long>(options.steps));
  print("Stage3's step over Stage0's, 2 ranks", stage3, "goal: at most 1.15");
  print("tokens a second, 2 ranks over 1, Stage0", scaling, "goal: at least 1.6");
  std::printf("losses at Stage0 and Stage3 equal to the last bit: %s\n", equal ? "yes" : "NO");
  return equal ? 0 : 1;
}
