// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/launch_environment.hpp>

#include <doctest/doctest.h>

#include <map>
#include <string>

namespace {

using Variables = std::map<std::string, std::string>;

zero::LaunchEnvironment read(Variables const& variables) {
  return zero::read_launch_environment([&](char const* name) -> char const* {
    auto const found = variables.find(name);
    return found != variables.end() ? found->second.c_str() : nullptr;
  });
}

/// What is said of variables that are not enough.
std::string complaint(Variables const& variables) {
  try {
    static_cast<void>(read(variables));
  } catch (zero::UsageError const& error) {
    return error.what();
  }
  return "";
}

bool says(Variables const& variables, std::string const& text) { return complaint(variables).find(text) != std::string::npos; }

Variables const torchrun{{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};
Variables const open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "head"},       {"MASTER_PORT", "1234"}};
Variables const slurm{{"SLURM_PROCID", "5"},      {"SLURM_NTASKS", "8"},  {"SLURM_LOCALID", "1"},
                      {"SLURM_JOB_ID", "123456"}, {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NODELIST", "gpu[007-010,12],other"}};

Variables with(Variables variables, std::string const& name, std::string const& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, std::string const& name) {
  variables.erase(name);
  return variables;
}

}  // namespace

TEST_CASE("field case 72: torchrun's variables") {
  zero::LaunchEnvironment const place = read(torchrun);
  CHECK(place.rank == 3);
  CHECK(place.ranks == 8);
  CHECK(place.local_rank == 1);
  CHECK(place.address == "head:29500");
  CHECK(std::string(place.launcher) == "torchrun");
}

TEST_CASE("the next port is taken where torchrun's agent listens at the first") {
  CHECK(read(with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "True")).address == "head:29501");
  CHECK(read(with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).address == "head:29500");
}

TEST_CASE("IPv6 addresses get brackets, NCCL_COMM_ID overrides") {
  CHECK(read(with(torchrun, "MASTER_ADDR", "fe80::1")).address == "[fe80::1]:29500");
  CHECK(read(with(torchrun, "MASTER_ADDR", "[fe80::1]")).address == "[fe80::1]:29500");
  CHECK(read(with(torchrun, "NCCL_COMM_ID", "here:1")).address == "here:1");
}

TEST_CASE("field case 72: Open MPI's variables") {
  zero::LaunchEnvironment const place = read(open_mpi);
  CHECK(place.rank == 1);
  CHECK(place.ranks == 4);
  CHECK(place.local_rank == 1);
  CHECK(place.address == "head:1234");
  CHECK(says(without(open_mpi, "MASTER_ADDR"), "MASTER_ADDR is not set and Open MPI does not say"));
  // On one host it is known where rank 0 is.
  CHECK(read(with(without(open_mpi, "MASTER_ADDR"), "OMPI_COMM_WORLD_LOCAL_SIZE", "4")).address == "127.0.0.1:1234");
}

TEST_CASE("field case 72: mpirun inside a Slurm job: Slurm's rank is that of mpirun's helper") {
  Variables both = open_mpi;
  both.insert(slurm.begin(), slurm.end());
  CHECK(read(both).rank == 1);
  Variables const hydra{{"PMI_RANK", "2"},      {"PMI_SIZE", "4"},       {"MPI_LOCALRANKID", "0"}, {"SLURM_PROCID", "0"},
                        {"SLURM_LOCALID", "1"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "1"}};
  CHECK(read(hydra).rank == 2);
  CHECK(read(hydra).local_rank == 0);
  CHECK(says(without(hydra, "MPI_LOCALRANKID"), "MPI_LOCALRANKID is not set"));
  CHECK(read(with(without(hydra, "MPI_LOCALRANKID"), "SLURM_PROCID", "2")).local_rank == 1);
}

TEST_CASE("field case 72: Slurm's variables: rank 0 is on the step's first host, the port is made from the job's number") {
  zero::LaunchEnvironment const place = read(slurm);
  CHECK(place.rank == 5);
  CHECK(place.ranks == 8);
  CHECK(place.local_rank == 1);
  CHECK(place.address == "gpu007:" + std::to_string(20'000 + 123'458 % 12'000));
  CHECK(read(with(slurm, "MASTER_ADDR", "head")).address.starts_with("head:"));
  CHECK(read(with(slurm, "MASTER_PORT", "77")).address == "gpu007:77");
  CHECK(read(with(slurm, "SLURM_STEP_NUM_TASKS", "6")).ranks == 6);
  CHECK(zero::detail::first_host("solo") == "solo");
  CHECK(zero::detail::first_host("a,b") == "a");
  CHECK(zero::detail::first_host("n[5]-ib,m") == "n5-ib");
  CHECK(zero::detail::first_host("n[05-7,9]-ib,m[1]") == "n05-ib");
  CHECK(zero::detail::first_host("rack[1-2]node[3-4]") == "rack1node3");
}

TEST_CASE("what is missing or wrong is named") {
  for (char const* name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}) {
    CAPTURE(name);
    CHECK(says(without(torchrun, name), std::string(name) + " is not set, though this process seems to be started by torchrun"));
  }
  CHECK(says(without(torchrun, "MASTER_ADDR"), "MASTER_ADDR is not set"));
  CHECK(says(without(torchrun, "RANK"), "no launcher has set"));
  CHECK(says({}, "RANK (torchrun), OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH, Intel MPI) and SLURM_PROCID (srun)"));
  CHECK(says(with(torchrun, "RANK", "8"), "RANK is '8', expected a number from 0 to 7"));
  CHECK(says(with(torchrun, "RANK", "-1"), "RANK is '-1'"));
  CHECK(says(with(torchrun, "WORLD_SIZE", "0"), "WORLD_SIZE is '0'"));
  CHECK(says(with(torchrun, "WORLD_SIZE", "8x"), "WORLD_SIZE is '8x'"));
  CHECK(says(with(torchrun, "MASTER_PORT", "65536"), "MASTER_PORT is '65536'"));
  CHECK(says(without(slurm, "SLURM_LOCALID"), "SLURM_LOCALID is not set, though this process seems to be started by Slurm"));
  CHECK(says(without(without(slurm, "SLURM_JOB_ID"), "SLURM_STEP_ID"), "MASTER_PORT is not set"));
  CHECK(says(without(slurm, "SLURM_STEP_NODELIST"), "MASTER_ADDR is not set and Slurm does not say"));
}
