// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The figure of the ZeRO paper for any model: a stacked bar of memory for each stage, as SVG.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "plan/stages.hpp"

namespace plan {

namespace detail {

inline std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// Escapes what a user may have typed.
inline std::string escaped(std::string_view text) {
  std::string result;
  for (char const c : text) {
    if (c == '<') result += "&lt;";
    else if (c == '&') result += "&amp;";
    else result += c;
  }
  return result;
}

}  // namespace detail

/// Bytes in the unit that suits them: "31.4 GB"; 1 GB is 10^9 bytes.
inline std::string bytes_text(double bytes) {
  if (bytes >= 1e12) return detail::fixed(bytes / 1e12, 2) + " TB";
  if (bytes >= 1e9) return detail::fixed(bytes / 1e9, bytes >= 1e11 ? 0 : bytes >= 1e10 ? 1 : 2) + " GB";
  if (bytes >= 1e6) return detail::fixed(bytes / 1e6, 1) + " MB";
  return detail::fixed(bytes / 1e3, 1) + " kB";
}

/// @param title  Which model, on how many ranks.
inline std::string figure_svg(StagePlans const& plans, std::string_view title) {
  struct Part {
    zero::Purpose purpose;
    char const* name;
    char const* color;
  };
  constexpr std::array<Part, 5> parts{{{zero::Purpose::parameters, "parameters", "#3b6fb6"},
                                       {zero::Purpose::gradients, "gradients", "#e08a2e"},
                                       {zero::Purpose::optimizer_states, "optimizer states", "#58a05c"},
                                       {zero::Purpose::gathered, "gathered parameters", "#9fb8da"},
                                       {zero::Purpose::gradient_scratch, "gradient scratch", "#f0c79a"}}};
  constexpr double width = 760, left = 90, right = 110, bar = 34, gap = 22, top = 84;
  double const height = top + 4 * (bar + gap) + 20;
  double most = 1;
  for (zero::Plan const& plan : plans) most = std::max(most, static_cast<double>(plan.bytes()));

  using detail::fixed;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(width, 0) + " " + fixed(height, 0) + "\" width=\"" +
                    fixed(width, 0) + "\" height=\"" + fixed(height, 0) +
                    "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n";
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"16\" y=\"26\" font-size=\"16\" fill=\"#222222\">" +
         detail::escaped(title) + "</text>\n";
  double x = 16;
  for (Part const& part : parts) {
    svg += "<rect x=\"" + fixed(x, 0) + "\" y=\"44\" width=\"12\" height=\"12\" fill=\"" + part.color + "\"/><text x=\"" +
           fixed(x + 17, 0) + "\" y=\"55\" fill=\"#222222\">" + part.name + "</text>\n";
    x += 34 + 7.2 * static_cast<double>(std::string_view(part.name).size());
  }
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    double const y = top + static_cast<double>(stage) * (bar + gap);
    double at = left;
    svg += "<text x=\"" + fixed(left - 10, 0) + "\" y=\"" + fixed(y + 22, 0) + "\" text-anchor=\"end\" fill=\"#222222\">Stage" +
           std::to_string(stage) + "</text>\n";
    for (Part const& part : parts) {
      double const size = static_cast<double>(plans[stage].bytes(part.purpose)) / most * (width - left - right);
      if (size > 0) {
        svg += "<rect x=\"" + fixed(at, 2) + "\" y=\"" + fixed(y, 0) + "\" width=\"" + fixed(size, 2) + "\" height=\"" + fixed(bar, 0) +
               "\" fill=\"" + part.color + "\"/>\n";
      }
      at += size;
    }
    svg += "<text x=\"" + fixed(at + 8, 2) + "\" y=\"" + fixed(y + 22, 0) + "\" fill=\"#222222\">" +
           bytes_text(static_cast<double>(plans[stage].bytes())) + "</text>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace plan
