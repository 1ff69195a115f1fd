// SPDX-License-Identifier: Apache-2.0
/// @file
/// The main function of test programs that mpirun starts: every process runs all test cases.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <zero/comm/mpi_environment.hpp>

#include <cstdio>
#include <cstdlib>

#include "support/ranks.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace {

int size_of_job = 0;

}  // namespace

int zero::test::ranks() noexcept { return size_of_job; }

namespace {

/// What an MPI library allocates at its start it may keep, and what its plugins leave behind cannot be told from leaks of ours once they are
/// unloaded. So the leak sanitizer does not see the start, and is asked before the end.
class LeakCheck {
public:
#if defined(__SANITIZE_ADDRESS__)
  LeakCheck() { __lsan_disable(); }
  void begin() { __lsan_enable(); }
  [[nodiscard]] bool found() { return __lsan_do_recoverable_leak_check() != 0; }
#else
  void begin() {}
  [[nodiscard]] bool found() { return false; }
#endif
};

}  // namespace

int main(int argc, char** argv) {
  LeakCheck leaks;
  zero::MpiEnvironment const environment(argc, argv);
  leaks.begin();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size_of_job);
  doctest::Context context(argc, argv);
  if (rank > 0) context.setOption("minimal", true);  // Only what fails.
  int result = context.run();
  if (leaks.found()) result = 1;
  if (result != 0) std::fprintf(stderr, "rank %d has failed checks\n", rank);
  if (std::getenv("ZERO_TEST_WITHOUT_FINALIZE") != nullptr) {  // See check_two_hosts.
    MPI_Barrier(MPI_COMM_WORLD);
    std::fflush(nullptr);
    std::_Exit(result);
  }
  return result;
}
