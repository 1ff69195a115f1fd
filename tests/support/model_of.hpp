// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The models: what model_<precision>.cpp compile for threads, and the tests of another engine for its communicator.

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/train/sharded_optimizer.hpp>
#include <zero/train/sharded_parameters.hpp>

#include "support/model.hpp"
#include "support/stages.hpp"

namespace zero::test {

/// The "kernel" of these tests' backward.
template <class Parameter, class Gradient>
struct AddGradient {
  Gradient* to;
  Parameter const* weights;
  std::int64_t elements;
  GradientRule rule;
  bool overwrite;

  void operator()() const {
    for (std::int64_t i = 0; i < elements; ++i) {
      auto const value = static_cast<compute_t<Gradient>>(element_cast<Gradient>(rule(i, element_cast<double>(weights[i]))));
      to[i] = element_cast<Gradient>(overwrite ? value : static_cast<compute_t<Gradient>>(to[i]) + value);
    }
  }
};

/// Hands values to a visitor. No lambda of the model: what walks over a segment is compiled for each type of tensor, not for each stage.
template <class D>
struct ConvertAndVisit {
  Visitor& visitor;
  typename D::Stream stream;

  template <class T>
  void operator()(ParameterId id, T const* values, std::int64_t first, std::int64_t count) const {
    std::vector<T> copied;
    if constexpr (!std::is_same_v<D, HostDevice>) {
      copied.resize(static_cast<std::size_t>(count));
      D::copy(stream, copied.data(), values, count * static_cast<std::int64_t>(sizeof(T)));
      D::synchronize(stream);
      values = copied.data();
    }
    std::vector<double> converted(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) converted[static_cast<std::size_t>(i)] = element_cast<double>(values[i]);
    visitor.visit(id, first, converted);
  }
};

template <class S, class P, class Group>
class ModelOf final : public BasicModel<typename Group::Device> {
  using D = typename Group::Device;
  using Parameters = ShardedParameters<S, P, Group>;
  using Optimizer = ShardedOptimizer<AnyOptimizer, S>;
  using Parameter = typename P::parameter;
  using Gradient = typename P::gradient;

public:
  ModelOf(ParameterLayout const& layout, Group& group, Streams<D> streams, MemoryResource& memory, ModelOptions const& options)
      : streams_(streams),
        parameters_(layout, group, streams, memory, {options.partition, options.poison_released, options.prefetch_bytes}),
        optimizer_(parameters_, options.optimizer),
        weights_(static_cast<std::size_t>(layout.unit_count())),
        gradients_(static_cast<std::size_t>(layout.unit_count())) {}

  Partition const& partition() const override { return parameters_.partition(); }
  void initialize(std::uint64_t seed, InitialValue initial) override {
    parameters_.initialize(seed, [initial](ParameterId) { return initial; });
  }
  AnyOptimizer& optimizer() override { return optimizer_.options(); }
  void reserve(Schedule const& schedule) override { parameters_.reserve(schedule); }

  void begin_training(bool last) override { training_.emplace(parameters_.engine(), TrainingPassOptions{last}, SourceLocation::current()); }
  void begin_inference() override { inference_.emplace(parameters_.engine(), SourceLocation::current()); }
  void gather(Unit unit) override { weights_[at(unit)] = training_ ? training_->gather(unit) : inference_->gather(unit); }
  void release(Unit unit) override { weights_[at(unit)] = {}; }
  void open_gradients(Unit unit, bool zeroed) override { gradients_[at(unit)] = training_->gradients(unit, {zeroed}); }
  void add_gradient(Unit unit, std::int32_t index, GradientRule rule, bool overwrite) override {
    auto const& gradients = gradients_[at(unit)];
    ParameterId const id = gradients.ids()[static_cast<std::size_t>(index)];
    if (gradients[index] == nullptr) return;
    bool const first = overwrite && gradients.first_use(id);
    D::run(streams_.compute,
           AddGradient<Parameter, Gradient>{gradients[index], weights_[at(unit)][index], gradients.elements(index), rule, first});
  }
  void hand_over(Unit unit) override { gradients_[at(unit)].hand_over(); }
  void no_gradient(Unit unit) override { training_->no_gradient(unit); }
  void end_pass() override {
    if (training_) training_->finish();
    training_.reset();
    inference_.reset();
  }

  Decision<D> step(StepOptions const& options) override { return optimizer_.step(parameters_, options); }
  Decision<D> reduce(StepOptions const& options) override { return parameters_.reduce(options); }
  void apply(Decision<D> const& decision) override { optimizer_.apply(parameters_, decision); }
  void publish() override { parameters_.publish(); }
  void discard_gradients() override { parameters_.discard_gradients(); }

  void synchronize() override {
    D::synchronize(streams_.communication);
    D::synchronize(streams_.reductions);
    D::synchronize(streams_.compute);
  }
  void visit(Kept kept, Visitor& visitor) override {
    synchronize();
    auto const visit = [&](SegmentId segment, auto tensor) {
      detail::for_each_run(partition(), segment, tensor, ConvertAndVisit<D>{visitor, streams_.compute});
    };
    for (SegmentId segment : partition().segments()) {
      if (kept == Kept::parameters) {
        visit(segment, parameters_.stored(segment));
      } else if (partition().segment(segment).trainable) {
        if (kept == Kept::masters) visit(segment, parameters_.masters(segment));
        if (kept == Kept::gradients) visit(segment, parameters_.reduced_gradient(segment));
        if (kept == Kept::first_state) visit(segment, optimizer_.state(parameters_, segment, 0));
        if (kept == Kept::second_state) visit(segment, optimizer_.state(parameters_, segment, 1));
      }
    }
  }
  void visit_whole(Visitor& visitor) override {
    auto const all = parameters_.gather_all();
    synchronize();
    for (ParameterId id : partition().layout().parameters())
      ConvertAndVisit<D>{visitor, streams_.compute}(id, all[id].data(), 0, partition().layout().elements(id));
  }

  Plan plan(Schedule const& schedule, int rank) const override { return zero::plan<S, P, AnyOptimizer>(partition(), schedule, rank); }

private:
  static std::size_t at(Unit unit) { return static_cast<std::size_t>(to_index(unit)); }

  Streams<D> streams_;
  Parameters parameters_;
  Optimizer optimizer_;
  std::optional<TrainingPass<detail::TrainingEngine<S, P, Group>>> training_;
  std::optional<InferencePass<detail::TrainingEngine<S, P, Group>>> inference_;
  std::vector<decltype(training_->gather(Unit{}))> weights_;
  std::vector<decltype(training_->gradients(Unit{}))> gradients_;
};

/// Element types by name.
template <PrecisionName>
struct PrecisionOf;
template <>
struct PrecisionOf<PrecisionName::fp32> : Precision<float> {};
template <>
struct PrecisionOf<PrecisionName::bf16> : Precision<bf16> {};
template <>
struct PrecisionOf<PrecisionName::bf16_fp32> : Precision<bf16, bf16, bf16, float> {};
template <>
struct PrecisionOf<PrecisionName::half> : Precision<half> {};
template <>
struct PrecisionOf<PrecisionName::fp64> : Precision<double> {};
template <>
struct PrecisionOf<PrecisionName::fp32_bf16> : Precision<float, float, bf16, float> {};

/// A stage by its number.
template <StageNumber stage>
using StageOf =
    Triple<std::conditional_t<shards_parameters(stage), Sharded, Replicated>,
           std::conditional_t<accumulates_partial(stage), Partial, std::conditional_t<accumulates_sharded(stage), Sharded, Replicated>>,
           std::conditional_t<shards_states(stage), Sharded, Replicated>>;

/// A model of one of these stages, null for any other.
template <class P, StageNumber... stages, class Group>
std::unique_ptr<BasicModel<typename Group::Device>> make_one_of(StageNumber stage, ParameterLayout const& layout, Group& group,
                                                                Streams<typename Group::Device> streams, MemoryResource& memory,
                                                                ModelOptions const& options) {
  std::unique_ptr<BasicModel<typename Group::Device>> result;
  auto const make_if = [&]<StageNumber number>(std::integral_constant<StageNumber, number>) {
    if (stage == number) result = std::make_unique<ModelOf<StageOf<number>, P, Group>>(layout, group, streams, memory, options);
  };
  (make_if(std::integral_constant<StageNumber, stages>{}), ...);
  return result;
}

template <PrecisionName precision>
std::unique_ptr<Model> ModelMaker<precision>::make(StageNumber stage, ParameterLayout const& layout, CountedThreads& group,
                                                   Streams<HostDevice> streams, MemoryResource& memory, ModelOptions const& options) {
  return make_one_of<PrecisionOf<precision>, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11>(stage, layout, group, streams, memory, options);
}

}  // namespace zero::test
