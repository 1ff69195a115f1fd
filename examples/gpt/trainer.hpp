// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The training loop: the same text for every stage, precision, communicator and device.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <zero/comm/counting.hpp>
#include <zero/zero.hpp>
#if defined(ZERO_HAS_MPI)
#include <zero/comm/mpi.hpp>
#include <zero/comm/ordered.hpp>
#endif
#if defined(ZERO_HAS_NCCL)
#include <zero/comm/nccl.hpp>
#endif

#include "gpt/activations.hpp"
#include "gpt/attention.hpp"
#include "gpt/blas.hpp"
#include "gpt/curve.hpp"
#include "gpt/layers.hpp"
#include "gpt/layout.hpp"
#include "gpt/math.hpp"
#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/sampling.hpp"
#include "gpt/text.hpp"

namespace gpt {

/// What one training run came to, on rank 0.
struct RunResult {
  std::string stage;
  Curve curve;
  double validation_loss = 0;
  zero::Plan plan = {};                             ///< of one step
  std::int64_t held[zero::purpose_count] = {};      ///< peak bytes by purpose, counted
  std::int64_t received[zero::subject_count] = {};  ///< bytes received in training steps by subject, counted
  double seconds = 0;                               ///< of the training steps
  double tokens_per_second = 0;                     ///< of all ranks
  std::string text;
};

/// Values of the GPT-2 paper's initialisation: weights normal with deviation 0.02, projections into the residual stream 1/sqrt(2 layers) of
/// that, LayerNorm one and biases zero. Small models learn faster with wider weights: the deviation is at least 1/sqrt(4 channels).
inline zero::InitialValue initial_value(zero::ParameterLayout const& layout, Config const& config, zero::ParameterId id) {
  std::string const name(layout.name(id));
  bool const is_bias = name.ends_with(".bias");
  bool const is_norm = name.find("ln_") != std::string::npos;
  if (is_bias) return zero::InitialValue::constant(0);
  if (is_norm) return zero::InitialValue::constant(1);
  double deviation = std::fmax(0.02, 0.5 / std::sqrt(static_cast<double>(config.channels)));
  if (name == "wte.weight" || name == "wpe.weight") deviation = 0.02;
  if (name.ends_with("c_proj.weight")) deviation /= std::sqrt(2.0 * static_cast<double>(config.layers));
  return zero::InitialValue::normal(0, static_cast<float>(deviation));
}

/// One rank's model: its activations, and which function belongs to which unit.
template <class Math = HostMath>
class Model {
public:
  Model(Config const& config, zero::ParameterLayout const& layout, Math const& math = {})
      : activations_(config, math), last_(layout.unit_count() - 1) {}

  template <class W>
  void forward(zero::Unit unit, zero::UnitView<W> weights, Batch const& batch) {
    std::int32_t const index = zero::to_index(unit);
    if (index == 0) embedding_forward(activations_, weights, batch.tokens.data());
    else if (index < last_) block_forward(activations_, index - 1, weights);
    else loss_ = head_forward_loss(activations_, weights, batch.targets.data());
  }

  template <class W, class G>
  void backward(zero::Unit unit, zero::UnitView<W> weights, zero::UnitView<G> gradients, Batch const& batch) {
    std::int32_t const index = zero::to_index(unit);
    if (index == last_) head_backward(activations_, weights, gradients);
    else if (index > 0) block_backward(activations_, index - 1, weights, gradients);
    else embedding_backward(activations_, gradients, batch.tokens.data());
  }

  /// Logits [context, vocabulary] of one sequence, for the host, valid until the next call; the weights are whole.
  template <class Whole>
  float const* logits(Whole const& weights, std::int32_t const* tokens) {
    embedding_forward(activations_, weights[zero::Unit{0}], tokens);
    for (std::int32_t i = 1; i < last_; ++i) block_forward(activations_, i - 1, weights[zero::Unit{i}]);
    float const* const logits = head_forward(activations_, weights[zero::Unit{last_}]);
    return on_host(activations_.math, activations_.config.rows() * activations_.config.vocabulary, logits, logits_);
  }

  [[nodiscard]] double loss() const noexcept { return loss_; }
  [[nodiscard]] Math const& math() const noexcept { return activations_.math; }

private:
  Activations<Math> activations_;
  std::int32_t last_;
  std::vector<float> logits_;
  double loss_ = 0;
};

/// Prints a line where progress is to be seen: at validations, and about once in two seconds.
class Progress {
public:
  Progress(Options const& options, std::string const& stage) : options_(options), stage_(stage) {}

  void step(std::int64_t done, double loss, double seconds) {
    if (options_.quiet || (done < options_.steps && seconds - shown_ < 2)) return;
    shown_ = seconds;
    double const tokens = static_cast<double>(done * options_.micro_batches * options_.ranks) * static_cast<double>(options_.config.rows());
    double const left = seconds / static_cast<double>(done) * static_cast<double>(options_.steps - done);
    std::printf("%-7s step %5lld of %lld   loss %.4f   %6.0f tokens/s   %3.0f s left\n", stage_.c_str(), static_cast<long long>(done),
                static_cast<long long>(options_.steps), loss, tokens / seconds, left);
    std::fflush(stdout);
  }

private:
  Options const& options_;
  std::string stage_;
  double shown_ = 0;
};

/// The mean over the ranks of one number each.
/// @param memory  of the group's device
template <class Group>
double mean(Group& group, typename Group::Device::Stream stream, double value, zero::MemoryResource& memory = zero::host_memory()) {
  using Device = typename Group::Device;
  if (group.size() == 1) return value;
  zero::Buffer<double> sum(memory, 1, zero::Purpose::control);
  Device::copy(stream, sum.data(), &value, sizeof value);
  group.enqueue(stream, zero::AllReduce<double>{.send = sum.data(), .receive = sum.data(), .count = 1});
  Device::copy(stream, &value, sum.data(), sizeof value);
  Device::synchronize(stream);
  return value / static_cast<double>(group.size());
}

/// The loss on validation data, which the ranks share out.
template <class Parameters, class Group, class Math>
double validate(Parameters& parameters, Group& group, Model<Math>& model, Text const& text, Config const& config, Batch& batch) {
  constexpr std::int64_t most = 8;
  std::int64_t const available = batches_in(text.validation, config) / group.size();
  std::int64_t const batches = available < 1 ? 1 : available > most ? most : available;
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    take_batch(text.validation, config, i * group.size() + group.rank(), batch);
    auto pass = parameters.inference_pass();
    for (zero::Unit unit : parameters.layout().units()) {
      auto weights = pass.gather(unit);
      model.template forward<typename Parameters::parameter const>(unit, weights, batch);
    }
    sum += model.loss();
  }
  return mean(group, model.math().stream(), sum / static_cast<double>(batches), model.math().memory());
}

/// What a run does in one step.
inline zero::Schedule schedule_of(Options const& options) {
  return {.micro_batches = options.micro_batches, .overlapped = options.device == Processor::cuda, .step = {.max_norm = options.clip}};
}

/// Trains one rank. Rank 0 fills `result`.
/// @param math  of the compute stream
template <class Stage, class Precision, class Group, class Math = HostMath>
void train(zero::ParameterLayout const& layout, Group& group, zero::Traffic& traffic, zero::Streams<typename Group::Device> streams,
           zero::CountingResource& memory, Options const& options, Text const& text, RunResult& result, Math const& math = {}) {
  using parameter = typename Precision::parameter;
  using gradient = typename Precision::gradient;
  using clock = std::chrono::steady_clock;
  Config const& config = options.config;
  bool const reports = group.rank() == 0;
  Model model(config, layout, math);
  Batch batch(config);
  Progress progress(options, Stage::name);

  auto parameters = zero::shard_parameters<Stage, Precision>(layout, group, streams, memory);
  zero::ShardedOptimizer<zero::AdamW, Stage> optimizer{parameters, {.weight_decay = options.weight_decay}};
  parameters.initialize(options.seed, [&](zero::ParameterId id) { return initial_value(layout, config, id); });
  parameters.reserve(schedule_of(options));  // so that no buffers are allocated between collectives

  for (std::int64_t step = 0; step < options.steps; ++step) {
    auto const start = clock::now();
    std::int64_t received[zero::subject_count];
    for (int i = 0; i < zero::subject_count; ++i) received[i] = traffic.received_bytes(static_cast<zero::Subject>(i));
    double loss = 0;

    for (std::int64_t m = 0; m < options.micro_batches; ++m) {
      draw_batch(text.training, config, {options.seed, step, m, group.rank()}, batch);
      auto pass = parameters.training_pass({.last = m + 1 == options.micro_batches});
      for (zero::Unit unit : layout.units()) {
        auto weights = pass.gather(unit);
        model.template forward<parameter const>(unit, weights, batch);
      }
      for (zero::Unit unit : layout.units().reversed()) {
        auto weights = pass.gather(unit);
        auto gradients = pass.gradients(unit);
        model.template backward<parameter const, gradient>(unit, weights, gradients, batch);
        gradients.hand_over();
      }
      pass.finish();
      loss += model.loss() / static_cast<double>(options.micro_batches);
    }
    optimizer.options().learning_rate = learning_rate_at(options, step);
    auto const pending = optimizer.step(parameters, {.max_norm = options.clip, .micro_batches = options.micro_batches});
    if (!pending.wait().applied && reports)
      std::printf("step %lld was skipped: a gradient is not finite\n", static_cast<long long>(step + 1));

    if (reports) {
      for (int i = 0; i < zero::subject_count; ++i)
        result.received[i] += traffic.received_bytes(static_cast<zero::Subject>(i)) - received[i];
      result.seconds += std::chrono::duration<double>(clock::now() - start).count();
    }
    double const mean_loss = mean(group, streams.compute, loss, math.memory());
    if (reports) {
      result.curve.training.push_back({step + 1, mean_loss});
      progress.step(step + 1, mean_loss, result.seconds);
    }
    bool const last = step + 1 == options.steps;
    if (last || (options.validate_every > 0 && (step + 1) % options.validate_every == 0)) {
      double const validation = validate(parameters, group, model, text, config, batch);
      if (reports) {
        result.curve.validation.push_back({step + 1, validation});
        result.validation_loss = validation;
      }
    }
  }

  if (reports) {
    for (int i = 0; i < zero::purpose_count; ++i) result.held[i] = memory.peak(static_cast<zero::Purpose>(i));
    double const tokens = static_cast<double>(options.steps * options.micro_batches * config.rows()) * static_cast<double>(group.size());
    result.tokens_per_second = result.seconds > 0 ? tokens / result.seconds : 0;
  }
  if (options.generate > 0) {
    auto const whole = parameters.gather_all();  // every rank takes part; then rank 0 writes alone
    if (reports) {
      Config one = config;
      one.batch = 1;
      Model writer(one, layout, math);
      auto const tokens = generate(one, tokens_of(options.prompt), options.generate, options.sampling,
                                   [&](std::int32_t const* window) { return writer.logits(whole, window); });
      if (!options.tokens16) {
        result.text = readable(tokens);
      } else {
        for (std::int32_t token : tokens) result.text += std::to_string(token) + " ";
      }
    }
  }
}

/// A run that has not begun: its name and its plan.
template <class Stage, class Precision>
RunResult planned(Options const& options) {
  RunResult result;
  result.stage = Stage::name;
  result.curve.name = Stage::name;
  result.plan = zero::plan<Stage, Precision, zero::AdamW>(make_layout(options.config), options.ranks, schedule_of(options));
  return result;
}

/// Trains with threads of this process as ranks.
template <class Stage, class Precision>
RunResult train_with_threads(Options const& options, Text const& text) {
  zero::ParameterLayout const layout = make_layout(options.config);
  RunResult result = planned<Stage, Precision>(options);
  zero::run_ranks(options.ranks, [&](zero::ThreadCommunicator& communicator) {
    zero::Traffic traffic;
    zero::CountingResource memory{zero::host_memory()};
    zero::Counting group{zero::Borrowed{communicator}, traffic};
    auto const here = zero::HostStreamRef::calling_thread();
    train<Stage, Precision>(layout, group, traffic, {here, here}, memory, options, text, result);
  });
  return result;
}

#if defined(ZERO_HAS_MPI)

/// Trains with the processes of an MPI job as ranks, of which this one is one. The sums over ranks are those of the threads.
template <class Stage, class Precision>
RunResult train_with_mpi(zero::MpiCommunicator& world, Options const& options, Text const& text) {
  zero::ParameterLayout const layout = make_layout(options.config);
  RunResult result = planned<Stage, Precision>(options);
  zero::Traffic traffic;
  zero::CountingResource memory{zero::host_memory()};
  zero::Counting group{zero::Ordered{zero::Borrowed{world}, zero::host_memory()}, traffic};
  auto const here = zero::HostStreamRef::calling_thread();
  train<Stage, Precision>(layout, group, traffic, {here, here}, memory, options, text, result);
  return result;
}

#endif

/// What the ranks are, besides threads of this process.
struct World {
#if defined(ZERO_HAS_MPI)
  zero::MpiCommunicator* mpi = nullptr;
#endif
#if defined(ZERO_HAS_NCCL)
  zero::NcclCommunicator* nccl = nullptr;
#endif
};

/// Trains on the host with the ranks there are. Without threads the result is that of rank 0 on rank 0, and empty elsewhere.
template <class Stage, class Precision>
RunResult train_with(World const& world, Options const& options, Text const& text) {
#if defined(ZERO_HAS_MPI)
  if (world.mpi != nullptr) return train_with_mpi<Stage, Precision>(*world.mpi, options, text);
#endif
  static_cast<void>(world);
  return train_with_threads<Stage, Precision>(options, text);
}

}  // namespace gpt
