// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// An optimizer over sharded parameters: its states, and the step.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>

#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/device/memory.hpp>
#include <zero/tensor/placement.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/detail/control_layout.hpp>
#include <zero/train/detail/parameter_storage.hpp>
#include <zero/train/optimizer_step.hpp>
#include <zero/train/optimizers.hpp>
#include <zero/train/stage.hpp>
#include <zero/train/step_report.hpp>
#include <zero/train/step_state.hpp>

namespace zero {

namespace detail {

template <class O>
struct AdvanceUpdate {
  UpdateState<O>* state;
  O optimizer;
  StepState const* decision;
  ZERO_HOST_DEVICE void operator()() const { advance(*state, optimizer, *decision); }
};

/// The same in a graph, which reads the options of the time when it runs.
template <class O>
struct AdvanceCapturedUpdate {
  UpdateMemory<O>* update;
  StepState const* decision;
  ZERO_HOST_DEVICE void operator()() const { advance(update->state, update->options, *decision); }
};

template <class O>
struct StoreOptions {
  O* to;
  O options;
  ZERO_HOST_DEVICE void operator()() const { *to = options; }
};

/// The name of a type, equal on ranks that run the same program.
template <class T>
[[nodiscard]] constexpr std::string_view type_text() noexcept {
  return __PRETTY_FUNCTION__;
}

/// A hash of an optimizer's options as bytes, for ranks to compare (a pointer among them differs: no pointers); 0 where the compiler cannot clear the padding between them.
template <class O>
[[nodiscard]] std::uint64_t options_hash([[maybe_unused]] O options) noexcept {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&options);
  return Hasher{}.add(std::string_view(reinterpret_cast<char const*>(&options), sizeof options)).value();
#endif
#endif
  return 0;
}

}  // namespace detail

/// The states of an optimizer over the ranks, placed as `S::optimizer_states`, and the step that updates masters, states and parameters.
///
/// @code
/// zero::ShardedOptimizer<zero::AdamW, Stage> optimizer{parameters, {.learning_rate = 3e-4}};
/// auto pending = optimizer.step(parameters, {.max_norm = 1.0});   // enqueued; pending.wait() gives norm, coefficient, applied
/// @endcode
/// @tparam Opt  The optimizer: a functor for one element, see `Optimizer`.
/// @tparam S    The stage of the parameters it is used with.
///
/// The parameters must outlive it. Neither copied nor moved; destroyed, it waits until this rank's queued steps no longer need the states, and
/// aborts the group before that if an exception destroys it, as `ShardedParameters` does.
/// @par Memory
/// `Opt::states` values of the masters' type for each padded trainable element of the placement, zero at the start.
template <class Opt, class S>
class ShardedOptimizer {
  static_assert(check_stage<S>());

public:
  using options_type = Opt;

  /// @param options  The optimizer's own options; can be changed later through `options()` or given per step.
  /// @throws UsageError for options that the optimizer calls invalid; MismatchError on every rank if the ranks use different optimizers or
  /// options; MemoryError.
  /// @par Communication
  /// Collective: an all-gather of 32 bytes a rank, which compares the ranks.
  template <class Parameters>
  explicit ShardedOptimizer(Parameters& parameters, Opt const& options = {}, SourceLocation where = SourceLocation::current())
      : options_(options),
        parameters_(&parameters),
        settle_([](void* of, bool unwinding) noexcept { static_cast<Parameters*>(of)->engine().settle(unwinding); }) {
    static_assert(std::is_same_v<typename Parameters::stage, S>, "zero: the optimizer's stage is not the stage of these parameters");
    using Master = typename Parameters::master;
    static_assert(check_optimizer<Opt, Master>());
    if constexpr (Optimizer<Opt, Master>) {
      using Device = typename Parameters::Device;
      auto& engine = parameters.engine();
      check_options(parameters, where);
      engine.compare({{static_cast<std::int64_t>(Hasher{}.add(detail::type_text<Opt>()).value()), Opt::states,
                       static_cast<std::int64_t>(detail::options_hash(options_)), 0},
                      {"optimizers", "numbers of optimizer states", "optimizer options", ""}},
                     where);
      elements_ = detail::stored_elements<typename S::optimizer_states>(parameters.partition(), true);
      states_ = Buffer<std::byte>(parameters.memory(), Opt::states * elements_ * static_cast<std::int64_t>(sizeof(Master)),
                                  Purpose::optimizer_states);
      update_ = Buffer<std::byte>(parameters.memory(), static_cast<std::int64_t>(sizeof(detail::UpdateMemory<Opt>)), Purpose::control);
      auto const compute = engine.streams().compute();
      Device::fill(compute, states_.data(), states_.size(), std::byte{});
      Device::fill(compute, update_.data(), update_.size(), std::byte{});
      // The buffers belong to this object, which may be destroyed before the stream gets there.
      Device::synchronize(compute);
    }
  }
  ShardedOptimizer(ShardedOptimizer const&) = delete;
  ShardedOptimizer& operator=(ShardedOptimizer const&) = delete;
  ~ShardedOptimizer() { settle_(parameters_, std::uncaught_exceptions() > exceptions_); }

  /// The options of the steps to come. Equal on all ranks.
  [[nodiscard]] Opt& options() noexcept { return options_; }
  [[nodiscard]] Opt const& options() const noexcept { return options_; }

  /// The whole step: `parameters.reduce(step_options)`, `apply`, `parameters.publish()`. Enqueued; the host waits for nothing.
  /// @returns a handle whose `wait()` gives norm, clipping coefficient and whether the step was applied, equal on all ranks.
  /// @throws UsageError if a pass, gradients or weights are still open, a pass was abandoned, the parameters are others than at construction,
  /// or options are invalid.
  /// @par Communication
  /// That of `reduce` and `publish`.
  template <class Parameters>
  Decision<typename Parameters::Device> step(Parameters& parameters, StepOptions const& step_options = {},
                                             SourceLocation where = SourceLocation::current()) {
    check_same(parameters, where);
    check_options(parameters, where);
    auto const decision = parameters.reduce(step_options, where);
    apply(parameters, decision, where);
    parameters.publish(where);
    return decision;
  }

  /// Updates masters, states and parameters of this rank's part, if the decision says so; between `reduce` and `publish`. Every optimizer that
  /// is applied updates every trainable parameter.
  /// @param decision  What `reduce` returned in this step.
  /// @throws UsageError without `reduce` before it, with another decision, or one that this optimizer has followed already, if the parameters are others than at construction, or if the
  /// optimizer calls its options invalid.
  /// @par Communication
  /// None, except where gradients accumulate Sharded and states are Replicated: an all-gather of each segment's gradient.
  template <class Parameters>
  void apply(Parameters& parameters, Decision<typename Parameters::Device> const& decision,
             SourceLocation where = SourceLocation::current()) {
    check_same(parameters, where);
    using Master = typename Parameters::master;
    using Device = typename Parameters::Device;
    auto& engine = parameters.engine();
    check_options(parameters, where);
    engine.begin_apply(decision, applied_, detail::options_hash(options_), where);
    applied_ = decision.number();
    auto* const update = &memory()->state;
    auto const compute = engine.streams().compute();
    if (engine.capture().active()) {
      engine.capture().add({this, &upload<Parameters>});
      Device::run(compute, detail::AdvanceCapturedUpdate<Opt>{memory(), decision.state()});
    } else {
      Device::run(compute, detail::AdvanceUpdate<Opt>{update, options_, decision.state()});
    }
    for (SegmentId segment : parameters.partition().segments()) {
      if (!parameters.partition().segment(segment).trainable) continue;
      auto const* const gradient = engine.gradients().for_optimizer(segment, where);
      auto const masters = engine.storage().masters(segment);
      Master* const states = reinterpret_cast<Master*>(states_.data()) + engine.storage().state_offset(segment);
      auto const elements = static_cast<std::int64_t>(masters.storage().size());
      enqueue_step<Parameters>(compute, decision.state(), update, masters.data(), gradient, states, engine.storage().parameters(segment),
                               elements);
    }
  }

  /// Enqueues the present options for captured steps that are launched from now on, behind the communication of passes that were not captured.
  /// `ShardedParameters::replay` does it; for graphs that the caller launches itself.
  /// @throws UsageError if the parameters are others than at construction, the options are invalid, or in a capture.
  /// @par Communication
  /// None.
  template <class Parameters>
  void upload_options(Parameters& parameters, SourceLocation where = SourceLocation::current()) {
    check_same(parameters, where);
    parameters.engine().check_not_capturing("upload_options", where);
    parameters.engine().begin_replay();
    store_options(parameters, where);
  }

  /// This rank's part of the k-th state of a trainable segment, placed as the masters are.
  /// @param k  0 <= k < Opt::states
  /// @throws LayoutError for an unknown segment; UsageError for a frozen one, another k, or if the parameters are others than at construction.
  template <class Parameters>
  [[nodiscard]] TensorRef<typename Parameters::master, typename S::optimizer_states> state(
      Parameters& parameters, SegmentId segment, int k, SourceLocation where = SourceLocation::current()) {
    using Master = typename Parameters::master;
    check_same(parameters, where);
    parameters.engine().check_trainable(segment, "state", where);
    if (k < 0 || k >= Opt::states) {
      parameters.engine().fail("state: the optimizer has " + std::to_string(Opt::states) + " states, and no number " + std::to_string(k),
                               where);
    }
    auto& storage = parameters.engine().storage();
    return {reinterpret_cast<Master*>(states_.data()) + k * elements_ + storage.state_offset(segment), storage.geometry(segment)};
  }

private:
  [[nodiscard]] detail::UpdateMemory<Opt>* memory() noexcept { return reinterpret_cast<detail::UpdateMemory<Opt>*>(update_.data()); }

  template <class Parameters>
  static void upload(void* optimizer, SourceLocation where) {
    auto& self = *static_cast<ShardedOptimizer*>(optimizer);
    self.store_options(*static_cast<Parameters*>(self.parameters_), where);
  }

  template <class Parameters>
  void store_options(Parameters& parameters, SourceLocation where) {
    check_options(parameters, where);
    Parameters::Device::run(parameters.engine().streams().compute(), detail::StoreOptions<Opt>{&memory()->options, options_});
  }

  template <class Parameters>
  void check_same(Parameters& parameters, SourceLocation where) const {
    if (parameters_ != static_cast<void*>(&parameters)) {
      throw UsageError("the optimizer was made for other parameters", where, parameters.group().rank());
    }
  }

  template <class Parameters>
  void check_options(Parameters& parameters, SourceLocation where) const {
    if (char const* const what = detail::invalid_options(options_)) {
      parameters.engine().fail(std::string("the optimizer's options: ") + what, where);
    }
  }

  /// Steps a segment's masters. Where masters are a copy, what this rank stores of the parameters is rounded from
  /// them: all of it where both are placed alike, the own part where only parameters are Sharded.
  template <class Parameters, class Stream, class Master, class Gradient, class Stored>
  void enqueue_step(Stream stream, StepState const* decision, UpdateState<Opt> const* update, Master* master, Gradient const* gradient,
                    Master* states, Stored stored, std::int64_t elements) {
    using P = typename Parameters::precision;
    using Element = typename Parameters::parameter;
    using Step = detail::OptimizerStep<Opt, Master, Gradient, Element>;
    auto const enqueue = [&](std::int64_t from, std::int64_t to, Element* parameter) {
      if (from == to) return;
      Step step{decision, update, master + from, gradient + from, parameter, {}};
      for (int k = 0; k < Opt::states; ++k) step.states[k] = states + k * elements_ + from;
      Parameters::Device::for_each(stream, to - from, step);
    };
    if constexpr (!detail::separate_masters<S, P>) {
      enqueue(0, elements, nullptr);
    } else if constexpr (std::is_same_v<typename S::parameters, Sharded> && !std::is_same_v<typename S::optimizer_states, Sharded>) {
      std::int64_t const own_begin = stored.geometry().shard_begin();
      std::int64_t const own_end = own_begin + stored.geometry().shard_elements;
      enqueue(0, own_begin, nullptr);
      enqueue(own_begin, own_end, stored.data());
      enqueue(own_end, elements, nullptr);
    } else {
      enqueue(0, elements, in_place<typename S::optimizer_states>(stored).data());
    }
  }

  Opt options_;
  void* parameters_;
  void (*settle_)(void* parameters, bool unwinding) noexcept;
  int exceptions_ = std::uncaught_exceptions();
  std::int64_t elements_ = 0;
  std::int64_t applied_ = 0;  // the number of the decision that was followed last
  Buffer<std::byte> states_;
  Buffer<std::byte> update_;
};

}  // namespace zero
