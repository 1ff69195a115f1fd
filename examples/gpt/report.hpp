// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What the trainer prints: the plan before the run, and what was counted beside it after.

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <zero/zero.hpp>

#include "gpt/trainer.hpp"

namespace gpt {

/// "12.3 MB": 1 MB is 10^6 bytes.
inline std::string bytes_text(std::int64_t bytes) {
  double const value = static_cast<double>(bytes);
  char text[32];
  if (bytes < 10'000) std::snprintf(text, sizeof text, "%lld B", static_cast<long long>(bytes));
  else if (bytes < 10'000'000) std::snprintf(text, sizeof text, "%.1f kB", value / 1e3);
  else if (bytes < 10'000'000'000) std::snprintf(text, sizeof text, "%.1f MB", value / 1e6);
  else std::snprintf(text, sizeof text, "%.1f GB", value / 1e9);
  return text;
}

/// The memory and the traffic of one rank, planned, for each run: before the first step.
inline void print_plan(std::vector<RunResult> const& runs) {
  std::printf("\nPlanned for each rank:\n%-24s", "");
  for (RunResult const& run : runs) std::printf("%14s", run.stage.c_str());
  std::printf("\n");
  for (int i = 0; i < zero::purpose_count; ++i) {
    auto const purpose = static_cast<zero::Purpose>(i);
    std::printf("%-24s", zero::name(purpose));
    for (RunResult const& run : runs) std::printf("%14s", bytes_text(run.plan.bytes(purpose)).c_str());
    std::printf("\n");
  }
  std::printf("%-24s", "memory in all");
  for (RunResult const& run : runs) std::printf("%14s", bytes_text(run.plan.bytes()).c_str());
  std::printf("\n%-24s", "received in a step");
  for (RunResult const& run : runs) std::printf("%14s", bytes_text(run.plan.received_bytes()).c_str());
  std::printf("\n\n");
  std::fflush(stdout);
}

/// Whether what was counted is what was planned, to the byte.
inline bool as_planned(RunResult const& run, Options const& options) {
  for (int i = 0; i < zero::purpose_count; ++i) {
    if (run.held[i] != run.plan.held[i]) return false;
  }
  for (int i = 0; i < zero::subject_count; ++i) {
    if (run.received[i] != run.plan.received[i] * options.steps) return false;
  }
  return true;
}

/// What was counted beside what was planned, in bytes.
inline void print_counted(std::vector<RunResult> const& runs, Options const& options) {
  if (options.steps < 1) return;
  std::printf("\nCounted on rank 0 [bytes]%*s(planned where it differs)\n", 14, "");
  std::printf("%-24s", "");
  for (RunResult const& run : runs) std::printf("%14s", run.stage.c_str());
  std::printf("\n");
  auto const row = [&](char const* title, auto counted, auto planned) {
    std::printf("%-24s", title);
    for (RunResult const& run : runs) std::printf("%14lld", static_cast<long long>(counted(run)));
    std::printf("\n");
    for (RunResult const& run : runs) {
      if (counted(run) != planned(run)) {
        std::printf("  %s: planned were %lld\n", run.stage.c_str(), static_cast<long long>(planned(run)));
      }
    }
  };
  for (int i = 0; i < zero::purpose_count; ++i) {
    row(
        zero::name(static_cast<zero::Purpose>(i)), [i](RunResult const& r) { return r.held[i]; },
        [i](RunResult const& r) { return r.plan.held[i]; });
  }
  auto const sum = [](auto const& values) {
    std::int64_t total = 0;
    for (std::int64_t value : values) total += value;
    return total;
  };
  row(
      "memory in all", [&](RunResult const& r) { return sum(r.held); }, [](RunResult const& r) { return r.plan.bytes(); });
  row(
      "received in a step", [&](RunResult const& r) { return sum(r.received) / options.steps; },
      [&](RunResult const& r) { return sum(r.plan.received); });
}

/// Loss and speed of each run.
inline void print_outcome(std::vector<RunResult> const& runs, Options const& options) {
  if (options.steps < 1) return;
  std::printf("\n%-24s", "");
  for (RunResult const& run : runs) std::printf("%14s", run.stage.c_str());
  std::printf("\n%-24s", "training loss, last");
  for (RunResult const& run : runs) std::printf("%14.9f", run.curve.training.back().loss);
  std::printf("\n%-24s", "validation loss");
  for (RunResult const& run : runs) std::printf("%14.9f", run.validation_loss);
  std::printf("\n%-24s", "ms a step");
  for (RunResult const& run : runs) std::printf("%14.2f", run.seconds * 1e3 / static_cast<double>(options.steps));
  std::printf("\n%-24s", "tokens a second");
  for (RunResult const& run : runs) std::printf("%14.0f", run.tokens_per_second);
  std::printf("\n");
}

/// Whether two runs had the same loss in every step, to the last bit.
inline bool same_losses(RunResult const& a, RunResult const& b) {
  auto const same = [](std::vector<CurvePoint> const& x, std::vector<CurvePoint> const& y) {
    if (x.size() != y.size()) return false;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::bit_cast<std::uint64_t>(x[i].loss) != std::bit_cast<std::uint64_t>(y[i].loss)) return false;
    }
    return true;
  };
  return same(a.curve.training, b.curve.training) && same(a.curve.validation, b.curve.validation);
}

}  // namespace gpt
