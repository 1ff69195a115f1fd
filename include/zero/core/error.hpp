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

/// A rank as errors name it. Groups made by `split` number their ranks anew; the number in the first group, from which they were all split,
/// says which thread or process it is.
struct RankName {
  int number = -1;          ///< In the group on which the call was made; -1: no rank, or none of that group.
  int in_first_group = -1;  ///< In the first group; the same as `number` where who throws knows no other.

  constexpr RankName() noexcept = default;
  /// A rank of a first group, or of one that keeps no record of where it was split from.
  constexpr RankName(int rank) noexcept : number(rank), in_first_group(rank) {}
  constexpr RankName(int rank, int first_group_rank) noexcept : number(rank), in_first_group(first_group_rank) {}

  /// "rank 1", "rank 1 (rank 5 of the first group)" where the numbers differ, empty for no rank.
  [[nodiscard]] std::string text() const {
    std::string const first = "rank " + std::to_string(in_first_group);
    if (number == in_first_group) return number < 0 ? "" : first;
    return number < 0 ? first + " of the first group" : "rank " + std::to_string(number) + " (" + first + " of the first group)";
  }
};

/// Base of everything the library throws.
///
/// Ranks in the text are those of the group on which the call was made, as `rank()` is; where the communicator knows that the number in the
/// first group is another one, the text says it too. An error that is passed on from another group keeps the text that it has there.
class Error : public std::runtime_error {
public:
  explicit Error(std::string const& what, RankName rank = {}) : std::runtime_error(text(what, rank)), rank_(rank) {}

  /// The rank on which the error is reported, in the group on which the call was made; -1 if it has nothing to do with ranks.
  [[nodiscard]] int rank() const noexcept { return rank_.number; }
  /// The same rank in the first group, as far as who throws knows it: `rank()` otherwise.
  [[nodiscard]] int rank_in_first_group() const noexcept { return rank_.in_first_group; }

private:
  static std::string text(std::string const& what, RankName rank) {
    std::string const name = rank.text();
    return name.empty() ? "zero: " + what : "zero: " + name + ": " + what;
  }

  RankName rank_;
};

/// The caller's mistake: a call that breaks a documented precondition. Nothing was changed when it is thrown.
class UsageError : public Error {
public:
  explicit UsageError(std::string const& what, SourceLocation where = SourceLocation::current(), RankName rank = {})
      : Error(what + " (called at " + where.file + ":" + std::to_string(where.line) + ")", rank), where_(where) {}

  /// The file and line of the call.
  [[nodiscard]] SourceLocation where() const noexcept { return where_; }

private:
  SourceLocation where_;
};

/// A mistake in the description of the parameters: a name given twice, a negative dimension, an unknown unit.
class LayoutError : public UsageError {
public:
  explicit LayoutError(std::string const& what, SourceLocation where = SourceLocation::current(), RankName rank = {})
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
  explicit PeerError(std::string const& what, RankName rank, RankName peer) : CommunicationError(what, rank), peer_(peer) {}

  /// The rank that failed first, in the group on which the call was made; -1 if it is not in that group, or unknown.
  [[nodiscard]] int peer() const noexcept { return peer_.number; }
  /// The same rank in the first group; -1 if unknown.
  [[nodiscard]] int peer_in_first_group() const noexcept { return peer_.in_first_group; }

private:
  RankName peer_;
};

/// A peer did not arrive at a collective before the deadline.
class DeadlineError : public CommunicationError {
public:
  using CommunicationError::CommunicationError;
};

}  // namespace zero
