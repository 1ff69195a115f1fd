// SPDX-License-Identifier: Apache-2.0
#include <zero/comm/nccl_types.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace {

using zero::bf16;
using zero::ElementType;

using zero::Max;
using zero::nccl_data_type;
using zero::Sum;
using zero::detail::nccl_multiplies_exactly;
using zero::detail::NcclReduction;

static_assert(nccl_data_type(ElementType::fp32) == ncclFloat32 && nccl_data_type(ElementType::fp64) == ncclFloat64);
static_assert(nccl_data_type(ElementType::bf16) == ncclBfloat16 && nccl_data_type(ElementType::half) == ncclFloat16);
static_assert(nccl_data_type(ElementType::int8) == ncclInt8 && nccl_data_type(ElementType::uint8) == ncclUint8);
static_assert(nccl_data_type(ElementType::int32) == ncclInt32 && nccl_data_type(ElementType::uint32) == ncclUint32);
static_assert(nccl_data_type(ElementType::int64) == ncclInt64 && nccl_data_type(ElementType::uint64) == ncclUint64);
static_assert(nccl_data_type(static_cast<ElementType>(99)) == ncclNumTypes);

static_assert(NcclReduction<float, Sum> && NcclReduction<std::int64_t, Max> && NcclReduction<std::uint8_t, Max>);
static_assert(!NcclReduction<float, Max> && !NcclReduction<bf16, Max> && !NcclReduction<zero::half, Max> && !NcclReduction<double, Max>);

/// The largest power of two of a type, and the next one.
template <class T>
void check_range(float largest, float next) {
  CHECK(nccl_multiplies_exactly<T>(largest));
  CHECK_FALSE(nccl_multiplies_exactly<T>(next));
}

}  // namespace

TEST_CASE("a_factor_is_given_to_nccl_only_where_products_with_it_are_exact") {
  for (float const exact : {1.0f, -1.0f, 0.5f, 0.25f, -0.125f, 4.0f, 1024.0f}) {
    CAPTURE(exact);
    CHECK(nccl_multiplies_exactly<float>(exact));
    CHECK(nccl_multiplies_exactly<double>(exact));
    CHECK(nccl_multiplies_exactly<bf16>(exact));
    CHECK(nccl_multiplies_exactly<zero::half>(exact));
  }
  float const inf = std::numeric_limits<float>::infinity();
  for (float const inexact : {0.0f, -0.0f, 3.0f, 1.0f / 3, 0.7f, 0.75f, inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    CAPTURE(inexact);
    CHECK_FALSE(nccl_multiplies_exactly<float>(inexact));
    CHECK_FALSE(nccl_multiplies_exactly<bf16>(inexact));
    CHECK_FALSE(nccl_multiplies_exactly<zero::half>(inexact));
    CHECK_FALSE(nccl_multiplies_exactly<double>(inexact));
  }
  check_range<zero::half>(32768.0f, 65536.0f);                            // rounds to infinity
  check_range<zero::half>(5.9604644775390625e-8f, 2.98023223876953e-8f);  // 2^-24, the smallest; rounds to zero
  CHECK(nccl_multiplies_exactly<bf16>(65536.0f));
}
