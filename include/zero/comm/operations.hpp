// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// Collectives as objects: what is moved, from where to where, and a label that says for which model state.

#include <cstdint>

#include <zero/core/element.hpp>

namespace zero {

/// What a collective is for: counters keep these apart, messages name them.
enum class Subject : std::int32_t { user, parameters, gradients, optimizer_states, control };

/// How many subjects there are.
inline constexpr int subject_count = 5;

/// The subject in words.
[[nodiscard]] constexpr char const* name(Subject subject) noexcept {
  constexpr char const* names[subject_count] = {"user", "parameters", "gradients", "optimizer states", "control"};
  auto const index = static_cast<std::int32_t>(subject);
  return index >= 0 && index < subject_count ? names[index] : "unknown";
}

/// Says which call this is: the model state it serves and an index, for the library's own calls the segment's; -1 means none.
/// Ranks must agree on it, so it must be made from what is equal on all ranks.
struct Label {
  Subject subject = Subject::user;
  std::int32_t index = -1;

  friend constexpr bool operator==(Label const&, Label const&) = default;
};

/// The kinds of collectives, for counters, fingerprints and messages.
enum class OperationKind : std::int32_t { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, barrier, announce, split };

/// The kind in words.
[[nodiscard]] constexpr char const* name(OperationKind kind) noexcept {
  constexpr char const* names[] = {"all-gather", "reduce-scatter", "all-reduce",   "broadcast",
                                   "all-to-all", "barrier",        "announcement", "split"};
  auto const index = static_cast<std::int32_t>(kind);
  return index >= 0 && index < 8 ? names[index] : "unknown";
}

/// Reduction: the sum. 16-bit elements are added in fp32 and rounded once; integers wrap around.
/// Which order the ranks are added in is a property of the communicator.
struct Sum {
  static constexpr char const* name = "sum";
  static constexpr std::int32_t id = 1;
};

/// Reduction: the largest value. A NaN on any rank makes the result NaN, so that it cannot hide behind a larger number.
struct Max {
  static constexpr char const* name = "max";
  static constexpr std::int32_t id = 2;
};

namespace detail {

/// A part of a vector: elements [begin, end).
struct WorkRange {
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] constexpr std::int64_t size() const noexcept { return end - begin; }
};

/// The part of `count` elements that `rank` works on when a collective is split over the ranks. Cuts lie at multiples of 64 bytes, so that
/// two ranks never write to one cache line of an aligned buffer; the last ranks may have less, or nothing.
[[nodiscard]] constexpr WorkRange work_range(std::int64_t count, std::int64_t element_bytes, int ranks, int rank) noexcept {
  std::int64_t const unit = element_bytes < 64 ? 64 / element_bytes : 1;
  std::int64_t const even = count / ranks + (count % ranks != 0 ? 1 : 0);
  std::int64_t const part = (even + unit - 1) / unit * unit;
  std::int64_t const begin = part * rank < count ? part * rank : count;
  std::int64_t const end = count - begin < part ? count : begin + part;
  return {begin, end};
}

}  // namespace detail

/// Each rank contributes `count` elements and receives those of all ranks, in rank order.
///
/// `receive` holds size() * count elements. In place: `send == receive + rank * count`. Otherwise the two must not overlap.
/// @par Communication
/// (N - 1) * count elements received per rank.
template <Element T>
struct AllGather {
  using element = T;
  static constexpr OperationKind kind = OperationKind::all_gather;
  static constexpr char const* name = "all-gather";

  T const* send = nullptr;
  T* receive = nullptr;
  std::int64_t count = 0;  ///< Elements per rank.
  Label label = {};

  /// Bytes that `rank` receives from its peers.
  [[nodiscard]] constexpr std::int64_t received_bytes(int ranks, int) const noexcept {
    return (ranks - 1) * count * static_cast<std::int64_t>(sizeof(T));
  }
};

/// Reduces size() * count elements over the ranks; rank r receives elements [r * count, (r + 1) * count) of the result.
///
/// `send` holds size() * count elements. In place: `receive == send + rank * count`. Otherwise the two must not overlap.
/// Afterwards an in-place buffer holds the result in the rank's own part and the rank's own addend elsewhere.
/// @par Communication
/// (N - 1) * count elements received per rank.
template <Element T, class Op = Sum>
struct ReduceScatter {
  using element = T;
  using reduction = Op;
  static constexpr OperationKind kind = OperationKind::reduce_scatter;
  static constexpr char const* name = "reduce-scatter";

  T const* send = nullptr;
  T* receive = nullptr;
  std::int64_t count = 0;  ///< Elements per rank.
  Label label = {};
  float factor = 1;  ///< Multiplies the sum of real elements before it is rounded to T; must be 1 for integers and for Max.

  /// Bytes that `rank` receives from its peers.
  [[nodiscard]] constexpr std::int64_t received_bytes(int ranks, int) const noexcept {
    return (ranks - 1) * count * static_cast<std::int64_t>(sizeof(T));
  }
};

/// Reduces `count` elements over the ranks; all ranks receive the result.
///
/// In place: `send == receive`. Otherwise the two must not overlap.
/// @par Communication
/// Every rank reduces one range of the elements and hands it to the others: 2 count (N - 1) / N elements received per rank where the count
/// divides into N ranges of whole cache lines. In general rank r, with c of `count` elements in its range, receives (N - 1) c + (count -
/// c).
template <Element T, class Op = Sum>
struct AllReduce {
  using element = T;
  using reduction = Op;
  static constexpr OperationKind kind = OperationKind::all_reduce;
  static constexpr char const* name = "all-reduce";

  T const* send = nullptr;
  T* receive = nullptr;
  std::int64_t count = 0;
  Label label = {};
  float factor = 1;  ///< Multiplies the sum of real elements before it is rounded to T; must be 1 for integers and for Max.

  /// Bytes that `rank` receives from its peers.
  [[nodiscard]] constexpr std::int64_t received_bytes(int ranks, int rank) const noexcept {
    if (ranks == 1) return 0;
    std::int64_t const own = detail::work_range(count, static_cast<std::int64_t>(sizeof(T)), ranks, rank).size();
    return ((ranks - 1) * own + (count - own)) * static_cast<std::int64_t>(sizeof(T));
  }
};

/// All ranks receive the `count` elements that `root` has in its buffer.
/// @par Communication
/// count elements received per rank, none by the root.
template <Element T>
struct Broadcast {
  using element = T;
  static constexpr OperationKind kind = OperationKind::broadcast;
  static constexpr char const* name = "broadcast";

  T* buffer = nullptr;
  std::int64_t count = 0;
  int root = 0;
  Label label = {};

  /// Bytes that `rank` receives from its peers.
  [[nodiscard]] constexpr std::int64_t received_bytes(int, int rank) const noexcept {
    return rank == root ? 0 : count * static_cast<std::int64_t>(sizeof(T));
  }
};

/// Rank s sends elements [r * stride, r * stride + count) of `send` to rank r, which receives them at `receive + s * count`.
///
/// `receive` holds size() * count elements, `send` (size() - 1) * stride + count; they must not overlap. Where `own_part` is false, what a rank
/// would send to itself is left out: `receive` holds the others' parts, one behind the other, (size() - 1) * count elements.
/// @par Communication
/// (N - 1) * count elements received per rank.
template <Element T>
struct AllToAll {
  using element = T;
  static constexpr OperationKind kind = OperationKind::all_to_all;
  static constexpr char const* name = "all-to-all";

  T const* send = nullptr;
  T* receive = nullptr;
  std::int64_t count = 0;  ///< Elements per pair of ranks.
  Label label = {};
  std::int64_t stride =
      0;                 ///< From one rank's part of `send` to the next one's [elements], at least count; 0: count. Ranks may differ in it.
  bool own_part = true;  ///< Whether a rank also receives from itself. Equal on all ranks.

  /// The stride that is meant.
  [[nodiscard]] constexpr std::int64_t send_stride() const noexcept { return stride == 0 ? count : stride; }
  /// Where `receiver` has what comes from `sender`, behind its `receive` [elements].
  [[nodiscard]] constexpr std::int64_t place(int sender, int receiver) const noexcept {
    return (sender - (!own_part && sender > receiver ? 1 : 0)) * count;
  }

  /// Bytes that `rank` receives from its peers.
  [[nodiscard]] constexpr std::int64_t received_bytes(int ranks, int) const noexcept {
    return (ranks - 1) * count * static_cast<std::int64_t>(sizeof(T));
  }
};

/// No rank's stream passes before all ranks' streams have arrived. Moves nothing.
struct Barrier {
  static constexpr OperationKind kind = OperationKind::barrier;
  static constexpr char const* name = "barrier";

  Label label = {};

  [[nodiscard]] constexpr std::int64_t received_bytes(int, int) const noexcept { return 0; }
};

/// Says "every rank is here now" where nothing has to be moved, so that a checking communicator can compare the ranks at every stage,
/// also where a gather is only a view. Communicators that do not check do not perform it.
struct Announce {
  static constexpr OperationKind kind = OperationKind::announce;
  static constexpr char const* name = "announcement";

  Label label = {};
  char const* text = "";  ///< What is about to happen. Must outlive the call's execution (a literal does); 31 characters are compared.

  [[nodiscard]] constexpr std::int64_t received_bytes(int, int) const noexcept { return 0; }
};

}  // namespace zero
