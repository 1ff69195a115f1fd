// SPDX-License-Identifier: Apache-2.0
/// @file
/// Plans as constant expressions; that runs do as planned is tested in accounting.cpp.

#include <zero/train/plan.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include <zero/train/optimizers.hpp>

namespace {

using zero::Purpose;
using zero::Subject;
using Bf16 = zero::Precision<zero::bf16>;
using Single = zero::Precision<float>;

constexpr int n = 8;

/// Three units without padding on 8 ranks: `psi` elements, 8192 in each of the first two units, 16384 in the last.
constexpr zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("a"), "a.w", {64, 128});
  layout.add(layout.add_unit("b"), "b.w", {64, 128});
  layout.add(layout.add_unit("c"), "c.w", {128, 128});
  return layout;
}
constexpr std::int64_t psi = 32768;

template <class S, class P>
constexpr zero::Plan plan_of(zero::Schedule const& schedule = {}) {
  return zero::plan<S, P, zero::AdamW>(make_layout(), n, schedule);
}

// arXiv 1910.02054, figure 1, with K = 12: 16, 4 + 12/N, 2 + 14/N and 16/N bytes an element.
static_assert(plan_of<zero::Stage0, Bf16>().model_state_bytes() == 16 * psi);
static_assert(plan_of<zero::Stage1, Bf16>().model_state_bytes() == 4 * psi + 12 * psi / n);
static_assert(plan_of<zero::Stage2, Bf16>().model_state_bytes() == 2 * psi + 14 * psi / n);
static_assert(plan_of<zero::Stage3, Bf16>().model_state_bytes() == 16 * psi / n);
// In fp32 a parameter's own slice is its master: 4/4/8.
static_assert(plan_of<zero::Stage0, Single>().model_state_bytes() == 16 * psi);
static_assert(plan_of<zero::Stage1, Single>().model_state_bytes() == 8 * psi + 8 * psi / n);
static_assert(plan_of<zero::Stage2, Single>().model_state_bytes() == 4 * psi + 12 * psi / n);
static_assert(plan_of<zero::Stage3, Single>().model_state_bytes() == 16 * psi / n);

// Section 7: 2, 2, 2 and 3 times Psi (N-1)/N elements; with M passes 2, 2, M + 1 and 3 M.
constexpr std::int64_t once = psi * (n - 1) / n * 2;
static_assert(plan_of<zero::Stage0, Bf16>().received_bytes() == 2 * once);
static_assert(plan_of<zero::Stage1, Bf16>().received_bytes() == 2 * once);
static_assert(plan_of<zero::Stage2, Bf16>().received_bytes() == 2 * once);
static_assert(plan_of<zero::Stage3, Bf16>().received_bytes() == 3 * once);
constexpr zero::Schedule five{.micro_batches = 5};
static_assert(plan_of<zero::Stage0, Bf16>(five).received_bytes() == 2 * once);
static_assert(plan_of<zero::Stage1, Bf16>(five).received_bytes() == 2 * once);
static_assert(plan_of<zero::Stage2, Bf16>(five).received_bytes() == 6 * once);
static_assert(plan_of<zero::Stage3, Bf16>(five).received_bytes() == 15 * once);
// Weights that are held from forward to backward are gathered once; each inference pass gathers once more.
static_assert(plan_of<zero::Stage3, Bf16>({.backward_gathers = false}).received_bytes() == 2 * once);
static_assert(plan_of<zero::Stage3, Bf16>({.inference_passes = 2}).received_bytes() == 5 * once);

// One unit at a time is whole; 8192 and 16384 elements are two buffers. All are held where backward does not gather again.
static_assert(plan_of<zero::Stage3, Bf16>().bytes(Purpose::gathered) == 2 * (8192 + 16384));
static_assert(plan_of<zero::Stage3, Bf16>({.backward_gathers = false}).bytes(Purpose::gathered) == 2 * psi);
static_assert(plan_of<zero::Stage2, Bf16>().bytes(Purpose::gathered) == 0);
static_assert(plan_of<zero::Stage2, Bf16>().bytes(Purpose::gradient_scratch) == 2 * (8192 + 16384));
// With two streams a reduction may be in flight while the next gradient is written.
static_assert(plan_of<zero::Stage2, Bf16>({.overlapped = true}).bytes(Purpose::gradient_scratch) == 2 * psi);
static_assert(plan_of<zero::Stage1, Bf16>().bytes(Purpose::gradient_scratch) == 0);

// The norm is 21 words over all ranks; a step that neither clips nor skips has none.
static_assert(plan_of<zero::Stage0, Bf16>().received_bytes(Subject::control) > 0);
static_assert(plan_of<zero::Stage0, Bf16>({.step = {.skip_non_finite = false}}).received_bytes(Subject::control) == 0);

// One rank receives nothing and gathers nothing.
constexpr zero::Plan alone = zero::plan<zero::Stage3, Bf16, zero::AdamW>(make_layout(), 1);
static_assert(alone.received_bytes() == 0 && alone.received_bytes(Subject::control) == 0 && alone.bytes(Purpose::gathered) == 0);
static_assert(alone.model_state_bytes() == 16 * psi);

}  // namespace

TEST_CASE("the plan at run time is the constant one") {
  zero::Plan const plan = zero::plan<zero::Stage3, Bf16, zero::AdamW>(make_layout(), n);
  CHECK(plan.bytes() == plan_of<zero::Stage3, Bf16>().bytes());
  CHECK(plan.received_bytes() == 3 * once);
  std::int64_t sum = 0;
  for (std::int64_t bytes : plan.held) sum += bytes;
  CHECK(plan.bytes() == sum);
}

TEST_CASE("a model of more than 2^31 elements is planned without overflow") {
  zero::ParameterLayout layout;
  for (int u = 0; u < 96; ++u) {
    std::string const unit = "h" + std::to_string(u);
    layout.add(layout.add_unit(unit), unit + ".w", {12288, 12288, 12});
  }
  std::int64_t const elements = layout.elements();
  CHECK(elements == std::int64_t{96} * 12288 * 12288 * 12);
  zero::Plan const plan = zero::plan<zero::Stage3, Bf16, zero::AdamW>(layout, 1024);
  CHECK(plan.model_state_bytes() == 16 * elements / 1024);
  CHECK(plan.received_bytes() == 3 * 2 * (elements - elements / 1024));
}
