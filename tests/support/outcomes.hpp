// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Runs of ranks that may fail: what each of them threw, and what the run throws.

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include <zero/comm/run_ranks.hpp>

namespace zero::test {

/// Null where nothing was thrown.
struct Outcomes {
  std::vector<std::exception_ptr> rank;
  std::exception_ptr run;  ///< by run_ranks
};

/// run_ranks, with its exception and those of the ranks caught.
template <class Body>
[[nodiscard]] Outcomes outcomes_of(int ranks, Body const& body, RunOptions const& options = {}) {
  Outcomes outcomes{std::vector<std::exception_ptr>(static_cast<std::size_t>(ranks)), nullptr};
  try {
    run_ranks(
        ranks,
        [&](ThreadCommunicator& comm) {
          try {
            body(comm);
          } catch (...) {
            outcomes.rank[static_cast<std::size_t>(comm.rank())] = std::current_exception();
            throw;
          }
        },
        options);
  } catch (...) {
    outcomes.run = std::current_exception();
  }
  return outcomes;
}

template <class E>
[[nodiscard]] bool is(std::exception_ptr const& error) {
  if (error == nullptr) return false;
  try {
    std::rethrow_exception(error);
  } catch (E const&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// "" where nothing was thrown.
[[nodiscard]] inline std::string what_of(std::exception_ptr const& error) {
  if (error == nullptr) return "";
  try {
    std::rethrow_exception(error);
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "not a std::exception";
  }
}

}  // namespace zero::test
