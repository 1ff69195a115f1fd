// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A training loop's library objects behind virtual functions, for the twelve stages and six precisions: one program can run them all, and over
/// threads they are compiled once for all tests (model_<precision>.cpp). For other engines see support/engine.hpp.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/counting.hpp>
#include <zero/comm/threads.hpp>
#include <zero/device/host_device.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/streams.hpp>
#include <zero/layout/partition.hpp>
#include <zero/train/initial_values.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/plan.hpp>
#include <zero/train/step_report.hpp>

#include "support/gradient_rule.hpp"

namespace zero::test {

/// What the ranks of these tests talk through: it counts what it passes on to the threads.
using CountedThreads = Counting<Borrowed<ThreadCommunicator>>;

/// A stage's number among the twelve: parameters {R, S}, gradients {P, S, R}, optimizer states {R, S}, the last counted fastest.
using StageNumber = int;
inline constexpr int stage_count = 12;
inline constexpr StageNumber stage0 = 0, stage1 = 1, stage2 = 3, stage3 = 9;

[[nodiscard]] constexpr bool shards_parameters(StageNumber s) { return s >= 6; }
[[nodiscard]] constexpr bool accumulates_partial(StageNumber s) { return s / 2 % 3 == 0; }
[[nodiscard]] constexpr bool accumulates_sharded(StageNumber s) { return s / 2 % 3 == 1; }
[[nodiscard]] constexpr bool shards_states(StageNumber s) { return s % 2 == 1; }
/// "(S,P,R)"
[[nodiscard]] inline std::string stage_name(StageNumber s) {
  return std::string("(") + "RS"[s / 6] + "," + "PSR"[s / 2 % 3] + "," + "RS"[s % 2] + ")";
}

enum class PrecisionName {
  fp32,       ///< everything fp32
  bf16,       ///< everything bf16, fp32 masters
  bf16_fp32,  ///< bf16, added up over micro-batches in fp32
  half,       ///< everything half, fp32 masters
  fp64,       ///< everything fp64
  fp32_bf16,  ///< fp32 gradients and accumulators, sent as bf16
};

[[nodiscard]] inline std::string name(PrecisionName p) {
  constexpr char const* names[] = {"fp32", "bf16", "bf16 accumulated in fp32", "half", "fp64", "fp32 sent as bf16"};
  return names[static_cast<int>(p)];
}

/// SGD or AdamW, or an optimizer that is not linear in the gradient: so that one instantiation serves all tests.
struct AnyOptimizer {
  enum class Kind : std::int32_t { sgd, adamw, square };

  Kind kind = Kind::sgd;
  SGD sgd = {};
  AdamW adamw = {};

  static constexpr int states = 2;

  struct Update {
    Kind kind;
    SGD sgd;
    AdamW::Update adamw;

    template <std::floating_point Real>
    void operator()(Real& parameter, Real gradient, Real& first, Real& second) const {
      if (kind == Kind::adamw) {
        adamw(parameter, gradient, first, second);
      } else {
        sgd(parameter, kind == Kind::square ? gradient * gradient : gradient);
        first += Real{1};  // how often this element was stepped
      }
    }
  };
  [[nodiscard]] Update at(std::int64_t step) const { return {kind, sgd, adamw.at(step)}; }

  static AnyOptimizer make_sgd(double rate) { return {Kind::sgd, {.learning_rate = rate}, {}}; }
  static AnyOptimizer make_square(double rate) { return {Kind::square, {.learning_rate = rate}, {}}; }
  static AnyOptimizer make_adamw(double rate) { return {Kind::adamw, {}, {.learning_rate = rate}}; }
};

enum class Kept { parameters, masters, gradients, first_state, second_state };

/// What visits values: `values` are those of the elements first, first + 1, ... of one parameter, converted to fp64.
class Visitor {
public:
  virtual void visit(ParameterId id, std::int64_t first, std::span<double const> values) = 0;

protected:
  ~Visitor() = default;
};

struct ModelOptions {
  PartitionOptions partition = {};
  bool poison_released = false;
  AnyOptimizer optimizer = {};
  std::int64_t prefetch_bytes = -1;
};

/// Parameters, optimizer, an open pass and its open scopes, on one rank: what is the same on all devices.
class AnyModel {
public:
  virtual ~AnyModel() = default;

  [[nodiscard]] virtual Partition const& partition() const = 0;
  virtual void initialize(std::uint64_t seed, InitialValue initial) = 0;
  virtual AnyOptimizer& optimizer() = 0;
  virtual void reserve(Schedule const&) = 0;

  virtual void begin_training(bool last) = 0;
  virtual void begin_inference() = 0;
  virtual void gather(Unit) = 0;
  virtual void release(Unit) = 0;
  virtual void open_gradients(Unit, bool zeroed) = 0;
  /// Enqueues gradient += rule(element, weight) for parameter number `index` of a unit whose weights and gradients are open. With `overwrite`,
  /// = where the parameter is used for the first time. Frozen parameters have no gradient and are left out.
  virtual void add_gradient(Unit, std::int32_t index, GradientRule, bool overwrite) = 0;
  virtual void hand_over(Unit) = 0;
  virtual void no_gradient(Unit) = 0;
  virtual void end_pass() = 0;

  virtual void publish() = 0;
  virtual void discard_gradients() = 0;

  /// Waits for both streams.
  virtual void synchronize() = 0;
  /// Visits what this rank holds, gaps and padding left out. Gradients: between `reduce` and `publish`.
  virtual void visit(Kept, Visitor&) = 0;
  /// Gathers everything and visits it.
  virtual void visit_whole(Visitor&) = 0;

  [[nodiscard]] virtual Plan plan(Schedule const&, int rank) const = 0;
};

/// The same with the decisions of steps, which are the device's.
template <class D>
class BasicModel : public AnyModel {
public:
  virtual Decision<D> step(StepOptions const&) = 0;
  virtual Decision<D> reduce(StepOptions const&) = 0;
  virtual void apply(Decision<D> const&) = 0;
};

using Model = BasicModel<HostDevice>;

/// Makes models of one precision: what model_<precision>.cpp instantiate. Which of them a build has, support/precisions.hpp says.
template <PrecisionName>
struct ModelMaker {
  static std::unique_ptr<Model> make(StageNumber, ParameterLayout const&, CountedThreads&, Streams<HostDevice>, MemoryResource&,
                                     ModelOptions const&);
};

}  // namespace zero::test
