// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What MPI refuses, as an exception with MPI's own text, and the one place where mpi.h is included.

#if !defined(ZERO_HAS_MPI)
#error "zero: this header needs MPI: link the CMake target zero::mpi (find_package(zero COMPONENTS mpi), or ZERO_MPI=ON)"
#endif

#include <mpi.h>

#include <string>

#include <zero/core/error.hpp>

#if MPI_VERSION < 3 || (MPI_VERSION == 3 && MPI_SUBVERSION < 1)
#error "zero: MPI 3.1 or newer is needed"
#endif

namespace zero {

/// An MPI function returned an error.
class MpiError : public CommunicationError {
public:
  /// @param call the function, @param code what it returned.
  explicit MpiError(char const* call, int code, RankName rank) : CommunicationError(text(call, code), rank), code_(code) {}

  /// MPI's error code.
  [[nodiscard]] int code() const noexcept { return code_; }

private:
  static std::string text(char const* call, int code) {
    char words[MPI_MAX_ERROR_STRING];
    int length = 0;
    std::string result = std::string(call) + " returned " + std::to_string(code);
    if (MPI_Error_string(code, words, &length) == MPI_SUCCESS) result += ": " + std::string(words, static_cast<std::size_t>(length));
    return result;
  }

  int code_;
};

namespace detail {

[[noreturn, gnu::noinline, gnu::cold]] inline void throw_mpi_error(int code, char const* call, RankName rank) {
  throw MpiError(call, code, rank);
}

/// Throws what an MPI function returned if it is an error.
inline void check_mpi(int code, char const* call, RankName rank) {
  if (code != MPI_SUCCESS) throw_mpi_error(code, call, rank);
}

/// True while MPI may be called: after its initialisation and before its end.
[[nodiscard]] inline bool mpi_is_active() noexcept {
  int initialized = 0;
  int finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

}  // namespace detail

}  // namespace zero
