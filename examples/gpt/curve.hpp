// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file
/// The loss curve as a table (CSV) and as a picture (SVG).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpt {

struct CurvePoint {
  std::int64_t step = 0;
  double loss = 0;
};

/// One training run.
struct Curve {
  std::string name;
  std::vector<CurvePoint> training;
  std::vector<CurvePoint> validation;
};

namespace detail {

inline std::string number_text(double value, char const* format = "%.6g") {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

inline std::string escaped(std::string const& text) {
  std::string result;
  for (char const c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else result += c;
  }
  return result;
}

/// A step of 1, 2 or 5 times a power of ten that cuts `range` into about `parts`.
inline double tick_step(double range, double parts) {
  double const power = std::pow(10.0, std::floor(std::log10(range / parts)));
  for (double const factor : {1.0, 2.0, 5.0}) {
    if (range / (factor * power) <= parts) return factor * power;
  }
  return 10 * power;
}

inline void write_file(std::string const& path, std::string const& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("curve: " + path + " cannot be written");
}

}  // namespace detail

/// One row per run, kind of loss and step: "run,loss,step,value".
inline std::string curve_csv(std::vector<Curve> const& curves) {
  std::string text = "run,loss,step,value\n";
  for (Curve const& curve : curves) {
    std::string name = curve.name;
    std::replace(name.begin(), name.end(), ',', ';');
    auto const add = [&](char const* kind, std::vector<CurvePoint> const& points) {
      for (CurvePoint const& point : points) {
        text += name + "," + kind + "," + std::to_string(point.step) + "," + detail::number_text(point.loss, "%.17g") + "\n";
      }
    };
    add("training", curve.training);
    add("validation", curve.validation);
  }
  return text;
}

/// Training losses as lines, validation losses as dots; the vertical axis holds all finite losses. Runs that coincide stay visible: each
/// line is thinner than the one below it, and dashed.
inline std::string curve_svg(std::vector<Curve> const& curves, std::string const& title) {
  constexpr double width = 860, height = 480, left = 64, right = 24, top = 56, bottom = 52;
  constexpr char const* colors[] = {"#9ecae1", "#e6550d", "#31a354", "#111111", "#756bb1", "#dd1c77"};
  double last_step = 1, least = HUGE_VAL, most = -HUGE_VAL;
  for (Curve const& curve : curves) {
    for (auto const* points : {&curve.training, &curve.validation}) {
      for (CurvePoint const& point : *points) {
        if (!std::isfinite(point.loss)) continue;
        last_step = std::max(last_step, static_cast<double>(point.step));
        least = std::min(least, point.loss);
        most = std::max(most, point.loss);
      }
    }
  }
  if (least > most) least = 0, most = 1;
  double const loss_tick = detail::tick_step(std::max(most - least, 1e-6), 8);
  double const low = std::floor(least / loss_tick) * loss_tick;
  double const high = std::max(std::ceil(most / loss_tick) * loss_tick, low + loss_tick);
  auto const x_of = [&](double step) { return left + (width - left - right) * step / last_step; };
  auto const y_of = [&](double loss) { return height - bottom - (height - top - bottom) * (loss - low) / (high - low); };
  auto const fixed = [](double value) { return detail::number_text(value, "%.1f"); };

  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(width) + " " + fixed(height) + "\" width=\"" +
                    fixed(width) + "\" height=\"" + fixed(height) + "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n";
  svg += "<title>" + detail::escaped(title) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  auto const text_at = [&](double x, double y, char const* anchor, std::string const& text, char const* more = "") {
    svg += "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" text-anchor=\"" + anchor + "\" fill=\"#222222\"" + more + ">" +
           detail::escaped(text) + "</text>\n";
  };
  auto const line = [&](double x1, double y1, double x2, double y2, char const* color) {
    svg += "<line x1=\"" + fixed(x1) + "\" y1=\"" + fixed(y1) + "\" x2=\"" + fixed(x2) + "\" y2=\"" + fixed(y2) + "\" stroke=\"" + color +
           "\"/>\n";
  };
  text_at(left, 24, "start", title, " font-size=\"16\"");
  for (double i = 0; low + i * loss_tick <= high + 0.5 * loss_tick; ++i) {
    double const loss = low + i * loss_tick;
    line(left, y_of(loss), width - right, y_of(loss), i == 0 ? "#222222" : "#e4e4e4");
    text_at(left - 8, y_of(loss) + 4, "end", detail::number_text(loss, "%.4g"));
  }
  double const step_tick = std::max(1.0, detail::tick_step(last_step, 8));
  for (double step = 0; step <= last_step; step += step_tick) {
    line(x_of(step), height - bottom, x_of(step), height - bottom + 5, "#222222");
    text_at(x_of(step), height - bottom + 20, "middle", detail::number_text(step, "%.0f"));
  }
  line(left, top, left, height - bottom, "#222222");
  text_at((left + width - right) / 2, height - 10, "middle", "step");
  text_at(18, (top + height - bottom) / 2, "middle", "loss (nats per token)",
          (" transform=\"rotate(-90 18 " + fixed((top + height - bottom) / 2) + ")\"").c_str());

  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string const color = colors[i % std::size(colors)];
    double const stroke =
        std::max(1.2, 1.2 + 2.0 * static_cast<double>(std::min<std::size_t>(curves.size(), 4) - 1) - 2.0 * static_cast<double>(i));
    std::string const style = "stroke=\"" + color + "\" stroke-width=\"" + fixed(stroke) + "\"" +
                              (i % 4 == 0 ? "" : " stroke-dasharray=\"" + fixed(14.0 - 3.0 * static_cast<double>(i % 4)) + " 5\"");
    svg += "<polyline fill=\"none\" stroke-linejoin=\"round\" " + style + " points=\"";
    std::size_t const stride = curves[i].training.size() / 800 + 1;  // more points than pixels show nothing
    for (std::size_t p = 0; p < curves[i].training.size(); p += stride) {
      CurvePoint const& point = curves[i].training[p];
      if (std::isfinite(point.loss)) svg += fixed(x_of(static_cast<double>(point.step))) + "," + fixed(y_of(point.loss)) + " ";
    }
    svg += "\"/>\n";
    double const radius = 2.5 + 1.5 * static_cast<double>(curves.size() - 1 - i);
    for (CurvePoint const& point : curves[i].validation) {
      if (!std::isfinite(point.loss)) continue;
      svg += "<circle cx=\"" + fixed(x_of(static_cast<double>(point.step))) + "\" cy=\"" + fixed(y_of(point.loss)) + "\" r=\"" +
             fixed(radius) + "\" fill=\"" + color + "\"/>\n";
    }
    double const y = top + 14 + 20 * static_cast<double>(i);
    std::string label = curves[i].name;
    if (!curves[i].validation.empty()) label += ", validation " + detail::number_text(curves[i].validation.back().loss, "%.4f");
    svg += "<line x1=\"" + fixed(width - 296) + "\" y1=\"" + fixed(y - 4) + "\" x2=\"" + fixed(width - 256) + "\" y2=\"" + fixed(y - 4) +
           "\" " + style + "/>\n";
    text_at(width - 248, y, "start", label);
  }
  return svg + "</svg>\n";
}

/// Writes PREFIX.csv and PREFIX.svg. Throws std::runtime_error where a file cannot be written.
inline void write_curves(std::string const& prefix, std::vector<Curve> const& curves, std::string const& title) {
  detail::write_file(prefix + ".csv", curve_csv(curves));
  detail::write_file(prefix + ".svg", curve_svg(curves, title));
}

}  // namespace gpt
