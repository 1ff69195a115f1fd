// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a step is told, and what it answers.

#include <cstdint>

#include <zero/core/error.hpp>
#include <zero/train/step_state.hpp>

namespace zero {

namespace detail {

/// How many decisions stay readable.
inline constexpr int decisions_kept = 4;

}  // namespace detail

/// How the summed gradients become the ones that the optimizer gets. Equal on all ranks.
struct StepOptions {
  /// Largest L2 norm of the gradient, after the factors below; longer gradients are scaled down to it. 0: no clipping.
  double max_norm = 0;
  /// Whether the gradient is the mean over the ranks, or their sum.
  bool mean_over_ranks = true;
  /// Divides the gradient by this many micro-batches. 1 leaves it to the caller's loss.
  std::int64_t micro_batches = 1;
  /// Divides the gradient by this: what the loss was multiplied with.
  double loss_scale = 1;
  /// A step with an infinite or NaN gradient leaves parameters and states unchanged, on all ranks.
  bool skip_non_finite = true;
};

/// What a step did; the same on all ranks.
struct StepReport {
  double norm = -1;                ///< L2 norm of the gradient after its factors, before clipping; -1 where it was not measured.
  double coefficient = 1;          ///< What clipping multiplied the gradient with; 0 where the step was skipped.
  bool applied = false;            ///< Whether the step was decided to be applied: what optimizers do that follow it.
  std::int64_t applied_steps = 0;  ///< Steps so far of which that is true.
  std::int64_t skipped_steps = 0;  ///< Steps that were skipped so far.
};

/// The decision of one step, made where the gradients are: the norm over all ranks, the factor, and whether to apply the step. `wait()` asks the
/// host to wait for it; nothing else does. It refers to the parameters, which must outlive it.
template <class Device>
class Decision {
public:
  /// How many decisions can be read: the latest and the `kept - 1` before it.
  static constexpr int kept = detail::decisions_kept;

  Decision() = default;
  Decision(StepState const* state, StepState const* report, typename Device::Event ready, std::int64_t const* latest,
           std::int64_t number) noexcept
      : state_(state), report_(report), ready_(ready), latest_(latest), number_(number) {}

  /// Waits until the decision is made, and returns it.
  /// @throws UsageError for an empty handle, one of a step that was captured, or one after which `kept` or more steps were decided;
  /// CommunicationError where a peer failed.
  StepReport wait(SourceLocation where = SourceLocation::current()) const {
    if (state_ == nullptr) throw UsageError("wait: this is the report of no step", where);
    if (report_ == nullptr)
      throw UsageError("wait: this step was captured; replay() and replayed() return the report of one that ran", where);
    if (*latest_ - number_ >= kept) throw UsageError("wait: this step's report was overwritten by later steps", where);
    Device::synchronize(ready_);
    return {report_->norm, report_->coefficient, report_->apply != 0, report_->applied_steps, report_->skipped_steps};
  }
  /// Which decision of its parameters it is, from 1 on; 0 for an empty handle, negative for a step that was captured, which is none yet.
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }
  /// Where the decision lies, in the device's memory: for kernels that read it.
  [[nodiscard]] StepState const* state() const noexcept { return state_; }

private:
  StepState const* state_ = nullptr;
  StepState const* report_ = nullptr;
  typename Device::Event ready_{};
  std::int64_t const* latest_ = nullptr;
  std::int64_t number_ = 0;
};

}  // namespace zero
