// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The command line of the trainer, and the learning rate it asks for.

#include <charconv>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "gpt/config.hpp"
#include "gpt/sampling.hpp"

namespace gpt {

enum class Numbers { fp32, bf16 };

enum class Transport { threads, mpi, nccl };

enum class Processor { host, cuda };

struct Options {
  int stage = 3;
  int ranks = 4;
  Transport communicator = Transport::threads;
  Processor device = Processor::host;
  Numbers precision = Numbers::fp32;
  std::int64_t micro_batches = 1;
  std::vector<std::string> data;
  bool tokens16 = false;
  Config config;
  std::int64_t steps = 1200;
  double learning_rate = 1e-2;
  std::int64_t warmup = 60;
  double min_lr_fraction = 0.1;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::uint64_t seed = 1;
  std::int64_t validate_every = 200;
  std::int64_t generate = 400;
  std::string prompt = "The ";  // empty with token files
  SamplingOptions sampling;
  std::string curve;
  bool compare = false;
  bool help = false;
  bool quiet = false;  // no progress on the terminal
};

/// A command line that cannot be followed; the text says what is wrong with which argument.
class OptionError : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

namespace detail {

template <class T>
void set_number(T& to, std::string_view name, std::string_view text, double least, double most) {
  T value{};
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool const inside =
      error == std::errc{} && end == text.data() + text.size() && static_cast<double>(value) >= least && static_cast<double>(value) <= most;
  if (!inside) {
    auto const short_text = [](double number) {
      char buffer[32];
      return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr);
    };
    std::string const kind = std::is_integral_v<T> ? "a whole number" : "a number";
    std::string const range = most < 1e15 ? " from " + short_text(least) + " to " + short_text(most) : " of at least " + short_text(least);
    throw OptionError(std::string(name) + ": expected " + kind + range + ", not '" + std::string(text) + "'");
  }
  to = value;
}

inline void set_communicator(Options& options, std::string_view name, std::string_view text) {
  if (text != "threads" && text != "mpi" && text != "nccl")
    throw OptionError(std::string(name) + ": expected threads, mpi or nccl, not '" + std::string(text) + "'");
#if !defined(ZERO_HAS_MPI)
  if (text == "mpi") throw OptionError(std::string(name) + ": this program was built without MPI; configure with -DZERO_MPI=ON");
#endif
#if !defined(ZERO_HAS_NCCL)
  if (text == "nccl")
    throw OptionError(std::string(name) + ": this program was built without NCCL; configure with -DZERO_CUDA=ON -DZERO_NCCL=ON");
#endif
  options.communicator = text == "mpi" ? Transport::mpi : text == "nccl" ? Transport::nccl : Transport::threads;
}

inline void set_device(Options& options, std::string_view name, std::string_view text) {
  if (text != "host" && text != "cuda") throw OptionError(std::string(name) + ": expected host or cuda, not '" + std::string(text) + "'");
#if !defined(ZERO_HAS_CUDA)
  if (text == "cuda") throw OptionError(std::string(name) + ": this program was built without CUDA; configure with -DZERO_CUDA=ON");
#endif
  options.device = text == "cuda" ? Processor::cuda : Processor::host;
}

/// Which communicator goes with which device, and who says how many ranks there are.
inline void check_ranks(Options& options, bool has_ranks) {
  if (options.communicator == Transport::nccl && options.device == Processor::host)
    throw OptionError("--communicator nccl: its ranks have a GPU each, so it needs --device cuda");
  if (options.communicator == Transport::mpi && options.device == Processor::cuda)
    throw OptionError("--communicator mpi: its ranks are on the host; with --device cuda, mpirun starts those of --communicator nccl too");
  if (has_ranks && options.communicator == Transport::mpi)
    throw OptionError("--ranks: with --communicator mpi it is mpirun that says how many");
  if (has_ranks && options.communicator == Transport::nccl)
    throw OptionError("--ranks: with --communicator nccl it is torchrun, Slurm or mpirun that says how many");
  if (options.communicator == Transport::threads && options.device == Processor::cuda) {
    if (!has_ranks) options.ranks = 1;
#if !defined(ZERO_HAS_NCCL)
    if (options.ranks != 1) {
      throw OptionError(
          "--ranks: GPUs talk over NCCL, also between threads, and this program was built without it; configure with -DZERO_NCCL=ON");
    }
#endif
  }
}

struct OptionEntry {
  std::string_view name;
  std::string_view value;  // empty: a switch
  std::string_view help;
  void (*set)(Options&, std::string_view name, std::string_view text);
};

inline constexpr double no_limit = 9e18;

inline std::span<OptionEntry const> option_table() {
  using S = std::string_view;
  static constexpr OptionEntry table[] = {
      {"--stage", "0|1|2|3", "what is sharded: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters",
       [](Options& o, S n, S t) { set_number(o.stage, n, t, 0, 3); }},
      {"--ranks", "N", "ranks, threads of this process", [](Options& o, S n, S t) { set_number(o.ranks, n, t, 1, 1024); }},
      {"--communicator", "threads|mpi|nccl",
       "what the ranks are; mpi, nccl: processes, which mpirun has started, for nccl also torchrun or Slurm", set_communicator},
      {"--device", "host|cuda", "where the ranks compute; cuda: a GPU a rank", set_device},
      {"--precision", "fp32|bf16", "element type of parameters and gradients; masters are fp32",
       [](Options& o, S n, S t) {
         if (t != "fp32" && t != "bf16") throw OptionError(std::string(n) + ": expected fp32 or bf16, not '" + std::string(t) + "'");
         o.precision = t == "bf16" ? Numbers::bf16 : Numbers::fp32;
       }},
      {"--compare", "", "trains once at every stage and compares the results", [](Options& o, S, S) { o.compare = true; }},
      {"--data", "PATH...", "text files or folders; the default is this project's own text", nullptr},
      {"--tokens16", "", "files hold 16-bit token ids (.bin) instead of text", [](Options& o, S, S) { o.tokens16 = true; }},
      {"--vocabulary", "N", "number of token ids, with --tokens16",
       [](Options& o, S n, S t) { set_number(o.config.vocabulary, n, t, 1, 65536); }},
      {"--layers", "N", "transformer blocks", [](Options& o, S n, S t) { set_number(o.config.layers, n, t, 1, 1e4); }},
      {"--heads", "N", "attention heads of a block", [](Options& o, S n, S t) { set_number(o.config.heads, n, t, 1, 1e4); }},
      {"--channels", "N", "width of the model", [](Options& o, S n, S t) { set_number(o.config.channels, n, t, 1, 1e6); }},
      {"--context", "N", "tokens the model sees at once", [](Options& o, S n, S t) { set_number(o.config.context, n, t, 1, 1e6); }},
      {"--batch", "N", "sequences in a micro-batch of one rank", [](Options& o, S n, S t) { set_number(o.config.batch, n, t, 1, 1e6); }},
      {"--micro-batches", "N", "micro-batches a rank adds up for one step",
       [](Options& o, S n, S t) { set_number(o.micro_batches, n, t, 1, 1e6); }},
      {"--steps", "N", "optimizer steps", [](Options& o, S n, S t) { set_number(o.steps, n, t, 0, 1e12); }},
      {"--learning-rate", "X", "the highest, after the warm-up", [](Options& o, S n, S t) { set_number(o.learning_rate, n, t, 0, 1e3); }},
      {"--warmup", "N", "steps in which it rises from zero", [](Options& o, S n, S t) { set_number(o.warmup, n, t, 0, 1e12); }},
      {"--min-lr-fraction", "X", "where the cosine ends, as a part of the highest",
       [](Options& o, S n, S t) { set_number(o.min_lr_fraction, n, t, 0, 1); }},
      {"--weight-decay", "X", "AdamW's", [](Options& o, S n, S t) { set_number(o.weight_decay, n, t, 0, 1e3); }},
      {"--clip", "X", "largest norm of the gradient; 0: no limit", [](Options& o, S n, S t) { set_number(o.clip, n, t, 0, 1e30); }},
      {"--seed", "N", "of initial weights, batches and generated text", [](Options& o, S n, S t) { set_number(o.seed, n, t, 0, 1.8e19); }},
      {"--validate-every", "N", "steps between validations; 0: only at the end",
       [](Options& o, S n, S t) { set_number(o.validate_every, n, t, 0, no_limit); }},
      {"--generate", "N", "tokens of text to write at the end", [](Options& o, S n, S t) { set_number(o.generate, n, t, 0, no_limit); }},
      {"--prompt", "TEXT", "what the text shall continue; not with --tokens16", [](Options& o, S, S t) { o.prompt = std::string(t); }},
      {"--temperature", "X", "of sampling; 0: always the likeliest",
       [](Options& o, S n, S t) { set_number(o.sampling.temperature, n, t, 0, 100); }},
      {"--top-k", "N", "sample among the N likeliest; 0: among all",
       [](Options& o, S n, S t) { set_number(o.sampling.top_k, n, t, 0, no_limit); }},
      {"--curve", "PREFIX", "writes the loss curve to PREFIX.csv and PREFIX.svg", [](Options& o, S, S t) { o.curve = std::string(t); }},
      {"--quiet", "", "no lines about progress", [](Options& o, S, S) { o.quiet = true; }},
      {"--help", "", "this text", [](Options& o, S, S) { o.help = true; }},
  };
  return table;
}

inline OptionEntry const& find_option(std::string_view name) {
  for (OptionEntry const& entry : option_table()) {
    if (entry.name == name) return entry;
  }
  throw OptionError("unknown option '" + std::string(name) + "' (--help lists all)");
}

}  // namespace detail

/// The text of --help, with the defaults.
inline std::string help_text() {
  std::string text =
      "Trains a GPT-2 on text and writes some.\n\n"
      "usage: gpt [options]\n\n";
  for (auto const& entry : detail::option_table()) {
    std::string left = "  " + std::string(entry.name) + (entry.value.empty() ? "" : " ") + std::string(entry.value);
    left.resize(left.size() < 27 ? 27 : left.size() + 1, ' ');
    text += left + std::string(entry.help) + "\n";
  }
  Options const defaults;
  Config const& c = defaults.config;
  auto const number = [](std::int64_t value) { return std::to_string(value); };
  text += "\nDefaults: stage " + number(defaults.stage) + ", " + number(defaults.ranks) + " ranks on the host, fp32, " + number(c.layers) +
          " layers, " + number(c.heads) + " heads, " + number(c.channels) + " channels, context " + number(c.context) + ", batch " +
          number(c.batch) + ", " + number(defaults.steps) + " steps, prompt \"" + defaults.prompt + "\".\n";
  return text;
}

/// @param arguments without the program's name. @throws OptionError in one sentence
inline Options parse_options(std::span<char const* const> arguments) {
  Options options;
  bool has_vocabulary = false;
  bool has_prompt = false;
  bool has_ranks = false;
  for (std::size_t i = 0; i < arguments.size();) {
    std::string_view name = arguments[i++];
    std::string_view inline_value;
    bool const has_inline = name.starts_with("--") && name.find('=') != std::string_view::npos;
    if (has_inline) {
      inline_value = name.substr(name.find('=') + 1);
      name = name.substr(0, name.find('='));
    }
    detail::OptionEntry const& entry = detail::find_option(name);
    auto const is_value = [&](std::size_t at) { return at < arguments.size() && !std::string_view(arguments[at]).starts_with("--"); };
    if (entry.value.empty()) {
      if (has_inline) throw OptionError(std::string(name) + " takes no value");
      entry.set(options, name, {});
      continue;
    }
    if (!has_inline && !is_value(i)) throw OptionError(std::string(name) + ": a value is missing (" + std::string(entry.value) + ")");
    std::string_view const value = has_inline ? inline_value : std::string_view(arguments[i++]);
    if (entry.set != nullptr) {
      entry.set(options, name, value);
    } else {  // --data: everything up to the next option
      options.data.emplace_back(value);
      while (is_value(i)) options.data.emplace_back(arguments[i++]);
    }
    has_vocabulary = has_vocabulary || name == "--vocabulary";
    has_prompt = has_prompt || name == "--prompt";
    has_ranks = has_ranks || name == "--ranks";
  }
  if (options.help) return options;
  detail::check_ranks(options, has_ranks);
  if (has_vocabulary && !options.tokens16) throw OptionError("--vocabulary: only with --tokens16; text has 256 different bytes");
  if (options.tokens16 && options.data.empty()) throw OptionError("--tokens16: the files are missing (--data)");
  if (options.tokens16 && has_prompt) throw OptionError("--prompt: not with --tokens16, whose ids are not letters");
  if (options.tokens16) options.prompt.clear();
  if (options.tokens16 && !has_vocabulary) options.config.vocabulary = 50257;  // GPT-2's
  try {
    check(options.config);
  } catch (std::invalid_argument const& error) {
    throw OptionError(error.what());
  }
  options.sampling.seed = options.seed;
  return options;
}

/// Rises in a line during the warm-up, then falls along half a cosine to `min_lr_fraction` of the highest at the last step.
/// @param step counted from 0
inline double learning_rate_at(Options const& options, std::int64_t step) {
  if (step < options.warmup) return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  std::int64_t const falling = options.steps - 1 - options.warmup;
  double const progress = falling <= 0 ? 1.0 : std::fmin(1.0, static_cast<double>(step - options.warmup) / static_cast<double>(falling));
  double const share = options.min_lr_fraction + (1 - options.min_lr_fraction) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options.learning_rate * share;
}

}  // namespace gpt
