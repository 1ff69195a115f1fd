// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The start and the end of an MPI program, also where it fails.

#include <zero/comm/mpi_error.hpp>

#include <chrono>
#include <concepts>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <type_traits>

#include <zero/comm/detail/failure_domain.hpp>
#include <zero/comm/detail/mpi_domain.hpp>
#include <zero/comm/mpi.hpp>
#include <zero/core/error.hpp>

namespace zero {

/// Initialises MPI for several threads, and ends it. One object, at the start of main.
///
/// The destructor calls MPI_Finalize. Where an exception destroys it, or a group of this process has failed, MPI cannot be ended in order:
/// peers may wait for this rank, and collectives may be under way. Then it gives the peers a second to hear of it and calls MPI_Abort,
/// so that the whole job ends, with exit status 1.
class MpiEnvironment {
public:
  /// @throws UsageError if MPI is initialised already.
  /// @throws Error if this MPI does not support several threads.
  MpiEnvironment(int& count, char**& arguments, SourceLocation where = SourceLocation::current())
      : exceptions_(std::uncaught_exceptions()) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) throw UsageError("MpiEnvironment: MPI is initialised already", where);
    int provided = MPI_THREAD_SINGLE;
    detail::check_mpi(MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread", -1);
    if (provided < MPI_THREAD_MULTIPLE) {
      MPI_Finalize();
      throw Error("MpiEnvironment: this MPI does not support MPI_THREAD_MULTIPLE");
    }
  }
  MpiEnvironment(MpiEnvironment const&) = delete;
  MpiEnvironment& operator=(MpiEnvironment const&) = delete;
  ~MpiEnvironment() {
    if (!detail::mpi_is_active()) return;
    // Notices of ranks that leave are received, not left in MPI; a peer that still works is waited for by MPI_Finalize.
    for (int i = 0; i < 1000 && std::uncaught_exceptions() == exceptions_ && !detail::end_domains(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::uncaught_exceptions() > exceptions_) {
      std::fputs("zero: an exception leaves the scope of the MpiEnvironment, which ends the job; catch it inside to see it\n", stderr);
      end_job();
    }
    if (detail::mpi_has_failed()) end_job();
    MPI_Finalize();
  }

  /// Ends the whole job with exit status 1, after a second in which the peers can say what they know.
  [[noreturn]] static void end_job() noexcept {
    std::fflush(nullptr);
    for (int i = 0; i < 100; ++i) {
      int found = 0;  // Asking for anything lets MPI send what it still has. But what did not end may have lost its buffers.
      if (!detail::mpi_may_still_write()) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::terminate();
  }

private:
  int exceptions_;
};

/// `return zero::run_mpi(argc, argv, [](zero::MpiCommunicator& world) { ... });` as the whole of main: initialises MPI, calls
/// `body(world)` with all processes of the job, ends MPI.
///
/// @return what `body` returns, 0 if it returns nothing.
/// An exception that leaves `body` is told to the peers and printed to the standard error stream, and the job ends with exit status 1.
template <class Body>
  requires std::invocable<Body const&, MpiCommunicator&>
int run_mpi(int count, char** arguments, Body const& body, MpiOptions options = {}) {
  std::string text;
  MpiEnvironment const environment(count, arguments);
  try {
    MpiCommunicator world(MPI_COMM_WORLD, options);
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Body const&, MpiCommunicator&>>) {
        body(world);
        return 0;
      } else {
        return body(world);
      }
    } catch (...) {
      world.abort(std::current_exception());
      throw;
    }
  } catch (...) {
    text = detail::text_of(std::current_exception());
  }
  std::fprintf(stderr, "%s\n", text.c_str());
  MpiEnvironment::end_job();
}

}  // namespace zero
