// The picture of a run: balancedness over steps as SVG, for a browser or a README.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "client/cli/report_forms.h"
#include "client/cli/text.h"
#include "placement/figure_mean.h"

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
constexpr char kWithoutColour[] = "#8a6d3b";
constexpr char kEqualSharesColour[] = "#b45f9b";
constexpr char kHindsightColour[] = "#2e7d32";
constexpr double kLegend = 50;  // its first row
constexpr double kLegendRow = 19;
constexpr double kSecondColumn = 230;  // second column of the legend, from kLeft

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(Printable(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Maps a step and a balancedness to a place in the picture.
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

// A line with one point for each `per_point` steps, at their middle and mean; no point for steps
// without tokens.
std::string Curve(const std::vector<std::optional<double>>& series, int64_t per_point,
                  const Axes& axes, const char* colour) {
  std::string points;
  const auto size = std::ssize(series);
  for (int64_t begin = 0; begin < size; begin += per_point) {
    const int64_t end = std::min(begin + per_point, size);
    FigureMean mean;
    for (int64_t step = begin; step < end; ++step) mean.Add(series[static_cast<size_t>(step)]);
    if (!mean.Value()) continue;
    absl::StrAppendFormat(&points, "%.1f,%.1f ", axes.X(static_cast<double>(begin + end) / 2),
                          axes.Y(*mean.Value()));
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
  for (int tenths = 10; tenths / 10. > axes.lowest - 0.01; --tenths) {
    const double value = tenths / 10.;
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
    absl::StrAppendFormat(&text,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                          "fill=\"#000\" fill-opacity=\"0.08\"/>\n",
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

std::optional<double> Mean(const std::vector<std::optional<double>>& series) {
  FigureMean mean;
  for (const std::optional<double>& figure : series) mean.Add(figure);
  return mean.Value();
}

std::string Key(double x, double y, const char* colour, const std::string& text) {
  return SvgLine(x, y, x + 22, y, absl::StrCat("stroke-width=\"3\" stroke=\"", colour, "\"")) +
         Text(x + 28, y + 4, "start", text);
}

// A line of the picture, with its place in the legend.
struct PictureLine {
  const std::vector<std::optional<double>>& series;
  const char* colour;
  const char* name;
  int column;
  int row;
};

// The run last, above the others.
std::vector<PictureLine> LinesOf(const RunReview& review) {
  if (review.split == SplitMode::kEqual) {
    return {{review.without_eplb_series, kWithoutColour, "without EPLB", 1, 0},
            {review.run_series, kRunColour, "this run", 0, 0}};
  }
  return {{review.without_eplb_series, kWithoutColour, "without EPLB", 0, 1},
          {review.hindsight_split_series, kHindsightColour, "hindsight", 1, 0},
          {review.equal_shares_series, kEqualSharesColour, "equal shares, same placements", 1, 1},
          {review.run_series, kRunColour, "this run", 0, 0}};
}

}  // namespace

std::string ReportPicture(const std::string& job, const RunReview& review) {
  const std::vector<PictureLine> lines = LinesOf(review);
  double lowest = 1;
  for (const PictureLine& line : lines) {
    for (const auto& figure : line.series) lowest = std::min(lowest, figure.value_or(1));
  }
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
  for (const PictureLine& line : lines) {
    svg += Key(kLeft + line.column * kSecondColumn, kLegend + line.row * kLegendRow, line.colour,
               absl::StrCat(line.name, ", mean ", FigureText(Mean(line.series), 3)));
  }
  const double mark = kLeft + 2 * kSecondColumn + 34;
  absl::StrAppendFormat(&svg, "<path d=\"M%.1f,%.1f l-4,8 h8 z\" fill=\"%s\"/>\n", mark,
                        kLegend - 4, kRunColour);
  const std::string points =
      per_point == 1 ? "" : absl::StrCat("; a point is the mean of ", per_point, " steps");
  svg += Text(mark + 12, kLegend + 4, "start", absl::StrCat("experts moved", points));
  svg += Grid(axes);
  svg += Marks(review, axes);
  for (const PictureLine& line : lines) svg += Curve(line.series, per_point, axes, line.colour);
  return svg + "</svg>\n";
}

}  // namespace eplb::cli
