#include "client/cli/report_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "client/cli/gpu_picture.h"
#include "client/cli/text.h"
#include "placement/figure_mean.h"

namespace eplb::cli {

namespace {

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

// Tenths of a second below a minute of differences matter: Seconds() would round them away.
std::string Total(double seconds) { return absl::StrFormat("%.1f s", seconds); }

std::string OneDecimal(double fraction) { return absl::StrFormat("%.1f %%", 100 * fraction); }

// "12.3 % less", "0.4 % more".
std::string MoreOrLess(double part) {
  return absl::StrCat(OneDecimal(std::abs(part)), part < 0 ? " more" : " less");
}

std::string FullParagraph(const std::string& text, const Terminal& terminal) {
  return absl::StrCat(Wrapped(text, terminal.width, 0), "\n");
}

std::string Title(const char* text, const Terminal& terminal) {
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, text));
}

std::string Heading(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  const Topology& shape = run.placements.front().placement.topology();
  return absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Run of job ", Printable(run.report.job))), ": ",
      Counted(static_cast<int64_t>(run.histories.size()), "rank"), ", ",
      Counted(review.steps, "step"), ", ", Counted(shape.num_layers(), "layer"), " of ",
      Counted(shape.num_experts(), "expert"), " in ", Counted(shape.num_slots(), "slot"), "\n\n");
}

bool SplitsBatches(const RunReview& review) { return review.split == SplitMode::kBatch; }

const RunRow& HindsightOf(const RunReview& review) {
  return SplitsBatches(review) ? review.hindsight_split : review.hindsight;
}

std::string Pauses(const RunReview& review) {
  size_t switches = 0;
  for (const RunDecision& decision : review.decisions) switches += decision.switch_steps.size();
  if (switches == 0) return "Nothing was switched.";
  return absl::StrCat("Of the measured time ", Seconds(review.time.switch_seconds),
                      " was spent in ", Counted(static_cast<int64_t>(switches), "pause"),
                      " to move experts (longest ", Seconds(review.time.longest_pause_seconds),
                      ").");
}

// The lines that a reader sees first: what rebalancing was worth.
std::string Speed(const RunReview& review, const Terminal& terminal) {
  const RunTime& time = review.time;
  if (!review.time_saved()) {
    return absl::StrCat(
        Paint(terminal, Colour::kBold, "No step has tokens: there is nothing to compare."), "\n",
        FullParagraph(Pauses(review), terminal));
  }
  if (!time.modelled) {
    const std::string lead =
        absl::StrCat("The fullest GPUs of all steps had ", MoreOrLess(*review.time_saved()),
                     " load than without EPLB.");
    return absl::StrCat(
        Paint(terminal, Colour::kBold, Wrapped(lead, terminal.width, 0)), "\n",
        FullParagraph(
            absl::StrCat("No speed-up was measured: these steps do not last in proportion to "
                         "their load (eplb-trainer --step-ms). They took ",
                         Total(time.measured_seconds), ". ", Pauses(review)),
            terminal));
  }
  const double without = review.without_eplb.total_seconds;
  const double ratio = time.measured_seconds > 0 ? without / time.measured_seconds : 1;
  const std::string lead = absl::StrCat(
      MoreOrLess(without > 0 ? 1 - time.measured_seconds / without : 0),
      " time than without EPLB: ", Total(time.measured_seconds), " measured, ", Total(without),
      " predicted for one slot per expert (", OneDecimal(std::abs(ratio - 1)),
      ratio < 1 ? " fewer" : " more", " steps per second).");
  const std::string hindsight =
      absl::StrCat(" Planned in hindsight, which is not possible in a real run: ",
                   Total(HindsightOf(review).total_seconds), ", predicted, without pauses.");
  return absl::StrCat(Paint(terminal, Colour::kBold, Wrapped(lead, terminal.width, 0)), "\n",
                      FullParagraph(absl::StrCat(Pauses(review), hindsight), terminal));
}

// What is measured, and what the predictions rest on.
std::string BasisText(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  if (!review.time.modelled || !review.time_saved()) return "";
  std::string text = absl::StrFormat(
      "Measured: rank 0's wall clock over all steps, without the checks after a switch. A step of "
      "this trainer sleeps: it lasts %s x the load of the layers' fullest GPUs / the mean load. "
      "Predicted: the same steps with the fullest GPUs' load under the other placement. So a step "
      "is experts alone here; where experts are half of a step, expect half of the gain.",
      Seconds(run.report.even_step_seconds));
  if (review.time.steps_over_model * 50 > review.steps) {
    absl::StrAppend(&text, " In ", review.time.steps_over_model, " of ", review.steps,
                    " steps this machine needed longer than that, whatever the placement: they "
                    "hide a part of the gain.");
  }
  return absl::StrCat("\n", FullParagraph(text, terminal));
}

std::string HeldBackText(const RunReview& review) {
  std::vector<std::string> stretches;
  for (const HeldBack& stretch : review.operators.held_back) {
    stretches.push_back(
        absl::StrCat(stretch.first_step, "..", stretch.last_step, " ", stretch.why));
  }
  return absl::StrCat(
      "Left out of the comparison are the steps in which operators held decisions "
      "back: ",
      absl::StrJoin(stretches, ", "), ".");
}

std::string Comparison(const RunReview& review, const Terminal& terminal) {
  const auto row = [&review](const std::string& name, const RunRow& one) {
    std::vector<std::string> cells = {name, FigureText(one.balancedness),
                                      FigureText(one.slowdown, 3)};
    if (review.time.modelled) cells.push_back(Seconds(one.step_seconds));
    cells.push_back(one.bytes.has_value() ? Megabytes(*one.bytes) : "-");
    return cells;
  };
  const std::string hindsight = absl::StrCat("hindsight, ", review.window_steps, " steps each");
  Table table{
      .heading = {"", "balancedness", "fullest GPU"},
      .right = {false, true, true, true, true},
      .rows = {row("without EPLB", review.without_eplb), row("static layout", review.unmoved)}};
  if (SplitsBatches(review)) {
    table.rows.push_back(row("equal shares, same placements", review.equal_shares));
    table.rows.push_back(row("this run", review.run));
  } else {
    table.rows.push_back(row("this run", review.run));
    table.rows.push_back(row("policy deepseek, same times", review.policy));
  }
  table.rows.push_back(row(hindsight, HindsightOf(review)));
  if (review.time.modelled) table.heading.push_back("step");
  table.heading.push_back("moved");
  table.right.resize(table.heading.size());
  std::string note =
      "Balancedness: mean / max GPU load; fullest GPU: its load / the mean load. Without EPLB each "
      "expert has one slot. Only the row of "
      "this run is measured; the others are predicted from its loads, a copied expert weighing "
      "what it weighed here.";
  if (SplitsBatches(review)) {
    note +=
        " Objective: exact split per batch. This run and hindsight split each step exactly; the "
        "static layout has equal shares.";
  } else {
    note += " Objective: equal shares.";
  }
  if (review.time.modelled) note += " Steps without their boundaries.";
  if (review.leaves_steps_out()) absl::StrAppend(&note, " ", HeldBackText(review));
  return absl::StrCat(Title("Comparison", terminal), " (mean of ",
                      Counted(review.compared_steps, "step"), ", ", review.compared_first_step,
                      "..", review.steps - 1, ")\n", FormatTable(table, terminal),
                      FullParagraph(note, terminal));
}

std::string StepRange(int64_t first, int64_t last) { return absl::StrCat(first, "..", last); }

// Whether a reader has to be told who decided: not when it was one policy each time.
bool NamesDeciders(const std::vector<RunDecision>& decisions) {
  return std::any_of(decisions.begin(), decisions.end(), [&](const RunDecision& one) {
    return !one.asked_by.empty() || one.policy != decisions.front().policy;
  });
}

std::string Decisions(const RunReview& review, const Terminal& terminal) {
  std::string text = absl::StrCat(Title("Decisions", terminal), ": promised and measured\n");
  if (review.decisions.empty()) return text + "none was put in force\n";
  const bool names = NamesDeciders(review.decisions);
  Table table{
      .heading = {"#", "on steps", "after", "moved", "pause", "was", "computed", "until next"},
      .right = {true, false, false, true, true, true, true, true},
      .rows = {}};
  if (names) table.heading.emplace_back("by");
  if (names) table.right.push_back(false);
  for (const RunDecision& one : review.decisions) {
    table.rows.push_back({one.decision == 0 ? "-" : absl::StrCat(one.decision),
                          StepRange(one.decided_first_step, one.decided_last_step),
                          absl::StrJoin(one.switch_steps, ", "), Megabytes(one.bytes_moved),
                          Seconds(one.pause_seconds), FigureText(one.before, 3),
                          FigureText(one.computed, 3), FigureText(one.until_next, 3)});
    if (names) table.rows.back().push_back(one.policy);
  }
  absl::StrAppend(
      &text, FormatTable(table, terminal),
      FullParagraph(
          std::string(SplitsBatches(review)
                          ? "Balancedness of summed loads, against each step's fullest GPU."
                          : "Balancedness of summed loads.") +
              " was: measured on the steps that were decided on; "
              "computed: of the new placement on the same load; until next: measured from the "
              "switch to the next one. pause: longest boundary of any rank.",
          terminal),
      Title("Why", terminal), "\n");
  for (const RunDecision& one : review.decisions) {
    std::string label = one.decision == 0 ? "" : absl::StrCat(one.decision, ": ");
    if (!one.asked_by.empty()) absl::StrAppend(&label, "asked by ", Printable(one.asked_by), ": ");
    absl::StrAppend(&text, Wrapped(label + Printable(one.reason), terminal.width, 2), "\n");
  }
  return text;
}

std::string Operators(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  const std::string title = absl::StrCat(Title("Operators", terminal), "\n");
  if (!run.events.has_value()) {
    return title +
           FullParagraph(
               "Pauses and settings are known to the daemon alone. To see them here: eplbctl get "
               "events --limit 1000 -o json > DIR/events.json",
               terminal);
  }
  if (review.operators.actions.empty()) return title + "changed nothing\n";
  std::string text = title;
  for (const OperatorAction& action : review.operators.actions) {
    const std::string when =
        action.step < 0 ? "before step 0" : absl::StrCat("after step ", action.step);
    std::string line = absl::StrCat(when, ": ", action.name);
    if (!action.actor.empty()) absl::StrAppend(&line, " by ", Printable(action.actor));
    absl::StrAppend(&line, ": ", Printable(action.reason));
    if (action.before != action.after) {
      absl::StrAppend(&line, " (", Printable(action.before), " -> ", Printable(action.after), ")");
    }
    absl::StrAppend(&text, Wrapped(line, terminal.width, 2), "\n");
  }
  return text;
}

std::string RunGpuLoads(const RunReview& review, const Terminal& terminal) {
  const std::vector<double>& loads = review.gpu_loads_run;
  const double mean =
      std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  if (!(mean > 0)) return "";  // no layer has tokens
  const std::string heading = absl::StrCat("GPU loads of layer ", review.worst_layer);
  const GpuPicture picture{.before_name = "static",
                           .after_name = "this run",
                           .before = review.gpu_loads_unmoved,
                           .after = loads,
                           .unusable = std::vector<bool>(loads.size()),
                           .mean = mean};
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, heading), ", steps ",
                      StepRange(review.compared_first_step, review.steps - 1), "; the mean is ",
                      Tokens(mean), " tokens\n", DrawGpuLoads(picture, terminal));
}

std::string Verdict(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  if (review.problems.empty()) {
    const std::string text =
        absl::StrCat("Verified: ", Megabytes(run.report.bytes_verified),
                     " of expert memory recomputed and equal; no invariant broken in the logs of ",
                     Counted(static_cast<int64_t>(run.histories.size()), "rank"),
                     "; reported balancedness equals the recomputed within ",
                     absl::StrFormat("%.1g", review.largest_difference), ".");
    return absl::StrCat("\n", Paint(terminal, Colour::kGreen, Wrapped(text, terminal.width, 2)),
                        "\n");
  }
  std::string text =
      absl::StrCat("\n", Paint(terminal, Colour::kRed, "Not verified"), ": ",
                   Counted(static_cast<int64_t>(review.problems.size()), "problem"), "\n");
  constexpr size_t kMaxProblems = 20;
  for (size_t i = 0; i < std::min(review.problems.size(), kMaxProblems); ++i) {
    absl::StrAppend(&text, "  ", review.problems[i], "\n");
  }
  if (review.problems.size() > kMaxProblems) {
    absl::StrAppend(&text, "  and ", review.problems.size() - kMaxProblems,
                    " more (-o json has them all)\n");
  }
  return text;
}

}  // namespace

std::string ReportText(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  return absl::StrCat(Heading(run, review, terminal), Speed(review, terminal),
                      BasisText(run, review, terminal), Comparison(review, terminal),
                      Decisions(review, terminal), Operators(run, review, terminal),
                      RunGpuLoads(review, terminal), Verdict(run, review, terminal));
}

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
constexpr double kSecondColumn = 230;  // of the legend, from kLeft

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(Printable(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
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

// A line with one point for each `per_point` steps, at their middle and mean. Steps without tokens
// have none.
std::string Curve(const std::vector<std::optional<double>>& series, int64_t per_point,
                  const Axes& axes, const char* colour) {
  std::string points;
  const auto size = static_cast<int64_t>(series.size());
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
  if (!SplitsBatches(review)) {
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
