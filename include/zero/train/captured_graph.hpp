// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Passes and steps in a graph of the device, and what the host counts when it is replayed.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/device/device.hpp>
#include <zero/train/detail/training_engine.hpp>
#include <zero/train/step_report.hpp>

namespace zero {

namespace detail {

/// What a graph holds of the engine's work.
template <class Engine>
struct CapturedWork {
  Engine* engine;
  typename Engine::Position before;
  typename Engine::Position after{};
  std::int64_t steps = 0;
  PlainArray<CapturedOptimizer> optimizers{};
};

template <class Engine>
class GraphCapture;

}  // namespace detail

/// Passes and steps that were captured by `ShardedParameters::capture`; a default one is empty. Owns the device's graph.
///
/// Parameters, optimizers, group and streams that were used in the capture, and the memory that the captured kernels use, must outlive its
/// launches. The graph itself must outlive them too. It is to be destroyed before the communicator: NCCL does not end one, nor abort it, while
/// there are graphs that hold its operations.
template <class Engine>
class CapturedGraph {
public:
  CapturedGraph() = default;

  /// The device's graph for a launch by the caller, on the compute stream or in order with it: see `ShardedParameters::replayed`. Where passes
  /// were made by calls since the last step, it must come behind the stream of reductions too.
  [[nodiscard]] typename Engine::Device::Graph const& graph() const noexcept { return graph_; }

private:
  friend class detail::GraphCapture<Engine>;

  typename Engine::Device::Graph graph_;
  std::unique_ptr<detail::CapturedWork<Engine>> work_;
};

namespace detail {

/// Captures and replays for an engine.
template <class Engine>
class GraphCapture {
public:
  using Device = typename Engine::Device;
  using Graph = CapturedGraph<Engine>;

  template <class Work>
  [[nodiscard]] static Graph capture(Engine& engine, Work&& work, SourceLocation where) {
    engine.check_nothing_captured("capture", where);
    engine.check_between_passes("capture", where);
    auto captured = std::make_unique<CapturedWork<Engine>>(CapturedWork<Engine>{&engine, engine.position()});
    Graph result;
    auto const& streams = engine.streams();
    typename Device::Stream const sides[] = {streams.communication(), streams.reductions()};
    result.graph_ = Device::capture(
        streams.compute(), sides,
        [&] {
          Scope const scope(*captured);
          std::int64_t const before = engine.decider().captured();
          std::forward<Work>(work)();
          engine.check_between_passes("the end of a capture", where);
          captured->after = engine.position();
          captured->steps = engine.decider().captured() - before;
        },
        where);
    result.work_ = std::move(captured);
    upload_options(result, where);
    return result;
  }

  static Decision<Device> replay(Engine& engine, Graph const& graph, SourceLocation where) {
    check(engine, graph, 1, "replay", where);
    engine.begin_replay();
    upload_options(graph, where);
    auto const compute = engine.streams().compute();
    watch_at(
        engine.group(), compute, [&] { Device::launch(compute, graph.graph_, where); }, where);
    return count(*graph.work_, 1);
  }

  static Decision<Device> replayed(Engine& engine, Graph const& graph, std::int64_t times, SourceLocation where) {
    check(engine, graph, times, "replayed", where);
    if (times == 0) return {};
    watch_at(
        engine.group(), engine.streams().compute(), [] {}, where);
    return count(*graph.work_, times);
  }

private:
  /// The time of a capture, in which the compute stream is behind all communication. At its end the host is where it was: nothing has run.
  class Scope {
  public:
    explicit Scope(CapturedWork<Engine>& work) noexcept : work_(work) { work.engine->begin_capture(work.optimizers); }
    Scope(Scope const&) = delete;
    Scope& operator=(Scope const&) = delete;
    ~Scope() { work_.engine->end_capture(work_.before); }

  private:
    CapturedWork<Engine>& work_;
  };

  static void check(Engine& engine, Graph const& graph, std::int64_t times, std::string const& call, SourceLocation where) {
    CapturedWork<Engine> const* const work = graph.work_.get();
    if (work == nullptr) engine.fail(call + ": this graph is empty: nothing was captured in it, or it was moved away", where);
    if (work->engine != &engine) engine.fail(call + ": this graph was captured of other parameters", where);
    if (times < 0) engine.fail(call + ": " + std::to_string(times) + " times", where);
    engine.check_not_capturing(call.c_str(), where);
    engine.check_between_passes(call.c_str(), where);
    if (times > 0 && !(engine.position() == work->before)) {
      engine.fail(call + ": when the graph was captured other gradients had been accumulated since the last step than now", where);
    }
    if (times > 1 && !(work->before == work->after)) {
      engine.fail(call + ": this graph cannot follow itself: it begins where other gradients had been accumulated than it leaves", where);
    }
  }

  static void upload_options(Graph const& graph, SourceLocation where) {
    for (CapturedOptimizer const& o : graph.work_->optimizers) o.upload_options(o.optimizer, where);
  }

  static Decision<Device> count(CapturedWork<Engine> const& work, std::int64_t times) {
    work.engine->restore(work.after);
    return work.steps == 0 ? Decision<Device>{} : work.engine->decider().replayed(times * work.steps);
  }
};

}  // namespace detail

}  // namespace zero
