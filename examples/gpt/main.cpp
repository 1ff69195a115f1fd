// SPDX-License-Identifier: Apache-2.0
/// @file
/// Trains a GPT-2 on text with its model states sharded over ranks, and writes some: `gpt --help`.

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <zero/zero.hpp>
#if defined(ZERO_HAS_MPI)
#include <zero/comm/mpi_environment.hpp>
#endif
#if defined(ZERO_HAS_NCCL)
#include <zero/comm/nccl_start.hpp>
#endif

#include "gpt/blas.hpp"
#include "gpt/curve.hpp"
#include "gpt/options.hpp"
#include "gpt/report.hpp"
#include "gpt/text.hpp"
#include "gpt/train_stage.hpp"

namespace {

/// The stages to run, with their plans.
std::vector<gpt::RunResult> planned_runs(gpt::Options const& options) {
  std::vector<gpt::RunResult> runs;
  for (int stage = options.compare ? 0 : options.stage; stage <= (options.compare ? 3 : options.stage); ++stage) {
    runs.push_back(gpt::plan_stage(stage, options));
  }
  return runs;
}

/// Checks what a comparison must show. Equal losses need equal orders of addition: all stages have that with one micro-batch a step, else
/// those that add micro-batches before ranks (0, 1), and those that add ranks first (2, 3).
bool compare(std::vector<gpt::RunResult> const& runs, gpt::Options const& options) {
  bool good = true;
  auto const say = [&](char const* what, bool same) {
    std::printf("%s: %s\n", what, same ? "yes" : "NO");
    good = good && same;
  };
  std::printf("\n");
  if (runs.size() == 4 && options.device == gpt::Processor::cuda && options.ranks > 2) {
    std::printf("losses of the stages: not compared to the last bit, because NCCL chooses its orders of addition\n");
  } else if (runs.size() == 4) {
    bool const first = gpt::same_losses(runs[0], runs[1]);
    bool const second = gpt::same_losses(runs[2], runs[3]);
    if (options.micro_batches == 1) {
      say("losses of all steps equal at every stage, to the last bit", first && second && gpt::same_losses(runs[0], runs[2]));
    } else {
      say("losses of all steps equal at stages 0 and 1, to the last bit", first);
      say("losses of all steps equal at stages 2 and 3, to the last bit", second);
    }
  }
  bool planned = true;
  for (gpt::RunResult const& run : runs) planned = planned && gpt::as_planned(run, options);
  if (options.steps > 0) say("memory and bytes received as planned, to the byte", planned);
  return good;
}

int run(gpt::World const& world, gpt::Options const& options, bool reports) {
  gpt::use_one_blas_thread();
  std::vector<std::string> const data = options.data.empty() ? std::vector<std::string>{GPT_DEFAULT_DATA} : options.data;
  gpt::Text const text = gpt::load_text(data, {options.tokens16, options.config.vocabulary, options.config.context});
  auto runs = planned_runs(options);
  zero::ParameterLayout const layout = gpt::make_layout(options.config);
  std::printf(
      "%lld tokens of %lld files; %lld parameters in %d units; %d rank%s on %s, %s, %lld micro-batch%s of %lld tokens a rank and step\n",
      static_cast<long long>(text.training.size() + text.validation.size()), static_cast<long long>(text.files),
      static_cast<long long>(layout.elements()), static_cast<int>(layout.unit_count()), options.ranks, options.ranks == 1 ? "" : "s",
      options.device == gpt::Processor::cuda ? "CUDA" : "the host",
      options.precision == gpt::Numbers::bf16 ? "bf16 with fp32 masters" : "fp32", static_cast<long long>(options.micro_batches),
      options.micro_batches == 1 ? "" : "es", static_cast<long long>(options.config.rows()));
  gpt::print_plan(runs);

  int stage = options.compare ? 0 : options.stage;
  for (gpt::RunResult& result : runs) result = gpt::train_stage(stage++, world, options, text);
  if (!reports) return 0;

  gpt::print_counted(runs, options);
  gpt::print_outcome(runs, options);
  bool const good = compare(runs, options);
  if (!runs.back().text.empty())
    std::printf("\nWritten by the model%s:\n\n%s%s\n", options.compare ? " of the last run" : "", options.prompt.c_str(),
                runs.back().text.c_str());
  if (!options.curve.empty()) {
    std::vector<gpt::Curve> curves;
    for (gpt::RunResult const& result : runs) curves.push_back(result.curve);
    gpt::write_curves(options.curve, curves, "GPT-2, loss by step");
    std::printf("\nLoss curve: %s.csv and %s.svg\n", options.curve.c_str(), options.curve.c_str());
  }
  return good ? 0 : 1;
}

/// One rank of a job, of which only rank 0 prints.
[[maybe_unused]] int run_as_process(int rank, int ranks, gpt::World const& world, gpt::Options options) {
  bool const reports = rank == 0;
  if (!reports && std::freopen("/dev/null", "w", stdout) == nullptr) throw std::runtime_error("cannot open /dev/null");
  options.ranks = ranks;
  return run(world, options, reports);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    gpt::Options const options = gpt::parse_options({const_cast<char const* const*>(arguments + 1), static_cast<std::size_t>(count - 1)});
    if (options.help) {
      std::fputs(gpt::help_text().c_str(), stdout);
      return 0;
    }
#if defined(ZERO_HAS_MPI)
    if (options.communicator == gpt::Transport::mpi) {
      return zero::run_mpi(count, arguments, [&](zero::MpiCommunicator& communicator) {
        return run_as_process(communicator.rank(), communicator.size(), {.mpi = &communicator}, options);
      });
    }
#endif
#if defined(ZERO_HAS_NCCL)
    if (options.communicator == gpt::Transport::nccl) {
      zero::NcclCommunicator communicator = zero::nccl_from_environment();
      if (cudaSetDevice(communicator.device()) != cudaSuccess) throw std::runtime_error("cannot use this rank's GPU");
      int const code = run_as_process(communicator.rank(), communicator.size(), {.nccl = &communicator}, options);
      communicator.finalize();
      return code;
    }
#endif
    return run({}, options, true);
  } catch (gpt::OptionError const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 1;
  }
}
