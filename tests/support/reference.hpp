// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Training without ranks, shards or rounding of sums: the exact sum of all gradients, one factor, the same optimizer functor.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <zero/core/hash.hpp>
#include <zero/train/initial_values.hpp>
#include <zero/train/optimizer_step.hpp>

#include "support/training_passes.hpp"
#include "support/values.hpp"

namespace zero::test {

/// A value rounded to the parameters' element type.
[[nodiscard]] inline double rounded_to_parameter(PrecisionName precision, double value) {
  switch (precision) {
    case PrecisionName::bf16:
    case PrecisionName::bf16_fp32: return element_cast<double>(element_cast<bf16>(static_cast<float>(value)));
    case PrecisionName::half: return element_cast<double>(element_cast<half>(static_cast<float>(value)));
    case PrecisionName::fp64: return value;
    default: return static_cast<double>(static_cast<float>(value));
  }
}

/// What sums on the wire are multiplied with before they are rounded.
[[nodiscard]] inline double wire_factor(PrecisionName precision, int ranks) {
  double factor = 1;
  if (precision == PrecisionName::half) {
    for (int n = ranks; n > 1; n /= 2) factor /= 2;
  }
  return factor;
}

class Reference {
public:
  Reference(ParameterLayout layout, PrecisionName precision, int ranks, AnyOptimizer const& optimizer)
      : layout_(std::move(layout)),
        precision_(precision),
        ranks_(ranks),
        optimizer_(optimizer),
        masters_(empty_values(layout_)),
        sums_(masters_),
        absolute_(masters_),
        first_(masters_),
        second_(masters_) {}

  void initialize(std::uint64_t seed, InitialValue initial) {
    for (ParameterId id : layout_.parameters()) {
      std::uint64_t const key = initial_key(seed, Hasher{}.add(layout_.name(id)).value());
      auto& values = masters_[at(id)];
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = initial_value(initial, key, static_cast<std::int64_t>(i));
        if (precision_ != PrecisionName::fp64) values[i] = static_cast<double>(static_cast<float>(values[i]));
      }
    }
  }

  /// Adds what all ranks add in these passes. Rules must not depend on weights.
  void add(Passes const& passes) {
    for (std::int64_t m = 0; m < passes.micro_batches; ++m) {
      for (int rank = 0; rank < ranks_; ++rank) {
        for (Unit unit : layout_.units()) {
          if (passes.use && passes.use(rank, m, unit) != Use::adds) continue;
          for (ParameterId id : layout_.parameters(unit)) {
            if (!layout_.trainable(id)) continue;
            GradientRule const rule = passes.rule(rank, m, unit, id);
            for (std::size_t i = 0; i < sums_[at(id)].size(); ++i) {
              double const value = rule(static_cast<std::int64_t>(i), 0);
              sums_[at(id)][i] += value;
              absolute_[at(id)][i] += std::fabs(value);
            }
          }
        }
      }
    }
  }
  /// The largest sum of magnitudes: where it is exact in a type, every order of every partial sum is.
  [[nodiscard]] double largest_sum() const {
    double largest = 0;
    for (auto const& parameter : absolute_) {
      for (double value : parameter) largest = value > largest ? value : largest;
    }
    return largest;
  }

  StepReport step(StepOptions const& options) {
    double squares = 0;
    for (auto const& parameter : sums_) {
      for (double value : parameter) squares += value * value;
    }
    double const factor = 1.0 / ((options.mean_over_ranks ? ranks_ : 1) * static_cast<double>(options.micro_batches) * options.loss_scale);
    double const norm = std::sqrt(squares) * factor;
    double const coefficient = options.max_norm > 0 && norm > options.max_norm ? options.max_norm / norm : 1.0;
    ++steps_;
    for (ParameterId id : layout_.parameters()) {
      if (!layout_.trainable(id)) continue;
      if (precision_ == PrecisionName::fp64) step_as<double>(at(id), factor * coefficient);
      else step_as<float>(at(id), factor * coefficient);
      sums_[at(id)].assign(sums_[at(id)].size(), 0.0);
      absolute_[at(id)] = sums_[at(id)];
    }
    return {norm, coefficient, true, steps_, 0};
  }

  [[nodiscard]] Values const& masters() const { return masters_; }
  [[nodiscard]] Values const& sums() const { return sums_; }
  [[nodiscard]] Values const& first_states() const { return first_; }
  [[nodiscard]] Values const& second_states() const { return second_; }
  [[nodiscard]] Values parameters() const {
    Values result = masters_;
    for (auto& parameter : result) {
      for (double& value : parameter) value = rounded_to_parameter(precision_, value);
    }
    return result;
  }

private:
  static std::size_t at(ParameterId id) { return static_cast<std::size_t>(to_index(id)); }

  template <class Master>
  static std::vector<Master> converted(std::vector<double> const& values) {
    std::vector<Master> result;
    for (double value : values) result.push_back(static_cast<Master>(value));
    return result;
  }

  template <class Master>
  void step_as(std::size_t id, double multiplier) {
    auto masters = converted<Master>(masters_[id]);
    auto first = converted<Master>(first_[id]);
    auto second = converted<Master>(second_[id]);
    detail::step_elements<false>(static_cast<std::int64_t>(masters.size()), optimizer_.at(steps_), static_cast<Master>(multiplier),
                                 masters.data(), sums_[id].data(), static_cast<float*>(nullptr), first.data(), second.data());
    masters_[id].assign(masters.begin(), masters.end());
    first_[id].assign(first.begin(), first.end());
    second_[id].assign(second.begin(), second.end());
  }

  ParameterLayout layout_;
  PrecisionName precision_;
  int ranks_;
  AnyOptimizer optimizer_;
  std::int64_t steps_ = 0;
  Values masters_, sums_, absolute_, first_, second_;
};

}  // namespace zero::test
