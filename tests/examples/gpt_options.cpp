// SPDX-License-Identifier: Apache-2.0
/// @file
/// The trainer's command line and learning rate.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gpt/options.hpp"

namespace {

gpt::Options parse(std::vector<char const*> const& arguments) { return gpt::parse_options(arguments); }

std::string error_of(std::vector<char const*> const& arguments) {
  try {
    gpt::parse_options(arguments);
  } catch (gpt::OptionError const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_CASE("no_arguments_give_the_defaults") {
  gpt::Options const options = parse({});
  CHECK(options.stage == 3);
  CHECK(options.ranks == 4);
  CHECK(options.data.empty());
  CHECK_FALSE(options.compare);
}

TEST_CASE("ranks_are_threads_unless_processes_are_asked_for_and_built_in") {
  CHECK(parse({}).communicator == gpt::Transport::threads);
  CHECK(parse({"--communicator", "threads"}).communicator == gpt::Transport::threads);
  CHECK(error_of({"--communicator", "pvm"}) == "--communicator: expected threads, mpi or nccl, not 'pvm'");
#if defined(ZERO_HAS_MPI)
  CHECK(parse({"--communicator", "mpi"}).communicator == gpt::Transport::mpi);
#else
  CHECK(error_of({"--communicator", "mpi"}) == "--communicator: this program was built without MPI; configure with -DZERO_MPI=ON");
#endif
}

TEST_CASE("ranks_compute_on_the_host_unless_gpus_are_asked_for_and_built_in") {
  CHECK(parse({}).device == gpt::Processor::host);
  CHECK(parse({"--device", "host"}).device == gpt::Processor::host);
  CHECK(error_of({"--device", "tpu"}) == "--device: expected host or cuda, not 'tpu'");
#if defined(ZERO_HAS_CUDA)
  CHECK(parse({"--device", "cuda"}).device == gpt::Processor::cuda);
#else
  CHECK(error_of({"--device", "cuda"}) == "--device: this program was built without CUDA; configure with -DZERO_CUDA=ON");
#endif
#if defined(ZERO_HAS_NCCL)
  CHECK(parse({"--device", "cuda", "--communicator", "nccl"}).communicator == gpt::Transport::nccl);
#else
  CHECK(error_of({"--communicator", "nccl"}) ==
        "--communicator: this program was built without NCCL; configure with -DZERO_CUDA=ON -DZERO_NCCL=ON");
#endif
}

TEST_CASE("communicator_and_device_must_go_together") {
  auto const ranks_of = [](gpt::Transport communicator, gpt::Processor device, int ranks, bool has_ranks) -> std::string {
    gpt::Options options;
    options.ranks = ranks;
    options.communicator = communicator;
    options.device = device;
    try {
      gpt::detail::check_ranks(options, has_ranks);
    } catch (gpt::OptionError const& error) {
      return error.what();
    }
    return std::to_string(options.ranks);
  };
  using enum gpt::Transport;
  using enum gpt::Processor;
  CHECK(ranks_of(threads, host, 4, true) == "4");
  CHECK(ranks_of(threads, cuda, 4, false) == "1");
  CHECK(ranks_of(threads, cuda, 1, true) == "1");
  CHECK(ranks_of(threads, cuda, 2, true) ==
        "--ranks: GPUs talk over NCCL, also between threads, and this program was built without it; configure with -DZERO_NCCL=ON");
  CHECK(ranks_of(mpi, host, 2, true) == "--ranks: with --communicator mpi it is mpirun that says how many");
  CHECK(ranks_of(nccl, cuda, 2, true) == "--ranks: with --communicator nccl it is torchrun, Slurm or mpirun that says how many");
  CHECK(ranks_of(nccl, cuda, 4, false) == "4");
  CHECK(ranks_of(nccl, host, 4, false) == "--communicator nccl: its ranks have a GPU each, so it needs --device cuda");
  CHECK(ranks_of(mpi, cuda, 4, false) ==
        "--communicator mpi: its ranks are on the host; with --device cuda, mpirun starts those of --communicator nccl too");
}

TEST_CASE("values_follow_their_name_or_an_equals_sign") {
  gpt::Options const options = parse({"--stage",
                                      "1",
                                      "--ranks=2",
                                      "--precision",
                                      "bf16",
                                      "--micro-batches",
                                      "3",
                                      "--layers",
                                      "5",
                                      "--heads",
                                      "2",
                                      "--channels=64",
                                      "--context",
                                      "32",
                                      "--batch",
                                      "8",
                                      "--steps",
                                      "7",
                                      "--learning-rate",
                                      "1e-2",
                                      "--warmup",
                                      "0",
                                      "--min-lr-fraction",
                                      "0.25",
                                      "--weight-decay",
                                      "0",
                                      "--clip",
                                      "0.5",
                                      "--seed",
                                      "9",
                                      "--validate-every",
                                      "4",
                                      "--generate",
                                      "0",
                                      "--curve",
                                      "out/loss",
                                      "--compare",
                                      "--prompt",
                                      "To be",
                                      "--temperature",
                                      "0.5",
                                      "--top-k",
                                      "3"});
  CHECK(options.stage == 1);
  CHECK(options.ranks == 2);
  CHECK(options.precision == gpt::Numbers::bf16);
  CHECK(options.micro_batches == 3);
  CHECK(options.config.layers == 5);
  CHECK(options.config.heads == 2);
  CHECK(options.config.channels == 64);
  CHECK(options.config.context == 32);
  CHECK(options.config.batch == 8);
  CHECK(options.steps == 7);
  CHECK(options.learning_rate == 1e-2);
  CHECK(options.warmup == 0);
  CHECK(options.min_lr_fraction == 0.25);
  CHECK(options.weight_decay == 0);
  CHECK(options.clip == 0.5);
  CHECK(options.seed == 9);
  CHECK(options.sampling.seed == 9);
  CHECK(options.validate_every == 4);
  CHECK(options.generate == 0);
  CHECK(options.curve == "out/loss");
  CHECK(options.compare);
  CHECK(options.prompt == "To be");
  CHECK(options.sampling.temperature == 0.5f);
  CHECK(options.sampling.top_k == 3);
}

TEST_CASE("data_takes_all_paths_up_to_the_next_option") {
  gpt::Options const options = parse({"--data", "a", "b", "--steps", "3", "--data=c"});
  CHECK(options.data == std::vector<std::string>{"a", "b", "c"});
  CHECK(options.steps == 3);
}

TEST_CASE("token_files_have_the_vocabulary_of_gpt2_unless_told") {
  CHECK(parse({"--tokens16", "--data", "a.bin"}).config.vocabulary == 50257);
  CHECK(parse({"--tokens16", "--data", "a.bin", "--vocabulary", "100"}).config.vocabulary == 100);
}

TEST_CASE("text_continues_the_start_of_a_sentence_unless_told") {
  CHECK(parse({}).prompt == "The ");
  CHECK(parse({"--prompt="}).prompt.empty());
  CHECK(parse({"--tokens16", "--data", "a.bin"}).prompt.empty());
}

TEST_CASE("mistakes_are_said_in_a_sentence") {
  CHECK(error_of({"--stages", "1"}) == "unknown option '--stages' (--help lists all)");
  CHECK(error_of({"stage"}) == "unknown option 'stage' (--help lists all)");
  CHECK(error_of({"--stage", "4"}) == "--stage: expected a whole number from 0 to 3, not '4'");
  CHECK(error_of({"--ranks", "0"}) == "--ranks: expected a whole number from 1 to 1024, not '0'");
  CHECK(error_of({"--ranks", "2x"}) == "--ranks: expected a whole number from 1 to 1024, not '2x'");
  CHECK(error_of({"--ranks="}) == "--ranks: expected a whole number from 1 to 1024, not ''");
  CHECK(error_of({"--ranks", "99999999999999999999"}) == "--ranks: expected a whole number from 1 to 1024, not '99999999999999999999'");
  CHECK(error_of({"--generate", "-1"}) == "--generate: expected a whole number of at least 0, not '-1'");
  CHECK(error_of({"--learning-rate", "nan"}) == "--learning-rate: expected a number from 0 to 1000, not 'nan'");
  CHECK(error_of({"--precision", "fp16"}) == "--precision: expected fp32 or bf16, not 'fp16'");
  CHECK(error_of({"--steps"}) == "--steps: a value is missing (N)");
  CHECK(error_of({"--steps", "--compare"}) == "--steps: a value is missing (N)");
  CHECK(error_of({"--data", "--compare"}) == "--data: a value is missing (PATH...)");
  CHECK(error_of({"--compare=yes"}) == "--compare takes no value");
  CHECK(error_of({"--vocabulary", "300"}) == "--vocabulary: only with --tokens16; text has 256 different bytes");
  CHECK(error_of({"--tokens16"}) == "--tokens16: the files are missing (--data)");
  CHECK(error_of({"--tokens16", "--data", "a.bin", "--prompt", "a"}) == "--prompt: not with --tokens16, whose ids are not letters");
  CHECK(error_of({"--channels", "10", "--heads", "4"}) == "10 channels cannot be divided into 4 heads of equal size");
}

TEST_CASE("help_names_every_option_and_comes_before_other_complaints") {
  CHECK(parse({"--help", "--channels", "10", "--heads", "4"}).help);
  std::string const text = gpt::help_text();
  for (auto const& entry : gpt::detail::option_table()) CHECK(text.find("  " + std::string(entry.name)) != std::string::npos);
}

TEST_CASE("learning_rate_rises_in_a_line_and_falls_along_half_a_cosine") {
  gpt::Options options;
  options.learning_rate = 2.0;
  options.warmup = 4;
  options.min_lr_fraction = 0.1;
  options.steps = 15;
  CHECK(gpt::learning_rate_at(options, 0) == 0.5);
  CHECK(gpt::learning_rate_at(options, 3) == 2.0);
  CHECK(gpt::learning_rate_at(options, 4) == 2.0);
  CHECK(gpt::learning_rate_at(options, 9) == doctest::Approx(1.1));
  CHECK(gpt::learning_rate_at(options, 14) == doctest::Approx(0.2));
  CHECK(gpt::learning_rate_at(options, 1000) == doctest::Approx(0.2));
  options.warmup = 0;
  CHECK(gpt::learning_rate_at(options, 0) == 2.0);
  options.steps = 1;
  CHECK(gpt::learning_rate_at(options, 0) == doctest::Approx(0.2));
}

}  // namespace
