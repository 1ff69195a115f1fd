// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The canonical loop of training over models of any engine.

#include <cstdint>
#include <functional>
#include <optional>

#include <zero/core/hash.hpp>
#include <zero/device/host_stream.hpp>

#include "support/model.hpp"

namespace zero::test {

enum class StreamMode {
  calling,               ///< everything on the calling thread
  one_worker,            ///< one stream with a worker
  two_workers,           ///< two of them
  worker_compute,        ///< communication on the calling thread
  worker_communication,  ///< computation on the calling thread
};

struct Setting {
  PrecisionName precision = PrecisionName::fp32;
  StageNumber stage = stage0;
  int ranks = 2;
  StreamMode streams = StreamMode::calling;
  std::uint64_t delay_seed = 0;
  ModelOptions model = {};
};

/// What a rank's code gets, on any device.
template <class D>
struct BasicRank {
  int rank;
  BasicModel<D>& model;
  Traffic& traffic;
  CountingResource& memory;
};

/// The streams of one rank on the host.
class HostStreams {
public:
  HostStreams(Setting const& setting, int rank)
      : compute_(HostStreamRef::calling_thread()), communication_(HostStreamRef::calling_thread()) {
    auto const worker = [&](int i) {
      HostStreamOptions options;
      if (setting.delay_seed != 0) options.delay_seed = setting.delay_seed * 64 + static_cast<std::uint64_t>(2 * rank + i + 1);
      options.max_delay_us = 60;
      return HostStreamRef(workers_[i].emplace(options));
    };
    StreamMode const mode = setting.streams;
    if (mode != StreamMode::calling && mode != StreamMode::worker_communication) compute_ = worker(0);
    if (mode == StreamMode::two_workers || mode == StreamMode::worker_communication) communication_ = worker(1);
    if (mode == StreamMode::one_worker) communication_ = compute_;
  }
  [[nodiscard]] Streams<HostDevice> streams() const { return {compute_, communication_}; }

private:
  std::optional<HostStream> workers_[2];
  HostStreamRef compute_, communication_;
};

/// What a rank does with the gradients of a unit in one pass.
enum class Use {
  adds,     ///< opens them, adds to them, hands them over
  nothing,  ///< says that it has none
  skips,    ///< as no rank touches them
};

/// The training passes of one step.
struct Passes {
  std::int64_t micro_batches = 1;
  std::int64_t inference_passes = 0;
  bool tell_last = true;         ///< the last pass is declared to be the last
  bool backward_gathers = true;  ///< else weights are held from forward to backward
  bool overwrite = false;        ///< kernels overwrite on first use, the library does not zero
  std::function<GradientRule(int rank, std::int64_t micro_batch, Unit, ParameterId)> rule = nullptr;
  std::function<Use(int rank, std::int64_t micro_batch, Unit)> use = nullptr;
};

/// Gradients of a step whose sums are rounded, and depend on the weights.
[[nodiscard]] inline std::function<GradientRule(int, std::int64_t, Unit, ParameterId)> noise_of_step(int step) {
  return [step](int r, std::int64_t m, Unit unit, ParameterId id) {
    auto const key = Hasher{}
                         .add(static_cast<std::uint64_t>(step * 64 + r))
                         .add(static_cast<std::uint64_t>(m * 64 + to_index(unit)))
                         .add(static_cast<std::uint64_t>(to_index(id)))
                         .value();
    return GradientRule::noise(key, 1.0, 0.1);
  };
}

/// The passes of one rank.
inline void run_passes(AnyModel& model, int rank, Passes const& passes) {
  ParameterLayout const& layout = model.partition().layout();
  for (std::int64_t i = 0; i < passes.inference_passes; ++i) {
    model.begin_inference();
    for (Unit unit : layout.units()) {
      model.gather(unit);
      model.release(unit);
    }
    model.end_pass();
  }
  for (std::int64_t m = 0; m < passes.micro_batches; ++m) {
    model.begin_training(passes.tell_last && m + 1 == passes.micro_batches);
    for (Unit unit : layout.units()) {
      model.gather(unit);
      if (passes.backward_gathers) model.release(unit);
    }
    for (Unit unit : layout.units().reversed()) {
      if (passes.backward_gathers) model.gather(unit);
      Use const use = passes.use ? passes.use(rank, m, unit) : Use::adds;
      if (use == Use::adds) {
        model.open_gradients(unit, !passes.overwrite);
        auto const ids = layout.parameters(unit);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          model.add_gradient(unit, static_cast<std::int32_t>(i), passes.rule(rank, m, unit, ids[i]), passes.overwrite);
        }
        model.hand_over(unit);
      } else if (use == Use::nothing) {
        model.no_gradient(unit);
      }
      model.release(unit);
    }
    model.end_pass();
  }
}

template <class D>
void run_passes(BasicRank<D> const& rank, Passes const& passes) {
  run_passes(rank.model, rank.rank, passes);
}

}  // namespace zero::test
