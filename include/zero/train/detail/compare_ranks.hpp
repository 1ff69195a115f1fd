// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The comparison that ranks make when they start: layout, stage, types and options must be equal.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <zero/comm/communicator.hpp>
#include <zero/comm/operations.hpp>
#include <zero/core/error.hpp>
#include <zero/core/plain_array.hpp>
#include <zero/train/detail/control_layout.hpp>
#include <zero/train/detail/training_streams.hpp>

namespace zero::detail {

/// What must be equal on all ranks: hashes, and what each of them is of.
struct StartRecord {
  std::array<std::int64_t, fingerprint_words> words{};
  std::array<char const*, fingerprint_words> names{};
};

/// Collective. @param memory  `fingerprint_bytes(N)` bytes of device memory.
/// @throws MismatchError on every rank if any two differ, naming what and the first two ranks that differ.
template <class Group, class Device>
void compare_ranks(Group& group, TrainingStreams<Device> const& streams, std::byte* memory, StartRecord const& own, SourceLocation where) {
  int const ranks = group.size();
  if (ranks == 1) return;
  auto const stream = streams.communication();
  auto* const all = reinterpret_cast<std::int64_t*>(memory);
  std::int64_t* const mine = all + std::int64_t{group.rank()} * fingerprint_words;
  PlainArray<std::int64_t> words(static_cast<std::size_t>(ranks) * fingerprint_words);
  try {
    Device::copy(stream, mine, own.words.data(), static_cast<std::int64_t>(sizeof(own.words)));
    enqueue_at(group, stream,
               AllGather<std::int64_t>{.send = mine, .receive = all, .count = fingerprint_words, .label = Label{Subject::control}}, where);
    Device::copy(stream, words.data(), all, fingerprint_bytes(ranks));
    Device::synchronize(stream);
  } catch (...) {
    try {  // What was enqueued uses memory that is about to go.
      Device::synchronize(stream);
    } catch (...) {
    }
    throw;
  }
  for (std::size_t k = 0; k < fingerprint_words; ++k) {
    for (int r = 1; r < ranks; ++r) {
      if (words[static_cast<std::size_t>(r) * fingerprint_words + k] != words[k]) {
        throw MismatchError("ranks 0 and " + std::to_string(r) + " were started with different " + own.names[k], group.rank());
      }
    }
  }
}

}  // namespace zero::detail
