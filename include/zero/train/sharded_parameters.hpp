// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// A model's parameters, gradients and masters over a group of ranks, at one stage: the centre of a training loop.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/config.hpp>
#include <zero/core/error.hpp>
#include <zero/core/hash.hpp>
#include <zero/device/device.hpp>
#include <zero/device/memory.hpp>
#include <zero/device/streams.hpp>
#include <zero/layout/partition.hpp>
#include <zero/tensor/tensor_ref.hpp>
#include <zero/train/captured_graph.hpp>
#include <zero/train/detail/training_engine.hpp>
#include <zero/train/detail/value_writers.hpp>
#include <zero/train/initial_values.hpp>
#include <zero/train/pass.hpp>
#include <zero/train/plan.hpp>
#include <zero/train/precision.hpp>
#include <zero/train/stage.hpp>
#include <zero/train/step_report.hpp>

namespace zero {

/// How `shard_parameters` cuts and checks.
struct ParametersOptions {
  PartitionOptions partition = {};
  /// Fills gathered weights and gradient scratch with NaN as soon as nobody may read them any more. For tests; on at assertion level 2.
  bool poison_released = ZERO_ASSERTION_LEVEL >= 2;
  /// Where parameters are Sharded and collectives do not all run on the compute stream: how much may be gathered before it is asked for
  /// [bytes]; negative: as much as the largest unit. What comes next is taken from the last pass of the same kind; for the first ones, the
  /// units in order, and in a training pass back again. A pass that gathers something else than expected goes on without, and may have
  /// gathered in vain.
  std::int64_t prefetch_bytes = -1;
};

/// The whole model on a rank: made by `ShardedParameters::gather_all`, lets go of it when destroyed. The parameters must outlive it.
template <class Engine>
class GatheredModel {
public:
  using parameter = typename Engine::parameter;

  GatheredModel(Engine& engine, SourceLocation where) : engine_(&engine) { engine.hold_all(where); }
  GatheredModel(GatheredModel const&) = delete;
  GatheredModel& operator=(GatheredModel const&) = delete;
  ~GatheredModel() { engine_->let_go_of_all(); }

  /// The weights of a unit. @throws LayoutError for an unknown one.
  [[nodiscard]] UnitView<parameter const> operator[](Unit unit) const {
    static_cast<void>(engine_->layout().parameters(unit));
    return engine_->weights().view(unit);
  }
  /// A parameter, whole. @throws LayoutError for an unknown one.
  [[nodiscard]] std::span<parameter const> operator[](ParameterId id) const {
    auto const view = engine_->weights().view(engine_->layout().unit(id));
    return {view.data(id), static_cast<std::size_t>(engine_->layout().elements(id))};
  }

private:
  Engine* engine_;
};

/// Parameters, gradients and masters of a model over the ranks of a group, at stage S. Made by `shard_parameters`; neither copied nor moved.
///
/// Destroyed because an exception passes through, it aborts the group, so that neither this rank nor a peer waits for what will not come. It
/// then waits until this rank's queued work no longer needs the memory.
/// @tparam S      The stage: three placements.
/// @tparam P      The element types, for instance `Precision<bf16>`.
/// @tparam Group  The communicator's type.
/// @par Memory
/// Per rank, with n the padded elements of a segment over N ranks: parameters and gradients n where their placement is Replicated or Partial,
/// n / N where Sharded; masters, where they are a copy, by the placement of the optimizer states. `plan` says it in bytes before the run.
template <Stage S, PrecisionPolicy P, class Group>
class ShardedParameters {
  using Engine = detail::TrainingEngine<S, P, Group>;

public:
  using stage = S;
  using precision = P;
  using Device = typename Group::Device;
  using parameter = typename P::parameter;
  using gradient = typename P::gradient;
  using accumulator = typename P::accumulator;
  using master = typename P::master;

  /// See `shard_parameters`.
  ShardedParameters(ParameterLayout const& layout, Group& group, Streams<Device> streams, MemoryResource& memory,
                    ParametersOptions options = {}, SourceLocation where = SourceLocation::current())
      : engine_(layout, group, streams, memory, options.partition, options.poison_released, options.prefetch_bytes,
                Hasher{}
                    .add(static_cast<std::uint64_t>(options.poison_released))
                    .add(static_cast<std::uint64_t>(detail::prefetch_elements<S, P>(options.prefetch_bytes, streams.overlap())))
                    .value(),
                where),
        prefetch_bytes_(options.prefetch_bytes) {}
  ShardedParameters(ShardedParameters const&) = delete;
  ShardedParameters& operator=(ShardedParameters const&) = delete;

  [[nodiscard]] ParameterLayout const& layout() const noexcept { return engine_.layout(); }
  [[nodiscard]] Partition const& partition() const noexcept { return engine_.partition(); }
  [[nodiscard]] Group& group() const noexcept { return engine_.group(); }
  [[nodiscard]] MemoryResource& memory() const noexcept { return engine_.memory(); }

  /// Sets all parameters. Each rank computes what it holds; a value depends on the seed, the parameter's name and the element's index in it, on
  /// nothing else.
  /// @param initial  Gives the `InitialValue` of a parameter; called on this thread, once for each in the order of the layout. Equal on all ranks.
  /// @throws UsageError if a pass or weights are open.
  /// @par Communication
  /// None.
  /// @par Stream order
  /// Enqueued on the compute stream.
  template <class F>
    requires std::is_invocable_r_v<InitialValue, F&, ParameterId>
  void initialize(std::uint64_t seed, F&& initial, SourceLocation where = SourceLocation::current()) {
    std::vector<InitialValue> values;
    Hasher contents;
    contents.add(seed);
    for (ParameterId id : layout().parameters()) {
      InitialValue const& value = values.emplace_back(initial(id));
      contents.add(static_cast<std::uint64_t>(value.kind)).add(std::uint64_t{std::bit_cast<std::uint32_t>(value.a)});
      contents.add(std::uint64_t{std::bit_cast<std::uint32_t>(value.b)});
    }
    engine_.begin_change(Label{Subject::parameters}, "initialize", contents.value(), where);
    for (SegmentId segment : partition().segments()) {
      for_held(segment, [&]<class T>(ParameterId id, T* to, std::int64_t first, std::int64_t count) {
        std::uint64_t const key = initial_key(seed, Hasher{}.add(layout().name(id)).value());
        Device::for_each(engine_.streams().compute(), count, detail::WriteInitial<T, master>{to, values[detail::at(id)], key, first});
      });
    }
  }

  /// Sets one parameter from the whole of its values, the same on all ranks. Waits until they are copied.
  /// @param values  [elements of the parameter]
  /// @throws UsageError if the size is another, or a pass or weights are open; LayoutError for an unknown parameter.
  /// @par Communication
  /// None.
  void assign(ParameterId id, std::span<master const> values, SourceLocation where = SourceLocation::current()) {
    if (static_cast<std::int64_t>(values.size()) != layout().elements(id, where)) {
      engine_.fail("assign: parameter '" + std::string(layout().name(id)) + "' has " + std::to_string(layout().elements(id)) +
                       " elements, not " + std::to_string(values.size()),
                   where);
    }
    std::uint64_t contents = 0;
    if constexpr (Performs<Group, Announce>) {
      contents = Hasher{}.add(std::string_view(reinterpret_cast<char const*>(values.data()), values.size_bytes())).value();
    }
    engine_.begin_change(Label{Subject::parameters, to_index(id)}, "assign", contents, where);
    for_held(partition().segment_of(id), [&]<class T>(ParameterId other, T* to, std::int64_t first, std::int64_t count) {
      if (other == id) detail::copy_rounded<Device>(engine_.streams().compute(), to, values.data() + first, count);
    });
    Device::synchronize(engine_.streams().compute());
  }

  /// Allocates now what the passes of a loop would allocate when they first need it: the buffers of gathered weights and of gradient scratch, by the
  /// code that `plan` runs. The passes of such a loop allocate nothing afterwards, if none in another order came before. For memory whose
  /// allocation must not come between collectives: on CUDA it waits for the device, and as windows of NCCL it is itself collective. What is
  /// there already counts; a loop that does more than was reserved, and `gather_all`, allocate the rest as they would have.
  /// @param schedule  What one step does; of several loops, reserve for each. No micro-batches are allowed: passes without gradients only.
  /// `overlapped` and `prefetch_bytes` are those of these parameters, whatever it says, and `step` is not looked at.
  /// @throws UsageError if a pass, weights or a step are open, or a pass was abandoned, and for a negative number of passes; MemoryError. Nothing
  /// has changed then.
  /// @par Communication
  /// None.
  /// @par Memory
  /// Together with what was there, what `plan` says under `gathered` and `gradient_scratch`.
  /// @par Stream order
  /// Nothing is enqueued.
  void reserve(Schedule schedule = {}, SourceLocation where = SourceLocation::current()) {
    engine_.check_not_capturing("reserve", where);
    engine_.check_between_passes("reserve", where);
    if (schedule.micro_batches < 0 || schedule.inference_passes < 0) engine_.fail("reserve: a negative number of passes", where);
    schedule.overlapped = engine_.streams().overlapped();
    schedule.prefetch_bytes = prefetch_bytes_;
    detail::DryRun<S, P> loop(partition(), group().rank(), schedule);
    loop.run();
    auto weights = engine_.weights().buffers().missing(loop.gathered());
    auto gradients = engine_.gradients().buffers().missing(loop.scratch());
    engine_.weights().buffers().add(std::move(weights));
    engine_.gradients().buffers().add(std::move(gradients));
  }

  /// A forward and backward over one micro-batch.
  /// @throws UsageError if another pass is open or was abandoned, one was declared the last before the step, or a step is under way.
  [[nodiscard]] TrainingPass<Engine> training_pass(TrainingPassOptions options = {}, SourceLocation where = SourceLocation::current()) {
    return {engine_, options, where};
  }
  /// A forward only.
  /// @throws UsageError if another pass is open or was abandoned, or a step is under way.
  [[nodiscard]] InferencePass<Engine> inference_pass(SourceLocation where = SourceLocation::current()) { return {engine_, where}; }

  /// The whole model on every rank, until the result is destroyed: for code that only one rank runs afterwards.
  /// @par Communication
  /// Collective where parameters are Sharded: an all-gather of every segment that is not resident.
  /// @par Memory
  /// Where parameters are Sharded, all of them under `gathered`.
  /// @par Stream order
  /// The weights are ready in the order of the compute stream.
  /// @throws UsageError between `reduce` and `publish`; MemoryError.
  [[nodiscard]] GatheredModel<Engine> gather_all(SourceLocation where = SourceLocation::current()) { return {engine_, where}; }

  /// Rule 3 and the decision: gradients become the optimizer's placement, are measured, and the step is decided, equally on all ranks. Enqueued;
  /// the host waits for nothing.
  /// @throws UsageError if a pass, gradients or weights are still open, or a pass was abandoned.
  /// @par Communication
  /// Where gradients accumulate Partial, a reduction of each segment that no last pass has reduced; an all-reduce of 168 bytes (552 for fp64
  /// gradients) if the norm or the finite check is on.
  Decision<Device> reduce(StepOptions const& options = {}, SourceLocation where = SourceLocation::current()) {
    return engine_.reduce(options, where);
  }

  /// Rule 4: updated parts become the parameters' placement, and the next gradients start from zero. Once a step, after the optimizers.
  /// @throws UsageError without `reduce` before it.
  /// @par Communication
  /// An all-gather of each trainable segment where states are Sharded and parameters Replicated.
  void publish(SourceLocation where = SourceLocation::current()) { engine_.publish(where); }

  /// Forgets all gradients since the last step, and an abandoned pass. All ranks call it. Scopes of gradients that are still there become
  /// useless: they cannot be handed over any more.
  /// @throws UsageError if a pass is open, or between `apply` and `publish`.
  /// @par Communication
  /// None.
  void discard_gradients(SourceLocation where = SourceLocation::current()) { engine_.discard_gradients(where); }

  /// Captures the passes, the step, or both, that `work()` makes with these parameters, and whatever else it enqueues to the streams, in a graph
  /// of the device. Nothing of it runs: afterwards the host is where it was. It can be replayed where the same calls would enqueue the same.
  ///
  /// @code
  /// auto graph = parameters.capture([&] {
  ///   train(parameters, batch);                              // passes; batch at one place, for all replays
  ///   static_cast<void>(optimizer.step(parameters, options));
  /// });
  /// for (...) {
  ///   load_next(batch);                                      // enqueued to the compute stream
  ///   optimizer.options().learning_rate = schedule(...);
  ///   auto pending = parameters.replay(graph);               // pending.wait() as after optimizer.step
  /// }
  /// @endcode
  /// A replay reads the optimizers' options of its own time, and decides anew whether to skip; `StepOptions` are fixed by the capture. Passes of
  /// the same kind must have run before, or `reserve` for them, so that no memory has to be allocated. A report of a step in the capture
  /// cannot be waited for.
  /// @param work  Ends its passes and steps, waits for nothing, and uses no streams but these and those that wait for their events in it.
  /// @throws what `work` throws, and then nothing was captured; UsageError if a pass, weights or a step are open before or after it, or a
  /// pass was abandoned; DeviceError where the device refuses what was captured, for instance an allocation.
  /// @par Communication
  /// Whatever `work` enqueues becomes part of the graph: all ranks capture, and replay, the same. A communicator that compares or counts calls
  /// does so once, in the capture; one with a watchdog watches each replay as one operation, and what `replayed` says as one.
  template <class Work>
    requires std::is_invocable_v<Work&> && CapturesGraphs<Device>
  [[nodiscard]] CapturedGraph<Engine> capture(Work&& work, SourceLocation where = SourceLocation::current()) {
    return detail::GraphCapture<Engine>::capture(engine_, work, where);
  }
  /// Runs a captured graph once, on the compute stream, with the optimizers' present options.
  /// @returns the decision of its last step, as `ShardedOptimizer::step` does; an empty one where the graph holds no step.
  /// @throws UsageError if the graph is empty or of other parameters, a pass, weights or a step are open, other gradients have been accumulated
  /// since the last step than when it was captured, or options are invalid; DeviceError.
  /// @par Communication
  /// What was captured.
  Decision<Device> replay(CapturedGraph<Engine> const& graph, SourceLocation where = SourceLocation::current())
    requires CapturesGraphs<Device>
  {
    return detail::GraphCapture<Engine>::replay(engine_, graph, where);
  }
  /// Says that the caller has launched a captured graph itself, `times` times since it last said so, on the compute stream or so that the
  /// compute stream waits for it: what the host counts goes on by as much. The graph reads the options that `ShardedOptimizer::upload_options`
  /// has given it, at first those of the capture.
  /// @returns as `replay`; empty for 0 times.
  /// @throws UsageError as `replay`, for a negative number, and for more than one time if the graph leaves other gradients accumulated than it
  /// begins with. Nothing is counted then.
  /// @par Communication
  /// None.
  Decision<Device> replayed(CapturedGraph<Engine> const& graph, std::int64_t times = 1, SourceLocation where = SourceLocation::current())
    requires CapturesGraphs<Device>
  {
    return detail::GraphCapture<Engine>::replayed(engine_, graph, times, where);
  }

  /// What this rank stores of a segment's parameters. Gaps between parameters, which begin at aligned places, hold nothing in particular:
  /// `partition().pieces` names the runs that are parameters. The same goes for masters, gradients and optimizer states.
  /// @throws LayoutError for an unknown segment.
  [[nodiscard]] TensorRef<parameter const, typename S::parameters> stored(SegmentId segment,
                                                                          SourceLocation where = SourceLocation::current()) {
    static_cast<void>(partition().segment(segment, where));
    return engine_.storage().parameters(segment);
  }
  /// The masters of a trainable segment: what the optimizer updates.
  /// @throws LayoutError for an unknown segment; UsageError for a frozen one.
  [[nodiscard]] TensorRef<master, typename S::optimizer_states> masters(SegmentId segment,
                                                                        SourceLocation where = SourceLocation::current()) {
    engine_.check_trainable(segment, "masters", where);
    return engine_.storage().masters(segment);
  }
  /// The gradient of a trainable segment between `reduce` and `publish`: the sum over ranks and micro-batches, before any factor.
  /// @throws LayoutError for an unknown segment; UsageError for a frozen one, or at another time.
  [[nodiscard]] TensorRef<accumulator const, typename detail::GradientRules<S, P>::Reduced> reduced_gradient(
      SegmentId segment, SourceLocation where = SourceLocation::current()) {
    engine_.check_reduced("reduced_gradient", where);
    engine_.check_trainable(segment, "reduced_gradient", where);
    return engine_.gradients().reduced(segment);
  }

  /// For optimizers: what the parameters are made of.
  [[nodiscard]] Engine& engine() noexcept { return engine_; }

private:
  /// Calls `f(id, to, first, count)` for each run of elements that this rank holds, of parameters and of masters.
  template <class F>
  void for_held(SegmentId segment, F&& f) {
    detail::for_each_run(partition(), segment, engine_.storage().parameters(segment), f);
    if (detail::separate_masters<S, P> && partition().segment(segment).trainable) {
      detail::for_each_run(partition(), segment, engine_.storage().masters(segment), f);
    }
  }

  Engine engine_;
  std::int64_t prefetch_bytes_;
};

/// Shards a model over a group: `auto parameters = zero::shard_parameters<zero::Stage3, zero::Precision<zero::bf16>>(layout, comm, streams, memory);`
///
/// @param layout   What there is. Copied.
/// @param group    The ranks. Kept by reference.
/// @param streams  Where the caller computes, and where gathers and reductions run. The same stream for all means no overlap. They must outlive
/// the result.
/// @param memory   Where all device memory comes from. Kept by reference.
/// @throws MismatchError on every rank if the ranks differ in layout, stage, types or options; LayoutError, MemoryError.
/// @par Communication
/// Collective: an all-gather of 32 bytes a rank, which compares the ranks.
/// @par Stream order
/// Waits for that comparison. Parameters are not initialised: see `initialize` and `assign`.
template <class S, class P, class Group>
[[nodiscard]] auto shard_parameters(ParameterLayout const& layout, Group& group, Streams<typename Group::Device> streams,
                                    MemoryResource& memory, ParametersOptions options = {},
                                    SourceLocation where = SourceLocation::current()) {
  static_assert(check_stage<S>());
  static_assert(
      PrecisionPolicy<P>,
      "zero: a precision names five real element types: parameter, gradient, wire, accumulator and master, of which the accumulator "
      "holds every value of the gradient and of the wire");
  static_assert(check_communicator<Group>());
  if constexpr (Stage<S> && PrecisionPolicy<P> && Communicator<Group>) {
    static_assert(GathersAll<Group, typename P::parameter> && GathersAll<Group, typename P::accumulator> &&
                      ReduceScatters<Group, typename P::wire> && AllReduces<Group, typename P::wire, Sum> &&
                      GathersAll<Group, std::int64_t>,
                  "zero: the communicator lacks collectives of this precision's types: it gathers parameters, accumulators and int64, and "
                  "reduce-scatters and all-reduces the wire type");
    return ShardedParameters<S, P, Group>(layout, group, streams, memory, options, where);
  }
}

}  // namespace zero
