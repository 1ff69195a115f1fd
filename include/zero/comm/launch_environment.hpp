// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What torchrun, Slurm and mpirun tell a process about its rank, read from the environment and checked.

#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include <zero/core/error.hpp>

namespace zero {

/// A process's place among those that a launcher started.
struct LaunchEnvironment {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;         ///< Its number among the processes of its host: which of the host's devices is its own.
  std::string address;        ///< "host:port" where rank 0 listens.
  char const* launcher = "";  ///< Which launcher's variables were read, for messages.
};

namespace detail {

/// Reads and checks variables; what is wrong is said with the variable's name.
template <class Lookup>
class LaunchVariables {
public:
  LaunchVariables(Lookup& lookup, SourceLocation where) noexcept : lookup_(lookup), where_(where) {}

  /// The value, empty if the variable is not set.
  [[nodiscard]] std::string_view text(char const* name) const {
    char const* const value = lookup_(name);
    return value != nullptr ? std::string_view(value) : std::string_view();
  }
  [[nodiscard]] bool has(char const* name) const { return !text(name).empty(); }

  [[nodiscard]] std::int64_t number(char const* name, char const* launcher, std::int64_t low, std::int64_t high) const {
    std::string_view const value = text(name);
    if (value.empty()) {
      throw UsageError(std::string(name) + " is not set, though this process seems to be started by " + launcher, where_);
    }
    std::int64_t result = 0;
    auto const [stop, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc{} || stop != value.data() + value.size() || result < low || result > high) {
      refuse(name, value, "a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return result;
  }

  [[noreturn]] void refuse(char const* name, std::string_view value, std::string const& expected) const {
    throw UsageError(std::string(name) + " is '" + std::string(value) + "', expected " + expected, where_);
  }
  [[noreturn]] void missing(std::string const& what) const { throw UsageError(what, where_); }

private:
  Lookup& lookup_;
  SourceLocation where_;
};

/// The first host of a Slurm list: "node[03-05,9]-ib,other" begins with node03-ib.
[[nodiscard]] inline std::string first_host(std::string_view list) {
  std::string host;
  bool in_brackets = false;
  bool first = true;  // of what the brackets hold
  for (char const c : list) {
    if (c == '[') {
      in_brackets = true;
      first = true;
    } else if (c == ']') {
      in_brackets = false;
    } else if (in_brackets) {
      first = first && c != '-' && c != ',';
      if (first) host += c;
    } else if (c == ',') {
      break;
    } else {
      host += c;
    }
  }
  return host;
}

inline constexpr std::int64_t most_ranks = 1 << 24;

/// Where rank 0 listens: MASTER_ADDR and MASTER_PORT, or what the launcher says instead (empty or 0: nothing).
template <class Lookup>
[[nodiscard]] std::string launch_address(LaunchVariables<Lookup> const& variables, char const* launcher, std::string host,
                                         std::int64_t port) {
  if (variables.has("NCCL_COMM_ID")) return std::string(variables.text("NCCL_COMM_ID"));
  if (variables.has("MASTER_ADDR")) host = variables.text("MASTER_ADDR");
  if (host.empty()) {
    variables.missing(std::string("MASTER_ADDR is not set and ") + launcher +
                      " does not say on which host rank 0 runs: set MASTER_ADDR to that host on all ranks");
  }
  if (variables.has("MASTER_PORT") || port == 0) {
    port = variables.number("MASTER_PORT", launcher, 1, 65534);
    // torchrun's own store listens at MASTER_PORT where the agent keeps it.
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++port;
  }
  bool const bare_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return (bare_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace detail

/// Reads what a launcher has set. The variable that says the rank decides which one it was, in this order:
///
/// | launcher | rank | number of ranks | rank on this host | where rank 0 listens |
/// |---|---|---|---|---|
/// | torchrun, or by hand | RANK | WORLD_SIZE | LOCAL_RANK | MASTER_ADDR, MASTER_PORT (the next one if torchrun's agent listens there) |
/// | Open MPI's mpirun | OMPI_COMM_WORLD_RANK | ..._SIZE | ..._LOCAL_RANK | MASTER_ADDR (not needed on one host), MASTER_PORT |
/// | MPICH's and Intel's mpiexec | PMI_RANK | PMI_SIZE | MPI_LOCALRANKID, or Slurm's | MASTER_ADDR, MASTER_PORT |
/// | Slurm's srun | SLURM_PROCID | SLURM_NTASKS | SLURM_LOCALID | MASTER_ADDR or the first host of the step, MASTER_PORT or one made from the job's number |
///
/// NCCL_COMM_ID, "host:port", overrides where rank 0 listens.
/// @param lookup  Called with a variable's name; returns its value or null.
/// @throws UsageError that names the variable that is missing or wrong.
template <class Lookup>
  requires std::convertible_to<std::invoke_result_t<Lookup&, char const*>, char const*>
[[nodiscard]] LaunchEnvironment read_launch_environment(Lookup lookup, SourceLocation where = SourceLocation::current()) {
  detail::LaunchVariables<Lookup> const variables(lookup, where);
  LaunchEnvironment result;
  auto const read = [&](char const* launcher, char const* rank, char const* ranks) {
    result.launcher = launcher;
    result.ranks = static_cast<int>(variables.number(ranks, launcher, 1, detail::most_ranks));
    result.rank = static_cast<int>(variables.number(rank, launcher, 0, result.ranks - 1));
  };
  auto const read_local = [&](char const* name) {
    result.local_rank = static_cast<int>(variables.number(name, result.launcher, 0, result.ranks - 1));
  };
  if (variables.has("RANK")) {
    read("torchrun", "RANK", "WORLD_SIZE");
    read_local("LOCAL_RANK");
    result.address = detail::launch_address(variables, result.launcher, "", 0);
  } else if (variables.has("OMPI_COMM_WORLD_RANK")) {
    read("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    read_local("OMPI_COMM_WORLD_LOCAL_RANK");
    bool const one_host = variables.text("OMPI_COMM_WORLD_LOCAL_SIZE") == variables.text("OMPI_COMM_WORLD_SIZE");
    result.address = detail::launch_address(variables, result.launcher, one_host ? "127.0.0.1" : "", 0);
  } else if (variables.has("PMI_RANK")) {
    read("mpiexec", "PMI_RANK", "PMI_SIZE");
    // Under srun both are set and agree; under mpiexec inside a Slurm job Slurm's rank is that of mpiexec's helper.
    bool const by_srun = variables.text("SLURM_PROCID") == variables.text("PMI_RANK") && variables.has("SLURM_LOCALID");
    read_local(variables.has("MPI_LOCALRANKID") || !by_srun ? "MPI_LOCALRANKID" : "SLURM_LOCALID");
    result.address = detail::launch_address(variables, result.launcher, "", 0);
  } else if (variables.has("SLURM_PROCID")) {
    read("Slurm", "SLURM_PROCID", variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
    read_local("SLURM_LOCALID");
    std::string const host = detail::first_host(variables.has("SLURM_STEP_NODELIST") ? variables.text("SLURM_STEP_NODELIST")
                                                                                     : variables.text("SLURM_JOB_NODELIST"));
    std::int64_t port = 0;
    if (variables.has("SLURM_JOB_ID")) {
      // Below the ports that systems hand out by themselves; steps of one job get different ones.
      std::int64_t const job = variables.number("SLURM_JOB_ID", result.launcher, 0, std::int64_t{1} << 60);
      std::int64_t const step =
          variables.has("SLURM_STEP_ID") ? variables.number("SLURM_STEP_ID", result.launcher, 0, std::int64_t{1} << 32) : 0;
      port = 20'000 + (job + step) % 12'000;
    }
    result.address = detail::launch_address(variables, result.launcher, host, port);
  } else {
    variables.missing(
        "no launcher has set this process's rank: RANK (torchrun), OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH, Intel MPI) and "
        "SLURM_PROCID (srun) are not set");
  }
  return result;
}

/// Reads the environment of this process.
[[nodiscard]] inline LaunchEnvironment read_launch_environment(SourceLocation where = SourceLocation::current()) {
  return read_launch_environment([](char const* name) -> char const* { return std::getenv(name); }, where);
}

}  // namespace zero
