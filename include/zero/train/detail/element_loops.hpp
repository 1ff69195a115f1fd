// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The element-wise loops between the element types of training: round, add up.

#include <cstdint>

#include <zero/core/config.hpp>
#include <zero/core/element.hpp>

namespace zero::detail {

/// to[i] = from[i], rounded once.
template <Element To, Element From>
struct CastInto {
  To* to;
  From const* from;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = element_cast<To>(from[i]); }
};

/// to[i] += from[i], the sum formed in the type that `To` computes in and rounded once.
template <Element To, Element From>
struct AddInto {
  To* to;
  From const* from;
  ZERO_HOST_DEVICE void operator()(std::int64_t i) const {
    using Compute = compute_t<To>;
    to[i] = static_cast<To>(static_cast<Compute>(to[i]) + static_cast<Compute>(static_cast<compute_t<From>>(from[i])));
  }
};

}  // namespace zero::detail
