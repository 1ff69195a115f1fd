// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// What NCCL calls the library's element types and reductions, and which factors a sum may have.

#include <nccl.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <zero/comm/operations.hpp>
#include <zero/core/element.hpp>

namespace zero {

/// NCCL's name for an element type.
[[nodiscard]] constexpr ncclDataType_t nccl_data_type(ElementType type) noexcept {
  switch (type) {
    case ElementType::fp32: return ncclFloat32;
    case ElementType::fp64: return ncclFloat64;
    case ElementType::bf16: return ncclBfloat16;
    case ElementType::half: return ncclFloat16;
    case ElementType::int8: return ncclInt8;
    case ElementType::uint8: return ncclUint8;
    case ElementType::int32: return ncclInt32;
    case ElementType::uint32: return ncclUint32;
    case ElementType::int64: return ncclInt64;
    case ElementType::uint64: return ncclUint64;
  }
  return ncclNumTypes;
}

namespace detail {

/// NCCL's largest value of real numbers ignores NaN, and `zero::Max` promises that a NaN cannot hide: only integers.
template <class T, class Op>
concept NcclReduction = std::is_same_v<Op, Sum> || (std::is_same_v<Op, Max> && !RealElement<T>);

/// NCCL multiplies the addends, not the sum. For a power of two both give the same bits, as long as no product falls below the smallest
/// normal number; for other factors every addend would be rounded.
template <RealElement T>
[[nodiscard]] bool nccl_multiplies_exactly(float factor) noexcept {
  int exponent = 0;
  bool const power_of_two = factor != 0 && std::isfinite(factor) && std::fabs(std::frexp(factor, &exponent)) == 0.5f;
  return power_of_two && static_cast<double>(static_cast<compute_t<T>>(element_cast<T>(factor))) == static_cast<double>(factor);
}

}  // namespace detail

}  // namespace zero
