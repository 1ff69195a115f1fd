// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What the programs that fail say of an exception, for the scripts that judge them.

#include <cstdio>
#include <exception>
#include <string>

#include <zero/core/error.hpp>

namespace zero::test {

/// Says which exception is being handled, on one line.
inline void report(int rank) {
  std::string type = "another exception";
  std::string text;
  try {
    throw;
  } catch (PeerError const& error) {
    type = "PeerError about " + std::to_string(error.peer());
    text = error.what();
  } catch (DeadlineError const& error) {
    type = "DeadlineError";
    text = error.what();
  } catch (MismatchError const& error) {
    type = "MismatchError";
    text = error.what();
  } catch (CommunicationError const& error) {
    type = "CommunicationError";
    text = error.what();
  } catch (UsageError const& error) {
    type = "UsageError";
    text = error.what();
  } catch (std::exception const& error) {
    text = error.what();
  }
  std::printf("rank %d got %s: %s\n", rank, type.c_str(), text.c_str());
  std::fflush(stdout);
}

}  // namespace zero::test
