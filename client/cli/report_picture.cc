#include "client/cli/report_picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace eplb::cli {
namespace {

// In pixels; a viewer scales them.
constexpr double kWidth = 900;
constexpr double kHeight = 380;
constexpr double kLeft = 60;
constexpr double kPlotRight = 860;
constexpr double kTop = 80;
constexpr double kBottom = 320;
constexpr int64_t kMaxPoints = 200;
constexpr char kRunColour[] = "#0b57d0";
constexpr char kStaticColour[] = "#8a6d3b";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Where a step and a balancedness lie in the picture.
struct Axes {
  int64_t num_steps = 1;
  double lowest = 0;  // balancedness at the bottom; 1 is at the top

  double X(double step) const {
    return kLeft +
           (kPlotRight - kLeft) * step / static_cast<double>(std::max<int64_t>(num_steps, 1));
  }
  double Y(double balancedness) const {
    return kBottom - (kBottom - kTop) * (balancedness - lowest) / (1 - lowest);
  }
};

std::string Text(double x, double y, const char* anchor, const std::string& text,
                 const std::string& more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y,
                         anchor, more, Escaped(text));
}

std::string SvgLine(double x1, double y1, double x2, double y2, const std::string& style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2,
                         y2, style);
}

// A line with one point for each `per_point` steps, at their middle and mean.
std::string Curve(const std::vector<double>& series, int64_t per_point, const Axes& axes,
                  const char* colour) {
  std::string points;
  const auto size = static_cast<int64_t>(series.size());
  for (int64_t begin = 0; begin < size; begin += per_point) {
    const int64_t end = std::min(begin + per_point, size);
    double sum = 0;
    for (int64_t step = begin; step < end; ++step) sum += series[static_cast<size_t>(step)];
    absl::StrAppendFormat(&points, "%.1f,%.1f ", axes.X(static_cast<double>(begin + end) / 2),
                          axes.Y(sum / static_cast<double>(end - begin)));
  }
  return absl::StrCat("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"", colour,
                      "\" points=\"", points, "\"/>\n");
}

// About eight round numbers of steps.
int64_t TickOf(int64_t num_steps) {
  int64_t tick = 1;
  while (num_steps / tick > 8) {
    const bool one = std::to_string(tick).front() == '1';
    const bool two = std::to_string(tick).front() == '2';
    tick = one ? 2 * tick : two ? tick / 2 * 5 : 2 * tick;
  }
  return tick;
}

std::string Grid(const Axes& axes) {
  std::string text;
  for (double value = 1; value > axes.lowest - 0.01; value -= 0.1) {
    const double y = axes.Y(value);
    text += SvgLine(kLeft, y, kPlotRight, y, "stroke=\"#e3e3e3\"");
    text += Text(kLeft - 8, y + 4, "end", absl::StrFormat("%.1f", value));
  }
  const int64_t tick = TickOf(axes.num_steps);
  for (int64_t step = 0; step <= axes.num_steps; step += tick) {
    const double x = axes.X(static_cast<double>(step));
    text += SvgLine(x, kBottom, x, kBottom + 4, "stroke=\"#888\"");
    text += Text(x, kBottom + 18, "middle", absl::StrCat(step));
  }
  text += SvgLine(kLeft, kBottom, kPlotRight, kBottom, "stroke=\"#888\"");
  return text + Text((kLeft + kPlotRight) / 2, kBottom + 38, "middle", "step");
}

std::string Marks(const RunReview& review, const Axes& axes) {
  std::string text;
  for (const HeldBack& stretch : review.operators.held_back) {
    const double x = axes.X(static_cast<double>(stretch.first_step));
    const double width = axes.X(static_cast<double>(stretch.last_step) + 1) - x;
    absl::StrAppendFormat(
        &text,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#000\" "
        "fill-opacity=\"0.08\"/>\n",
        x, kTop, width, kBottom - kTop);
    text += Text(x + width / 2, kTop + 14, "middle", stretch.why);
  }
  for (const RunDecision& decision : review.decisions) {
    for (const int64_t step : decision.switch_steps) {
      const double x = axes.X(static_cast<double>(step) + 1);
      absl::StrAppendFormat(&text, "<path d=\"M%.1f,%.1f l-4,8 h8 z\" fill=\"%s\"/>\n", x,
                            kBottom - 9, decision.policy == "rollback" ? "#b3261e" : kRunColour);
    }
  }
  return text;
}

double Mean(const std::vector<double>& series) {
  double sum = 0;
  for (const double value : series) sum += value;
  return series.empty() ? 1 : sum / static_cast<double>(series.size());
}

std::string Key(double x, const char* colour, const std::string& text) {
  return SvgLine(x, 56, x + 22, 56, absl::StrCat("stroke-width=\"3\" stroke=\"", colour, "\"")) +
         Text(x + 28, 60, "start", text);
}

}  // namespace

std::string ReportPicture(const std::string& job, const RunReview& review) {
  double lowest = 1;
  for (const double value : review.run_series) lowest = std::min(lowest, value);
  for (const double value : review.unmoved_series) lowest = std::min(lowest, value);
  const Axes axes{.num_steps = std::max<int64_t>(review.steps, 1),
                  .lowest = std::clamp(std::floor(lowest * 10) / 10, 0.0, 0.9)};
  const int64_t per_point = std::max<int64_t>(1, (review.steps + kMaxPoints - 1) / kMaxPoints);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  svg += Text(kLeft, 28, "start",
              absl::StrCat("Job ", job, ": balancedness of its steps (mean / max GPU load)"),
              " font-size=\"17\"");
  svg += Key(kLeft, kRunColour, absl::StrFormat("this run, mean %.3f", Mean(review.run_series)));
  svg += Key(kLeft + 200, kStaticColour,
             absl::StrFormat("static layout, mean %.3f", Mean(review.unmoved_series)));
  absl::StrAppendFormat(&svg, "<path d=\"M%.1f,52 l-4,8 h8 z\" fill=\"%s\"/>\n", kLeft + 434,
                        kRunColour);
  const std::string points =
      per_point == 1 ? "" : absl::StrCat("; a point is the mean of ", per_point, " steps");
  svg += Text(kLeft + 446, 60, "start", absl::StrCat("experts moved", points));
  svg += Grid(axes);
  svg += Marks(review, axes);
  svg += Curve(review.unmoved_series, per_point, axes, kStaticColour);
  svg += Curve(review.run_series, per_point, axes, kRunColour);
  return svg + "</svg>\n";
}

}  // namespace eplb::cli
