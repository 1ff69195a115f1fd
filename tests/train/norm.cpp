// SPDX-License-Identifier: Apache-2.0
#include <zero/train/norm.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace {

using zero::bf16;
using zero::compute_t;
using zero::ElementRange;
using zero::half;
using zero::ParameterId;
using zero::Partition;
using zero::PartitionOptions;
using zero::SegmentId;

/// Units with parameters of awkward sizes: gaps inside of blocks, padding behind, a frozen one, empty ones, fewer elements than ranks.
zero::ParameterLayout make_layout() {
  zero::ParameterLayout layout;
  zero::Unit const a = layout.add_unit("a");
  layout.add(a, "w", {71, 53});
  layout.add(a, "b", {1});
  layout.add(a, "none", {0});
  layout.add(a, "c", {127});
  layout.add(a, "frozen", {300}, {.trainable = false});
  layout.add(a, "d", {4096});
  zero::Unit const b = layout.add_unit("b");
  layout.add(b, "tiny", {3});
  zero::Unit const c = layout.add_unit("c");
  for (char const* name : {"1", "2", "3", "4", "5"}) layout.add(c, name, {1009});
  return layout;
}

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

/// By multiply-adds, where need be in software.
template <class T>
ZERO_WRITTEN_ORDER void sums_by_multiply_adds(T const* from, int blocks, double* to) {
  zero::detail::sum_blocks<true>(from, blocks, to);
}

/// Element i is added to lane i mod 16, then the lanes as a tree: whole blocks by each of the ways there are, and parts.
template <class T>
void check_order() {
  std::mt19937 random(3);
  bool same = true;
  for (int round = 0; round < 200; ++round) {
    // Also with squares that fp32 cannot hold.
    double const scale = round % 4 == 3 && !std::is_same_v<T, half> ? 0x1p100 : round % 4 == 2 ? 0x1p-20 : 1;
    T data[3 * zero::detail::norm_block];
    for (T& x : data) x = T{static_cast<compute_t<T>>(scale * (1 + static_cast<double>(random()) * 0x1p-32))};
    double expected[3];
    for (int block = 0; block < 3; ++block) {
      double lanes[16] = {};
      for (int i = 0; i < 128; ++i) {
        double const value = static_cast<double>(static_cast<compute_t<T>>(data[128 * block + i]));
        double const volatile square = value * value;
        double const volatile sum = lanes[i % 16] + square;
        lanes[i % 16] = sum;
      }
      for (int width = 8; width > 0; width /= 2) {
        for (int l = 0; l < width; ++l) {
          double const volatile sum = lanes[l] + lanes[l + width];
          lanes[l] = sum;
        }
      }
      expected[block] = lanes[0];
    }
    double sums[3];
    auto const check = [&](auto const& block_sums) {
      for (double& sum : sums) sum = -1;
      block_sums(static_cast<T const*>(data), 3, sums);
      for (int block = 0; block < 3; ++block) same = same && bits(sums[block]) == bits(expected[block]);
    };
    check([](T const* from, int blocks, double* to) { zero::detail::block_sums(from, blocks, to); });
    check([](T const* from, int blocks, double* to) { zero::detail::fastest_block_sums(from, blocks, to); });
    if constexpr (sizeof(T) < sizeof(double)) {
      check([](T const* from, int blocks, double* to) { sums_by_multiply_adds(from, blocks, to); });
    }
    same = same && bits(zero::detail::part_sum(data + 128, 128)) == bits(expected[1]);
  }
  CHECK(same);
}

/// A gradient as a function of parameter and element: sixteen decimal orders of magnitude, so that naive sums depend on their order.
float gradient(ParameterId parameter, std::int64_t element) {
  auto const h = zero::mixed_bits(static_cast<std::uint64_t>(parameter) << 32 ^ static_cast<std::uint64_t>(element));
  float const mantissa = 1 + static_cast<float>(h >> 40) * 0x1p-24f;
  int const exponent = static_cast<int>(h & 63) - 40;
  return std::bit_cast<float>((static_cast<std::uint32_t>(exponent + 127) << 23)) * (h & 64 ? mantissa : -mantissa);
}

/// A whole segment; what no parameter owns holds `gaps`.
template <class T, class F>
std::vector<T> segment_of(Partition const& partition, SegmentId id, float gaps, F&& value) {
  std::vector<T> result(static_cast<std::size_t>(partition.segment(id).padded_elements), zero::element_cast<T>(gaps));
  partition.pieces(id, 0, partition.segment(id).padded_elements,
                   [&](ParameterId parameter, std::int64_t first, std::int64_t offset, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i) {
                       result[static_cast<std::size_t>(offset + i)] = zero::element_cast<T>(value(parameter, first + i));
                     }
                   });
  return result;
}

float const nan_value = std::numeric_limits<float>::quiet_NaN();
float const infinity = std::numeric_limits<float>::infinity();

/// Each rank sums what it owns; the ranks' sums are merged in a shuffled order.
template <class T, class F>
zero::exact_square_sum_t<T> square_sum(int ranks, PartitionOptions options, F&& value, unsigned seed = 1) {
  Partition const partition{make_layout(), ranks, options};
  std::vector<zero::exact_square_sum_t<T>> sums(static_cast<std::size_t>(ranks));
  for (auto& sum : sums) sum.clear();
  for (SegmentId id : partition.segments()) {
    if (!partition.segment(id).trainable) continue;
    auto const data = segment_of<T>(partition, id, nan_value, value);
    for (int rank = 0; rank < ranks; ++rank) {
      ElementRange const range = partition.shard_range(id, rank);
      zero::accumulate_square_sum(sums[static_cast<std::size_t>(rank)], data.data() + range.begin, partition, id, range.begin, range.end);
    }
  }
  std::shuffle(sums.begin(), sums.end(), std::mt19937{seed});
  zero::exact_square_sum_t<T> merged{};
  for (auto const& sum : sums) merged.merge(sum);
  merged.carry();
  return merged;
}

/// What everybody writes first: each rank adds in fp64, then the ranks' sums are added.
double naive_square_sum(int ranks) {
  Partition const partition{make_layout(), ranks};
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    double own = 0;
    for (SegmentId id : partition.segments()) {
      if (!partition.segment(id).trainable) continue;
      partition.pieces(id, partition.shard_range(id, rank),
                       [&](ParameterId parameter, std::int64_t first, std::int64_t, std::int64_t count) {
                         for (std::int64_t i = 0; i < count; ++i) {
                           double const g = static_cast<double>(gradient(parameter, first + i));
                           own += g * g;
                         }
                       });
    }
    sum += own;
  }
  return sum;
}

}  // namespace

TEST_CASE_TEMPLATE("has_the_same_bits_for_every_number_of_ranks: field cases 18 20 21 24", T, float, zero::bf16, zero::half, double) {
  auto const value = [](ParameterId parameter, std::int64_t element) { return gradient(parameter, element) * 0x1p-10f; };
  auto const one = square_sum<T>(1, {}, value);
  CHECK(one.non_finite() == 0);
  CHECK(one.root() > 0);
  for (int ranks = 2; ranks <= 24; ++ranks) {
    auto const several = square_sum<T>(ranks, {}, value, static_cast<unsigned>(ranks));
    CHECK(several == one);
    CHECK(bits(several.root()) == bits(one.root()));
  }
}

TEST_CASE("the_data_would_show_an_order_that_depends_on_ranks") {
  int different = 0;
  for (int ranks = 2; ranks <= 8; ++ranks) different += naive_square_sum(ranks) != naive_square_sum(1);
  CHECK(different > 0);
  CHECK(square_sum<float>(3, {}, gradient).value() == doctest::Approx(naive_square_sum(1)).epsilon(1e-13));
}

TEST_CASE("other_alignments_agree_among_themselves") {
  for (std::int64_t alignment : {1, 32, 96, 256, 1000}) {
    PartitionOptions const options{.shard_alignment = alignment, .parameter_alignment = 32};
    auto const one = square_sum<float>(1, options, gradient);
    for (int ranks : {2, 3, 5, 8}) CHECK(square_sum<float>(ranks, options, gradient) == one);
  }
}

TEST_CASE("does_not_depend_on_how_a_shard_is_cut_into_calls") {
  Partition const partition{make_layout(), 2};
  SegmentId const id{};
  auto const data = segment_of<float>(partition, id, nan_value, gradient);
  std::int64_t const end = partition.segment(id).padded_elements;
  zero::ExactSum<20> whole{}, pieces{};
  zero::accumulate_square_sum(whole, data.data(), partition, id, 0, end);
  for (std::int64_t begin = 0; begin < end; begin += 384) {
    zero::accumulate_square_sum(pieces, data.data() + begin, partition, id, begin, std::min(begin + 384, end));
  }
  CHECK(pieces == whole);
  // Carried: there is room for additions and for the merge over ranks.
  for (int k = 0; k + 1 < whole.limb_count; ++k) CHECK((whole.words[k] >= 0 && whole.words[k] <= 0xffffffff));
}

TEST_CASE("ones_give_the_root_of_the_count_exactly: field cases 25 28") {
  auto const ones = [](ParameterId, std::int64_t) { return 1.0f; };
  double const count = static_cast<double>(Partition{make_layout(), 1}.owned_trainable_elements(0));
  for (int ranks : {1, 2, 3, 8}) {
    CHECK(square_sum<float>(ranks, {}, ones).value() == count);
    CHECK(square_sum<zero::bf16>(ranks, {}, ones).value() == count);
    CHECK(square_sum<double>(ranks, {}, ones).root() == std::sqrt(count));
  }
}

TEST_CASE("keeps_the_whole_range_of_the_element_type: field case 19") {
  double const count = static_cast<double>(Partition{make_layout(), 1}.owned_trainable_elements(0));
  auto const all = [](float x) { return [x](ParameterId, std::int64_t) { return x; }; };
  CHECK(square_sum<float>(3, {}, all(0)).root() == 0);
#if !defined(__FAST_MATH__)  // programs linked with -ffast-math take denormal numbers for 0
  CHECK(square_sum<float>(3, {}, all(0x1p-149f)).value() == 0x1p-298 * count);
  CHECK(square_sum<zero::bf16>(3, {}, all(0x1p-133f)).value() == 0x1p-266 * count);
#endif
  CHECK(square_sum<float>(3, {}, all(0x1p64f)).value() == 0x1p128 * count);  // 1.8e19: squares overflow in fp32
  CHECK(square_sum<float>(3, {}, all(-0x1p127f)).value() == 0x1p254 * count);
  CHECK(square_sum<float>(3, {}, all(0x1p64f)).non_finite() == 0);
  CHECK(square_sum<double>(3, {}, all(0x1p127f)).value() == 0x1p254 * count);
}

TEST_CASE("one_bad_element_on_one_rank_is_seen_and_counted: field cases 19 73") {
  for (float bad : {nan_value, infinity, -infinity}) {
    for (int ranks : {1, 2, 8}) {
      auto const value = [bad](ParameterId parameter, std::int64_t element) {
        return parameter == ParameterId{5} && element == 4000 ? bad : gradient(parameter, element);
      };
      CHECK(square_sum<float>(ranks, {}, value).non_finite() == 1);
      CHECK(square_sum<zero::bf16>(ranks, {}, value).non_finite() == 1);
      CHECK(square_sum<double>(ranks, {}, value).non_finite() == 1);
    }
  }
}

TEST_CASE("a_square_beyond_fp64_counts_as_infinite") {
  zero::ParameterLayout layout;
  layout.add(layout.add_unit("u"), "w", {200});
  Partition const partition{layout, 1};
  std::vector<double> data(256, 1.0);
  data[150] = 1e155;
  zero::ExactSum<68> sum{};
  zero::accumulate_square_sum(sum, data.data(), partition, SegmentId{}, 0, 256);
  CHECK(sum.non_finite() == 1);
}

TEST_CASE("an_empty_range_adds_nothing: field case 14") {
  Partition const partition{make_layout(), 2};
  zero::ExactSum<20> sum{};
  zero::accumulate_square_sum(sum, static_cast<float const*>(nullptr), partition, SegmentId{}, 128, 128);
  CHECK(sum == zero::ExactSum<20>{});
}

// Also a program of its own with -Ofast.
TEST_CASE("adds_in_the_documented_order_in_every_build") {
  check_order<float>();
  check_order<bf16>();
  check_order<half>();
#if !(defined(__clang__) && defined(__FAST_MATH__) && defined(__FMA__))
  // clang fuses everything where it may use FMA and is told -ffast-math: the last bit of fp64 squares is another one then.
  check_order<double>();
#endif
}

TEST_CASE("the parts of a run are its blocks, cut anywhere: one at a time, in any order, the sum has the same bits") {
  std::vector<float> values(1500);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient(ParameterId{3}, static_cast<std::int64_t>(i));
  for (std::int64_t const block : {128, 64, 1}) {
    for (std::int64_t const offset : {0, 1, 127, 128, 1000}) {
      for (std::int64_t const count : {1, 127, 128, 129, 1400}) {
        zero::ExactSum<20> whole{};
        zero::ExactSum<20> single{};
        zero::detail::SquareSum<float> run{&whole, values.data(), offset, count, block};
        std::int64_t const parts = run.parts();
        CHECK(run.begin(0) == 0);
        CHECK(run.begin(parts) == count);
        for (std::int64_t k = 0; k < parts; ++k) CHECK(run.begin(k) < run.begin(k + 1));
        run(0, parts);
        run.into = &single;
        for (std::int64_t k = parts; k-- > 0;) run(k);
        CHECK(whole == single);
      }
    }
  }
  CHECK(zero::detail::SquareSum<float>{nullptr, nullptr, 5, 0, 128}.parts() == 0);
}
