// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Passes: one forward and backward over a micro-batch, or one forward only, as the library sees it.

#include <cstdint>
#include <exception>

#include <zero/core/error.hpp>
#include <zero/layout/ids.hpp>
#include <zero/train/detail/training_engine.hpp>
#include <zero/train/scopes.hpp>

namespace zero {

/// What a training pass is told.
struct TrainingPassOptions {
  /// A promise that this is the last pass before the step: reductions of Partial gradients may start at each hand-over. Not a duty: told
  /// nothing, the step reduces.
  bool last = false;
};

/// What a scope of gradients is told.
struct GradientOptions {
  /// The library zeroes what the caller would otherwise read. Set to false by a caller whose kernels overwrite on `first_use`.
  bool zeroed = true;
};

/// A forward and a backward over one micro-batch, made by `ShardedParameters::training_pass`.
///
/// Within a pass all ranks gather and hand over the same units in the same order; a rank that has nothing to add to a unit that others hand
/// over says `no_gradient(unit)`. It ends with `finish()`; a pass that is destroyed without it is abandoned, and the next pass or step throws.
template <class Engine>
class TrainingPass {
public:
  TrainingPass(Engine& engine, TrainingPassOptions options, SourceLocation where)
      : engine_(&engine), exceptions_(std::uncaught_exceptions()) {
    number_ = engine.begin_pass(detail::PassKind::training, options.last, where);
  }
  TrainingPass(TrainingPass const&) = delete;
  TrainingPass& operator=(TrainingPass const&) = delete;
  ~TrainingPass() {
    if (!finished_) engine_->abandon_pass(number_, std::uncaught_exceptions() > exceptions_);
  }

  /// The unit's weights, whole: a plain view where parameters are Replicated, else a scope that gathered them.
  /// @par Communication
  /// Collective where parameters are Sharded: an all-gather of each segment of the unit that is not resident.
  /// @par Stream order
  /// The weights are ready in the order of the compute stream.
  /// @throws UsageError if the pass has ended; LayoutError for an unknown unit; MemoryError for buffers that were not reserved, in a first pass.
  [[nodiscard]] auto gather(Unit unit, SourceLocation where = SourceLocation::current()) { return engine_->gather(number_, unit, where); }

  /// The unit's gradients, whole, to be added to; see `Gradients`.
  /// @throws UsageError if the pass has ended, if they are open, were handed over in this pass, or share a parameter with a unit whose open
  /// gradients were not zeroed; LayoutError for an unknown unit; MemoryError for scratch that was not reserved, in a first step.
  /// @par Memory
  /// Where gradients accumulate Sharded or Replicated, or in another type than they are written in: the unit's whole gradients under
  /// `gradient_scratch`, until they are handed over and reduced.
  /// @par Stream order
  /// To be written on the compute stream.
  [[nodiscard]] Gradients<Engine> gradients(Unit unit, GradientOptions options = {}, SourceLocation where = SourceLocation::current()) {
    return engine_->open_gradients(number_, unit, options.zeroed, where);
  }

  /// This rank adds nothing to the unit's gradients in this pass; its peers may.
  void no_gradient(Unit unit, SourceLocation where = SourceLocation::current()) { gradients(unit, {}, where).hand_over(where); }

  /// The end of the pass.
  /// @throws UsageError if the pass has ended, or gradients were opened and not handed over; CommunicationError where a peer failed.
  /// @par Communication
  /// As `hand_over`, for segments that still wait for another declared use.
  void finish(SourceLocation where = SourceLocation::current()) {
    engine_->finish_pass(number_, where);
    finished_ = true;
  }

private:
  Engine* engine_;
  int exceptions_;
  std::uint64_t number_ = 0;
  bool finished_ = false;
};

/// A forward only, made by `ShardedParameters::inference_pass`: it gathers and has no gradients. Needs no `finish()`.
template <class Engine>
class InferencePass {
public:
  InferencePass(Engine& engine, SourceLocation where)
      : engine_(&engine), number_(engine.begin_pass(detail::PassKind::inference, false, where)) {}
  InferencePass(InferencePass const&) = delete;
  InferencePass& operator=(InferencePass const&) = delete;
  ~InferencePass() { engine_->end_inference_pass(number_); }

  /// As `TrainingPass::gather`.
  [[nodiscard]] auto gather(Unit unit, SourceLocation where = SourceLocation::current()) { return engine_->gather(number_, unit, where); }

private:
  Engine* engine_;
  std::uint64_t number_;
};

}  // namespace zero
