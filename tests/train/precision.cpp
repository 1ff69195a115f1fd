// SPDX-License-Identifier: Apache-2.0
#include <zero/train/precision.hpp>

#include <doctest/doctest.h>

#include <type_traits>

namespace {

using zero::bf16;
using zero::Precision;

template <class P, class Parameter, class Gradient, class Wire, class Accumulator, class Master>
constexpr bool is = std::is_same_v<typename P::parameter, Parameter> && std::is_same_v<typename P::gradient, Gradient> &&
                    std::is_same_v<typename P::wire, Wire> && std::is_same_v<typename P::accumulator, Accumulator> &&
                    std::is_same_v<typename P::master, Master>;

static_assert(is<Precision<float>, float, float, float, float, float>);
static_assert(is<Precision<bf16>, bf16, bf16, bf16, bf16, float>, "the paper's 2/2/12");
static_assert(is<Precision<double>, double, double, double, double, double>);
static_assert(is<Precision<bf16, float>, bf16, float, float, float, float>);
static_assert(is<Precision<bf16, bf16, bf16, float>, bf16, bf16, bf16, float, float>);

struct Overridden : Precision<bf16> {
  using accumulator = float;
};
static_assert(is<Overridden, bf16, bf16, bf16, float, float>);
static_assert(zero::PrecisionPolicy<Overridden> && zero::PrecisionPolicy<Precision<zero::half>>);

struct IntegerWire : Precision<float> {
  using wire = int;
};
static_assert(!zero::PrecisionPolicy<IntegerWire> && !zero::PrecisionPolicy<float>);
static_assert(!zero::PrecisionPolicy<Precision<float, float, float, bf16>>,
              "Partial would round before the sum over ranks, Sharded after it");
static_assert(!zero::PrecisionPolicy<Precision<bf16, bf16, zero::half, bf16>>, "bf16 does not hold every half");

}  // namespace

TEST_CASE("precisions name five types") { CHECK(zero::PrecisionPolicy<Precision<float>>); }
