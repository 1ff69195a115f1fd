// SPDX-License-Identifier: Apache-2.0
/// @file
/// The loss curve's files.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "gpt/curve.hpp"

namespace {

std::size_t count(std::string const& text, std::string const& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::vector<gpt::Curve> two_runs() { return {{"Stage0, fp32", {{1, 5.5}, {2, 4.25}}, {{2, 4.5}}}, {"a < b", {{1, 5.5}, {2, 4.125}}, {}}}; }

TEST_CASE("csv_has_a_row_for_every_point") {
  CHECK(gpt::curve_csv(two_runs()) ==
        "run,loss,step,value\n"
        "Stage0; fp32,training,1,5.5\n"
        "Stage0; fp32,training,2,4.25\n"
        "Stage0; fp32,validation,2,4.5\n"
        "a < b,training,1,5.5\n"
        "a < b,training,2,4.125\n");
}

TEST_CASE("svg_has_a_line_for_every_run_labels_and_no_stray_markup") {
  std::string const svg = gpt::curve_svg(two_runs(), "loss & more");
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(count(svg, "<polyline") == 2);
  CHECK(count(svg, "<circle") == 1);
  CHECK(count(svg, "<text") == count(svg, "</text>"));
  CHECK(svg.find(">Stage0, fp32, validation 4.5000<") != std::string::npos);
  CHECK(svg.find(">a &lt; b<") != std::string::npos);
  CHECK(svg.find(">loss &amp; more<") != std::string::npos);
  CHECK(svg.find(">step<") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
}

TEST_CASE("svg_of_nothing_of_one_point_and_of_what_is_not_finite_has_only_finite_coordinates") {
  gpt::Curve const nothing{"nothing", {}, {}};
  gpt::Curve const point{"point", {{1, 3.0}}, {{1, 3.0}}};
  gpt::Curve const diverged{"diverged", {{1, 3.0}, {2, HUGE_VAL}, {3, std::nan("")}}, {}};
  for (std::vector<gpt::Curve> const& curves : {std::vector<gpt::Curve>{}, {nothing}, {point}, {diverged}}) {
    std::string const svg = gpt::curve_svg(curves, "loss");
    CHECK(svg.find("\"nan") == std::string::npos);
    CHECK(svg.find("\"-nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
    CHECK(svg.size() < 20000);
  }
}

TEST_CASE("a_folder_that_does_not_exist_is_named") {
  CHECK_THROWS_WITH(gpt::write_curves("/no/such/folder/loss", two_runs(), "loss"), "curve: /no/such/folder/loss.csv cannot be written");
}

}  // namespace
