// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The element types of training: of parameters, and of a gradient as it is written, sent and added up.

#include <type_traits>

#include <zero/core/element.hpp>

namespace zero {

/// The types along the chain: a gradient is written as `gradient`, rounded to `wire`, summed over the ranks (16-bit types in fp32), rounded
/// to `wire` once, and added in `accumulator`; the optimizer works on masters of type `master` and rounds to `parameter`.
///
/// `Precision<float>` keeps everything in fp32, and a parameter's own slice is its master. `Precision<bf16>` is the 2/2/12 of the ZeRO paper
/// with AdamW: bf16 parameters and gradients, and 12 bytes of fp32 master and states. `Precision<bf16, bf16, bf16, float>` adds micro-batches
/// up in fp32. Derive and override a member to change one.
template <RealElement Parameter, RealElement Gradient = Parameter, RealElement Wire = Gradient, RealElement Accumulator = Wire>
struct Precision {
  using parameter = Parameter;
  using gradient = Gradient;
  using wire = Wire;
  using accumulator = Accumulator;
  /// What the optimizer computes in and keeps its states in: fp32, or fp64 for fp64 parameters.
  using master = compute_t<Parameter>;
};

namespace detail {

/// Every value of Narrow is one of Wide.
template <class Wide, class Narrow>
inline constexpr bool holds = std::is_same_v<Wide, Narrow> || sizeof(Wide) > sizeof(Narrow);

}  // namespace detail

/// A type with the five member types of `Precision`. The accumulator holds every value of the gradient and of the wire: else stages that round
/// to it before they sum over ranks would differ from those that do it afterwards.
template <class P>
concept PrecisionPolicy = requires {
  requires RealElement<typename P::parameter>;
  requires RealElement<typename P::gradient>;
  requires RealElement<typename P::wire>;
  requires RealElement<typename P::accumulator>;
  requires std::is_floating_point_v<typename P::master>;
  requires detail::holds<typename P::accumulator, typename P::gradient>;
  requires detail::holds<typename P::accumulator, typename P::wire>;
};

}  // namespace zero
