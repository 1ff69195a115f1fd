// SPDX-License-Identifier: Apache-2.0
/// @file
/// The arguments of collectives: which are refused, and that what a few comparisons take for right is right.

#include <zero/comm/detail/arguments.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

namespace {

using zero::AllGather;
using zero::AllReduce;
using zero::AllToAll;
using zero::Broadcast;
using zero::ReduceScatter;
using zero::detail::check_arguments;
using zero::detail::plainly_right;

std::int32_t memory[64];

template <class Operation>
bool refused(Operation const& operation, int ranks, int rank) {
  try {
    check_arguments(operation, ranks, rank, zero::SourceLocation::current());
  } catch (zero::UsageError const&) {
    return true;
  }
  return false;
}

/// Refused or not as expected, and plainly right where it is right and moves something.
template <class Operation>
bool as_expected(Operation const& operation, int ranks, int rank, bool right) {
  bool const moves = operation.count > 0;
  return refused(operation, ranks, rank) != right && plainly_right(operation, ranks, rank) == (right && moves);
}

/// A part of `count` elements at `part`, and a whole of `parts` of them at `whole`: the part is the one of that number, or elsewhere.
bool placed(int part, int whole, int count, int parts, int number) {
  if (part == whole + number * count) return true;
  for (int i = part; i < part + count; ++i) {
    if (i >= whole && i < whole + parts * count) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the buffers of an all-to-all share no memory, at every distance of the two") {
  bool passed = true;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (int count = 0; count <= 3; ++count) {
      for (int const stride : {0, count, count + 2}) {
        for (bool const own_part : {true, false}) {
          if (ranks == 1 && !own_part) continue;  // Nothing is received.
          for (int receive = 0; receive < 48; ++receive) {
            int const send = 20;
            int const sent = count == 0 ? 0 : (ranks - 1) * (stride == 0 ? count : stride) + count;
            int const received = (own_part ? ranks : ranks - 1) * count;
            bool const right = count == 0 || receive + received <= send || send + sent <= receive;
            AllToAll<std::int32_t> const operation{
                .send = memory + send, .receive = memory + receive, .count = count, .stride = stride, .own_part = own_part};
            passed = passed && as_expected(operation, ranks, ranks - 1, right);
          }
        }
      }
    }
  }
  CHECK(passed);
  CHECK(!plainly_right(AllToAll<std::int32_t>{.send = memory, .receive = memory + 32, .count = 4, .stride = 3}, 2, 0));
  CHECK(!plainly_right(AllToAll<std::int32_t>{.send = memory, .receive = nullptr, .count = 4}, 2, 0));
  CHECK(!plainly_right(AllToAll<std::int32_t>{.send = nullptr, .receive = memory, .count = 4}, 2, 0));
}

TEST_CASE("a part is in its place in the whole or overlaps nowhere, at every distance of the two") {
  bool passed = true;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int count = 0; count <= 4; ++count) {
        for (int part = 0; part < 48; ++part) {
          int const whole = 20;
          bool const right = placed(part, whole, count, ranks, rank);
          AllGather<std::int32_t> const gather{.send = memory + part, .receive = memory + whole, .count = count};
          ReduceScatter<std::int32_t> const scatter{.send = memory + whole, .receive = memory + part, .count = count};
          AllReduce<std::int32_t> const reduce{.send = memory + part, .receive = memory + whole, .count = count};
          passed = passed && as_expected(gather, ranks, rank, right) && as_expected(scatter, ranks, rank, right) &&
                   as_expected(reduce, ranks, rank, placed(part, whole, count, 1, 0));
        }
      }
    }
  }
  CHECK(passed);
}

TEST_CASE("pointers that are null are refused where something is moved") {
  std::int32_t* const null = nullptr;
  for (int const count : {0, 3}) {
    bool const right = count == 0;
    CHECK(as_expected(AllGather<std::int32_t>{.send = null, .receive = memory, .count = count}, 2, 1, right));
    CHECK(as_expected(AllGather<std::int32_t>{.send = memory, .receive = null, .count = count}, 2, 1, right));
    CHECK(as_expected(ReduceScatter<std::int32_t>{.send = null, .receive = memory, .count = count}, 2, 1, right));
    CHECK(as_expected(ReduceScatter<std::int32_t>{.send = memory, .receive = null, .count = count}, 2, 1, right));
    CHECK(as_expected(AllReduce<std::int32_t>{.send = null, .receive = null, .count = count}, 2, 1, right));
    CHECK(as_expected(Broadcast<std::int32_t>{.buffer = null, .count = count}, 2, 1, right));
  }
}

TEST_CASE("counts below zero, and those that fit into no address space, are refused; large ones are looked at closely and right") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  auto* const far = reinterpret_cast<std::int32_t*>(std::uintptr_t{1} << 62);
  auto const gather = [&](std::int64_t count) { return AllGather<std::int32_t>{.send = memory, .receive = far, .count = count}; };
  auto const scatter = [&](std::int64_t count) { return ReduceScatter<std::int32_t>{.send = far, .receive = memory, .count = count}; };
  auto const broadcast = [&](std::int64_t count) { return Broadcast<std::int32_t>{.buffer = memory, .count = count}; };
  for (std::int64_t const count : {std::int64_t{-1}, -most - 1, most, most / 4 + 1}) {
    CHECK(as_expected(gather(count), 1, 0, false));
    CHECK(as_expected(scatter(count), 1, 0, false));
    CHECK(as_expected(broadcast(count), 1, 0, false));
  }
  CHECK(as_expected(gather(most / 12 + 1), 3, 0, false));
  CHECK(as_expected(scatter(most / 12 + 1), 3, 0, false));
  // The most that one comparison allows, for as many ranks as there can be.
  constexpr std::int64_t plain = std::int64_t{1} << 30;
  CHECK(as_expected(broadcast(plain), std::numeric_limits<int>::max(), 0, true));
  CHECK_FALSE(plainly_right(broadcast(plain + 1), 2, 0));
  CHECK_FALSE(refused(broadcast(plain + 1), 2, 0));
  CHECK_FALSE(refused(gather(plain + 1), 2, 0));
}

TEST_CASE("a root that is no rank is refused; a factor other than one is looked at closely") {
  for (int const root : {-1, 0, 2, 3}) {
    CHECK(as_expected(Broadcast<std::int32_t>{.buffer = memory, .count = 1, .root = root}, 3, 0, root >= 0 && root < 3));
  }
  static float values[4];
  for (float const factor : {1.0f, 0.5f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    AllReduce<float> const sum{.send = values, .receive = values, .count = 1, .factor = factor};
    CHECK(plainly_right(sum, 2, 0) == (factor == 1.0f));
    CHECK_FALSE(refused(sum, 2, 0));
    AllReduce<std::int32_t> const integers{.send = memory, .receive = memory, .count = 1, .factor = factor};
    CHECK(as_expected(integers, 2, 0, factor == 1.0f));
    ReduceScatter<float, zero::Max> const largest{.send = values, .receive = values, .count = 1, .factor = factor};
    CHECK(as_expected(largest, 1, 0, factor == 1.0f));
  }
}
