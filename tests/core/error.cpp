// SPDX-License-Identifier: Apache-2.0
#include <zero/core/error.hpp>

#include <doctest/doctest.h>

#include <string>

using zero::RankName;

TEST_CASE("a rank is named by its number in the group, and in the first group where that is another one") {
  CHECK(RankName{}.text() == "");
  CHECK(RankName(3).text() == "rank 3");
  CHECK(RankName(3, 3).text() == "rank 3");
  CHECK(RankName(1, 5).text() == "rank 1 (rank 5 of the first group)");
  CHECK(RankName(-1, 5).text() == "rank 5 of the first group");
}

TEST_CASE("errors say on which rank they are reported") {
  CHECK(std::string(zero::Error("what").what()) == "zero: what");
  CHECK(zero::Error("what").rank() == -1);
  CHECK(std::string(zero::Error("what", 2).what()) == "zero: rank 2: what");
  zero::PeerError const error("what", RankName(1, 5), RankName(-1, 2));
  CHECK(std::string(error.what()) == "zero: rank 1 (rank 5 of the first group): what");
  CHECK(error.rank() == 1);
  CHECK(error.rank_in_first_group() == 5);
  CHECK(error.peer() == -1);
  CHECK(error.peer_in_first_group() == 2);
  zero::SourceLocation const where{"file.cpp", 7};
  CHECK(std::string(zero::UsageError("what", where, 0).what()) == "zero: rank 0: what (called at file.cpp:7)");
}
