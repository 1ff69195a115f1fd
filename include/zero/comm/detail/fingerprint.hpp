// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What ranks compare before they move anything: one call, made comparable, and said in words.

#include <bit>
#include <cstdint>
#include <string>

#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>
#include <zero/core/error.hpp>

namespace zero::detail {

/// One call of a collective without its pointers. Two ranks' calls belong together exactly if their fingerprints are equal.
struct Fingerprint {
  static constexpr int text_bytes = 32;

  OperationKind kind = OperationKind::barrier;
  std::int32_t element = -1;  ///< `ElementType`, -1 for calls without elements.
  std::int32_t reduction = 0;
  std::int32_t root = -1;
  std::int64_t count = 0;
  Label label = {};
  std::uint32_t factor_bits = 0;
  std::uint32_t without_own = 0;  ///< Of an all-to-all: ranks receive nothing from themselves.
  char text[text_bytes] = {};     ///< Announcements: what is announced, cut off and terminated.

  friend constexpr bool operator==(Fingerprint const&, Fingerprint const&) = default;
};

template <class Operation>
[[nodiscard]] constexpr Fingerprint fingerprint(Operation const& operation) noexcept {
  Fingerprint result;
  result.kind = Operation::kind;
  result.label = operation.label;
  if constexpr (requires { typename Operation::element; }) {
    result.element = static_cast<std::int32_t>(element_traits<typename Operation::element>::type);
    result.count = operation.count;
  }
  if constexpr (requires { typename Operation::reduction; }) {
    result.reduction = Operation::reduction::id;
    result.factor_bits = std::bit_cast<std::uint32_t>(operation.factor);
  }
  if constexpr (requires { operation.root; }) result.root = operation.root;
  if constexpr (requires { operation.own_part; }) result.without_own = operation.own_part ? 0 : 1;
  if constexpr (requires { operation.text; }) {
    for (int i = 0; i + 1 < Fingerprint::text_bytes && operation.text != nullptr && operation.text[i] != '\0'; ++i)
      result.text[i] = operation.text[i];
  }
  return result;
}

/// The call in words: "reduce-scatter (sum) of 128 bf16 per rank for gradients 3".
[[nodiscard]] inline std::string in_words(Fingerprint const& call) {
  std::string words = name(call.kind);
  if (call.reduction != 0) words += call.reduction == Max::id ? " (max)" : " (sum)";
  if (call.element >= 0) {
    words += " of " + std::to_string(call.count) + " " + element_name(static_cast<ElementType>(call.element));
    if (call.kind == OperationKind::all_gather || call.kind == OperationKind::reduce_scatter) words += " per rank";
    if (call.kind == OperationKind::all_to_all) words += call.without_own != 0 ? " per pair of different ranks" : " per pair";
  }
  if (call.root >= 0) words += " from root " + std::to_string(call.root);
  if (call.reduction != 0 && call.factor_bits != std::bit_cast<std::uint32_t>(1.0f)) {
    words += " times " + std::to_string(std::bit_cast<float>(call.factor_bits));
  }
  if (call.kind == OperationKind::announce) words += " '" + std::string(call.text) + "'";
  if (call.kind != OperationKind::split) {
    words += std::string(" for ") + name(call.label.subject);
    if (call.label.index >= 0) words += " " + std::to_string(call.label.index);
  }
  return words;
}

/// What a rank says that finds a peer calling something else.
[[nodiscard]] inline std::string mismatch_in_words(RankName rank, Fingerprint const& own, RankName peer, Fingerprint const& other) {
  return "the ranks do not call the same thing: " + rank.text() + " calls " + in_words(own) + ", " + peer.text() + " calls " +
         in_words(other);
}

}  // namespace zero::detail
