// SPDX-License-Identifier: Apache-2.0
/// @file
/// Memory and communication of any model at any stage and number of ranks, before anything runs: `plan --help`.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "plan/figure.hpp"
#include "plan/models.hpp"
#include "plan/stages.hpp"

namespace {

// The model states of the ZeRO paper's figure 1, known to the compiler: 120, 31.4, 16.6 and 1.9 GB.
constexpr std::int64_t state_bytes(std::int64_t parameters, int ranks, std::size_t stage) {
  return plan::plans_of(plan::equal_units(parameters), ranks, plan::Numbers::bf16)[stage].model_state_bytes();
}
static_assert(state_bytes(7'500'000'000, 64, 0) / 100'000'000 == 1200);
static_assert(state_bytes(7'500'000'000, 64, 1) / 100'000'000 == 314);
static_assert(state_bytes(7'500'000'000, 64, 2) / 100'000'000 == 166);
static_assert(state_bytes(7'500'000'000, 64, 3) / 10'000'000 == 187);

struct Options {
  std::string model = "7.5B";
  std::string svg;
  std::int64_t parameters = 0;
  std::int64_t units = 32;
  std::int64_t memory = 0;
  int ranks = 64;
  plan::Numbers numbers = plan::Numbers::bf16;
  zero::Schedule schedule = {};
};

constexpr char const* help =
    "Plans the memory of a rank and the bytes it receives in a step, for AdamW at stages 0 to 3.\n\n"
    "  --model NAME         gpt2-124M, gpt2-350M, gpt2-774M, gpt2-1.5B, 7.5B, 128B or 1T (default 7.5B)\n"
    "  --parameters X       any number of parameters instead, in --units equal units (default 32)\n"
    "  --ranks N            default 64\n"
    "  --precision P        bf16 (with fp32 masters, the default) or fp32\n"
    "  --micro-batches M    passes a step (default 1)\n"
    "  --memory BYTES       also answers how many ranks of this memory each stage needs (80e9, for instance); activations are not part of it\n"
    "  --svg FILE           draws the figure\n\n"
    "Without arguments it also prints the model states of the ZeRO paper's table 1.\n";

double number(std::string_view name, std::string_view text, double least, double most) {
  std::string const copy(text);
  char* end = nullptr;
  double const value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != 0 || !(value >= least && value <= most) || value != std::floor(value)) {
    throw std::invalid_argument(std::string(name) + ": expected a whole number from " + std::to_string(static_cast<std::int64_t>(least)) +
                                " to " + std::to_string(static_cast<std::int64_t>(most)) + ", not '" + copy + "'");
  }
  return value;
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    std::string_view const name = arguments[i];
    auto const value = [&]() -> std::string_view {
      if (i + 1 >= count) throw std::invalid_argument(std::string(name) + ": a value is missing");
      return arguments[++i];
    };
    if (name == "--model") options.model = value();
    else if (name == "--parameters") options.parameters = static_cast<std::int64_t>(number(name, value(), 1, 1e15));
    else if (name == "--units") options.units = static_cast<std::int64_t>(number(name, value(), 1, 1e6));
    else if (name == "--ranks") options.ranks = static_cast<int>(number(name, value(), 1, 1 << 20));
    else if (name == "--micro-batches") options.schedule.micro_batches = static_cast<std::int64_t>(number(name, value(), 1, 1e6));
    else if (name == "--memory") options.memory = static_cast<std::int64_t>(number(name, value(), 1, 1e18));
    else if (name == "--svg") options.svg = value();
    else if (name == "--precision") {
      std::string_view const precision = value();
      if (precision != "bf16" && precision != "fp32") throw std::invalid_argument("--precision: expected bf16 or fp32");
      options.numbers = precision == "bf16" ? plan::Numbers::bf16 : plan::Numbers::fp32;
    } else throw std::invalid_argument("unknown argument '" + std::string(name) + "' (--help lists all)");
  }
  return options;
}

zero::ParameterLayout layout_of(Options const& options) {
  if (options.parameters > 0) return plan::equal_units(options.parameters, std::min(options.units, options.parameters));
  plan::Model const* const model = plan::find_model(options.model);
  if (model == nullptr) throw std::invalid_argument("--model: there is no '" + options.model + "' (--help lists the models)");
  return model->make();
}

void print_paper_table() {
  std::printf("Model states of a rank [GB = 10^9 bytes], bf16 with AdamW (Rajbhandari et al., arXiv 1910.02054, table 1)\n\n%6s", "");
  for (char const* name : {"7.5B", "128B", "1T"}) std::printf("   %-29s", name);
  std::printf("\n%6s", "ranks");
  for (int i = 0; i < 3; ++i) std::printf("%10s%10s%10s  ", "P_os", "P_os+g", "P_os+g+p");
  std::printf("\n");
  for (int const ranks : {1, 4, 16, 64, 256, 1024}) {
    std::printf("%6d", ranks);
    for (char const* name : {"7.5B", "128B", "1T"}) {
      auto const plans = plan::plans_of(plan::find_model(name)->make(), ranks, plan::Numbers::bf16);
      for (std::size_t stage = 1; stage < 4; ++stage) std::printf("%10.2f", static_cast<double>(plans[stage].model_state_bytes()) / 1e9);
      std::printf("  ");
    }
    std::printf("\n");
  }
  std::printf("\n");
}

int run(Options const& options) {
  zero::ParameterLayout const layout = layout_of(options);
  auto const plans = plan::plans_of(layout, options.ranks, options.numbers, options.schedule);
  std::string const title = (options.parameters > 0 ? std::to_string(options.parameters) + " parameters" : options.model) + " on " +
                            std::to_string(options.ranks) + " ranks, " +
                            (options.numbers == plan::Numbers::bf16 ? "bf16 with fp32 masters" : "fp32") + ", AdamW";
  std::printf("%s: memory of a rank\n\n%-24s%12s%12s%12s%12s\n", title.c_str(), "", "Stage0", "Stage1", "Stage2", "Stage3");
  auto const row = [&](char const* name, auto value) {
    std::printf("%-24s", name);
    for (zero::Plan const& plan : plans) std::printf("%12s", plan::bytes_text(static_cast<double>(value(plan))).c_str());
    std::printf("\n");
  };
  for (int i = 0; i < zero::purpose_count; ++i) {
    auto const purpose = static_cast<zero::Purpose>(i);
    row(zero::name(purpose), [purpose](zero::Plan const& plan) { return plan.bytes(purpose); });
  }
  row("in all", [](zero::Plan const& plan) { return plan.bytes(); });
  row("received in a step", [](zero::Plan const& plan) { return plan.received_bytes(); });
  std::printf("%-24s", "  in parameters");
  double const size = options.numbers == plan::Numbers::bf16 ? 2 : 4;
  for (zero::Plan const& plan : plans)
    std::printf("%8.3f Psi", static_cast<double>(plan.received_bytes()) / size / static_cast<double>(layout.elements()));
  std::printf("\n\n");

  if (options.memory > 0) {
    auto const ranks = plan::ranks_that_fit(layout, options.numbers, options.schedule, options.memory);
    std::printf("Ranks of %s that it needs, without activations:\n", plan::bytes_text(static_cast<double>(options.memory)).c_str());
    for (std::size_t stage = 0; stage < 4; ++stage) {
      if (ranks[stage] == 0) std::printf("  Stage%d: no number of ranks is enough\n", static_cast<int>(stage));
      else std::printf("  Stage%d: %d\n", static_cast<int>(stage), ranks[stage]);
    }
    std::printf("\n");
  }
  if (!options.svg.empty()) {
    std::ofstream file(options.svg);
    file << plan::figure_svg(plans, title);
    file.close();
    if (!file) throw std::runtime_error("cannot write " + options.svg);
    std::printf("Figure: %s\n", options.svg.c_str());
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count == 2 && std::string_view(arguments[1]) == "--help") {
      std::fputs(help, stdout);
      return 0;
    }
    if (count == 1) print_paper_table();
    return run(parse(count, arguments));
  } catch (std::invalid_argument const& error) {
    std::fprintf(stderr, "plan: %s\n", error.what());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "plan: %s\n", error.what());
    return 1;
  }
}
