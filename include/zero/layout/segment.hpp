// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What a partition says of one segment, and the options that place its cuts.

#include <cstdint>

#include <zero/core/config.hpp>
#include <zero/layout/ids.hpp>

namespace zero {

/// Where the cuts may be.
///
/// With the defaults every array that a collective moves begins at, and holds, a multiple of 16 bytes. Smaller alignments save padding. They are
/// allowed: no result but the last bits of the norm depends on them (norm.hpp says how), yet kernels and NCCL copy less at a time.
struct PartitionOptions {
  std::int64_t shard_alignment = 128;     ///< every shard begins at, and holds, a multiple of this [elements]
  std::int64_t parameter_alignment = 32;  ///< every parameter begins at a multiple of this in its segment [elements]

  friend constexpr bool operator==(PartitionOptions const&, PartitionOptions const&) noexcept = default;
};

/// The elements begin, ..., end - 1 of a segment.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr std::int64_t size() const noexcept { return end - begin; }
  [[nodiscard]] constexpr bool empty() const noexcept { return begin == end; }
  friend constexpr bool operator==(ElementRange const&, ElementRange const&) noexcept = default;
};

/// The numbers of one segment. With n = span_elements, N ranks and A = shard_alignment: shard_elements = A * ceil(n / (N * A)) and
/// padded_elements = N * shard_elements.
struct Segment {
  Unit owner;                    ///< the unit whose parameters these are
  bool trainable;                ///< whether there is a gradient; one answer for the whole segment
  bool tied;                     ///< whether units besides the owner use it; then it is a single parameter
  std::int64_t elements;         ///< of its parameters, without gaps
  std::int64_t span_elements;    ///< from the first parameter's first element to the last one's end: gaps between parameters included
  std::int64_t shard_elements;   ///< what each rank holds where the segment is sharded; 0 where there is no element
  std::int64_t padded_elements;  ///< what a rank holds where it is whole
};

}  // namespace zero
