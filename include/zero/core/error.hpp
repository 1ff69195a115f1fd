// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The errors the library throws: the caller's mistakes, with the caller's file and line, and the world's failures, with the rank they hit.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace zero {

/// Where in the user's code a call was made. Use as a defaulted last parameter: `SourceLocation where = SourceLocation::current()`.
struct SourceLocation {
  char const* file = "";
  int line = 0;

  static constexpr SourceLocation current(char const* file = __builtin_FILE(), int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// Base of everything the library throws. `rank()` is the rank that reports, or -1 where no rank is involved.
class Error : public std::runtime_error {
public:
  explicit Error(std::string const& what, int rank = -1) : std::runtime_error(text(what, rank)), rank_(rank) {}

  /// The rank on which the error is reported, -1 if it has nothing to do with ranks.
  [[nodiscard]] int rank() const noexcept { return rank_; }

private:
  static std::string text(std::string const& what, int rank) {
    return rank < 0 ? "zero: " + what : "zero: rank " + std::to_string(rank) + ": " + what;
  }

  int rank_;
};

/// The caller's mistake: a call that breaks a documented precondition. Nothing was changed when it is thrown.
class UsageError : public Error {
public:
  explicit UsageError(std::string const& what, SourceLocation where = SourceLocation::current(), int rank = -1)
      : Error(what + " (called at " + where.file + ":" + std::to_string(where.line) + ")", rank), where_(where) {}

  /// The file and line of the call.
  [[nodiscard]] SourceLocation where() const noexcept { return where_; }

private:
  SourceLocation where_;
};

/// A mistake in the description of the parameters: a name given twice, a negative dimension, an unknown unit.
class LayoutError : public UsageError {
public:
  explicit LayoutError(std::string const& what, SourceLocation where = SourceLocation::current(), int rank = -1)
      : UsageError(what, where, rank) {}
};

/// Memory could not be had: the system refused, a limit was reached, or a test made the call fail.
class MemoryError : public Error {
public:
  explicit MemoryError(std::string const& what, std::int64_t bytes) : Error(what), bytes_(bytes) {}

  /// How many bytes were asked for.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

private:
  std::int64_t bytes_;
};

/// A call of a device's programming interface failed, or there is no such device. The text has the call, the error's name and meaning, and
/// where the call was made.
class DeviceError : public Error {
public:
  /// @param call   The function of the interface, e.g. "cudaMalloc".
  /// @param error  The error's name and its meaning in words.
  /// @param code   The error's number in that interface.
  DeviceError(std::string const& call, std::string const& error, int code, SourceLocation where)
      : Error(call + " failed with " + error + " (called at " + where.file + ":" + std::to_string(where.line) + ")"),
        code_(code),
        where_(where) {}

  /// The error's number in the device's interface.
  [[nodiscard]] int code() const noexcept { return code_; }
  /// The file and line of the call.
  [[nodiscard]] SourceLocation where() const noexcept { return where_; }

private:
  int code_;
  SourceLocation where_;
};

/// Base of what goes wrong between ranks.
class CommunicationError : public Error {
public:
  using Error::Error;
};

/// Ranks called different things: another collective, count, element type, label, or another layout, stage or option at the start.
class MismatchError : public CommunicationError {
public:
  using CommunicationError::CommunicationError;
};

/// A peer threw, returned early or died. `peer()` is its rank; the text holds the peer's own message where there is one.
class PeerError : public CommunicationError {
public:
  explicit PeerError(std::string const& what, int rank, int peer) : CommunicationError(what, rank), peer_(peer) {}

  /// The rank that failed first, -1 if unknown.
  [[nodiscard]] int peer() const noexcept { return peer_; }

private:
  int peer_;
};

/// A peer did not arrive at a collective before the deadline.
class DeadlineError : public CommunicationError {
public:
  using CommunicationError::CommunicationError;
};

}  // namespace zero
