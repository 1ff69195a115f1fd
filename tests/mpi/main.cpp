// SPDX-License-Identifier: Apache-2.0
/// @file
/// The main function of test programs that mpirun starts: every process runs all test cases.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <zero/comm/mpi_environment.hpp>

#include <cstdio>

#include "support/ranks.hpp"

namespace {

int size_of_job = 0;

}  // namespace

int zero::test::ranks() noexcept { return size_of_job; }

int main(int argc, char** argv) {
  zero::MpiEnvironment const environment(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size_of_job);
  doctest::Context context(argc, argv);
  if (rank > 0) context.setOption("minimal", true);  // Only what fails.
  int const result = context.run();
  if (result != 0) std::fprintf(stderr, "rank %d has failed checks\n", rank);
  return result;
}
