// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/mpi_error.hpp>

#include <doctest/doctest.h>

#include <string>

TEST_CASE("a function that returned an error becomes one with its name, code, rank and MPI's words") {
  zero::detail::check_mpi(MPI_SUCCESS, "MPI_Comm_rank", 0);
  MPI_Comm comm = MPI_COMM_NULL;
  REQUIRE(MPI_Comm_dup(MPI_COMM_SELF, &comm) == MPI_SUCCESS);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int value = 0;
  int const code = MPI_Send(&value, 1, MPI_INT, 5, 0, comm);  // There is no rank 5.
  MPI_Comm_free(&comm);
  REQUIRE(code != MPI_SUCCESS);
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  REQUIRE(MPI_Error_string(code, words, &length) == MPI_SUCCESS);
  try {
    zero::detail::check_mpi(code, "MPI_Send", 3);
    FAIL("nothing was thrown");
  } catch (zero::MpiError const& error) {
    std::string const text = error.what();
    CHECK(text.find("MPI_Send returned " + std::to_string(code) + ": " + words) != std::string::npos);
    CHECK(error.code() == code);
    CHECK(error.rank() == 3);
  }
}

TEST_CASE("MPI is active between its start and its end") { CHECK(zero::detail::mpi_is_active()); }
