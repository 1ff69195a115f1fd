// SPDX-License-Identifier: Apache-2.0
/// @file
/// What NCCL's failures say, and which places and deadlines are refused, over the stand-in library.

#include <zero/comm/nccl_error.hpp>

#include <doctest/doctest.h>

#include <string>

#include <zero/comm/nccl_options.hpp>

#include "support/standin/standin_nccl.hpp"

namespace {

using zero::NcclError;
using zero::NcclOptions;
using zero::NcclPlace;
using zero::SourceLocation;
using zero::detail::check_nccl;
using zero::detail::check_place;
using zero::detail::nccl_version_text;

}  // namespace

TEST_CASE("versions are written as people write them") {
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(nccl_version_text(21800) == "2.18.0");
  CHECK(nccl_version_text(23005) == "2.30.5");
  zero::standin::reset_nccl({.version = 22003});
  CHECK(zero::nccl_version() == 22003);
  zero::standin::fail_nccl({.function = "ncclGetVersion", .call = 1, .result = ncclSystemError});
  CHECK_THROWS_AS(static_cast<void>(zero::nccl_version()), NcclError);
  zero::standin::reset_nccl();
}

TEST_CASE("a call that failed becomes an error with its name, result, rank and NCCL's words") {
  check_nccl("ncclAllReduce", ncclSuccess);
  try {
    check_nccl("ncclAllReduce", ncclInvalidUsage, 3);
    FAIL("nothing was thrown");
  } catch (NcclError const& error) {
    CHECK(std::string(error.call()) == "ncclAllReduce");
    CHECK(error.result() == ncclInvalidUsage);
    CHECK(error.rank() == 3);
    std::string const text = error.what();
    CHECK(text.find(std::string("ncclAllReduce failed: ") + ncclGetErrorString(ncclInvalidUsage) + " (5)") != std::string::npos);
  }
}

TEST_CASE("places and deadlines that are none are refused, with the caller's line") {
  zero::standin::reset_nccl();
  check_place({.rank = 0, .ranks = 1}, {}, {});
  check_place({.rank = 7, .ranks = 8}, {.deadline_ms = 1}, {});
  for (NcclPlace const& place : {NcclPlace{.rank = 0, .ranks = 0}, NcclPlace{.rank = -1, .ranks = 2}, NcclPlace{.rank = 2, .ranks = 2}}) {
    CAPTURE(place.rank);
    CHECK_THROWS_AS(check_place(place, {}, {}), zero::UsageError);
  }
  SourceLocation const here = SourceLocation::current();
  try {
    check_place({.rank = 5, .ranks = 4}, {}, here);
    FAIL("nothing was thrown");
  } catch (zero::UsageError const& error) {
    CHECK(std::string(error.what()).find("rank 5 of 4 ranks") != std::string::npos);
    CHECK(error.where().line == here.line);
  }
  CHECK_THROWS_WITH_AS(check_place({}, {.deadline_ms = 0}, {}), doctest::Contains("a deadline of 0 ms"), zero::UsageError);
  CHECK_THROWS_AS(check_place({}, {.deadline_ms = -5}, {}), zero::UsageError);
  zero::standin::reset_nccl({.version = 21705});
  CHECK_THROWS_WITH_AS(check_place({}, {}, {}), doctest::Contains("version 2.17.5 runs here, 2.18 is needed"), zero::UsageError);
  zero::standin::reset_nccl();
}
