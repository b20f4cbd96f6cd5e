// The table form of a plan.
#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/plan_report.h"
#include "client/cli/text.h"

namespace eplb::cli {
namespace {

constexpr size_t kMaxLayerRows = 10;
constexpr int32_t kMaxBarRows = 16;  // more GPUs become columns of a chart
constexpr int kChartHeight = 4;
constexpr int kMaxHalf = 70;  // columns of one side of the bars

std::string Fraction(double value) { return absl::StrFormat("%.4f", value); }

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::string Summary(const PlanReport& report, const Terminal& terminal) {
  const Topology& shape = report.placement.topology();
  std::string text = absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Plan by ", report.policy)), ", solved in ",
      Seconds(report.solve_seconds), "\n", Counted(shape.num_layers(), "layer"), " of ",
      Counted(shape.num_experts(), "expert"), " in ", Counted(shape.num_slots(), "slot"), " on ",
      Counted(shape.num_gpus(), "GPU"));
  if (shape.num_nodes() > 1) absl::StrAppend(&text, ", ", Counted(shape.num_nodes(), "node"));
  if (shape.num_groups() > 1) {
    absl::StrAppend(&text, ", ", Counted(shape.num_groups(), "expert group"));
  }
  text += "\n\n";
  const char* before = report.has_previous ? "previous" : "static";
  text += FormatTable(
      {.heading = {"", before, "plan", "lower bound"},
       .right = {false, true, true, true},
       .rows = {{"balancedness (mean / max GPU load), mean",
                 Fraction(report.before.mean_balancedness),
                 Fraction(report.after.mean_balancedness), ""},
                {"balancedness, worst layer", Fraction(report.before.min_balancedness),
                 Fraction(report.after.min_balancedness), ""},
                {"tokens of the fullest GPUs, all layers", Tokens(report.before.peak_load),
                 Tokens(report.after.peak_load), Tokens(Sum(report.bounds))}}},
      terminal);
  absl::StrAppend(&text, "\nGap to the bound: ", Percent(report.gap_mean), " mean, ",
                  Percent(report.gap_max),
                  " at most. Duplicates on a GPU: ", Grouped(report.duplicates), ".\n");
  if (report.has_previous) {
    absl::StrAppend(&text, "Moves: ", Counted(report.moves.transfers, "transfer"), ", ",
                    Grouped(report.moves.cross_node), " across nodes, at most ",
                    Grouped(report.moves.max_per_gpu), " into a GPU and layer; ",
                    Counted(report.moves.slots_changed, "slot"), " changed.\n");
  }
  return text;
}

// The layers to list: all, or those that the plan leaves least balanced, in rising order.
std::vector<size_t> LayersToShow(const PlanReport& report) {
  std::vector<size_t> layers(report.after.balancedness.size());
  std::iota(layers.begin(), layers.end(), 0);
  if (layers.size() <= kMaxLayerRows) return layers;
  std::stable_sort(layers.begin(), layers.end(), [&report](size_t a, size_t b) {
    return report.after.balancedness[a] < report.after.balancedness[b];
  });
  layers.resize(kMaxLayerRows);
  std::sort(layers.begin(), layers.end());
  return layers;
}

std::string Layers(const PlanReport& report, const Terminal& terminal) {
  const std::vector<size_t> layers = LayersToShow(report);
  const size_t all = report.after.balancedness.size();
  std::string text = Paint(
      terminal, Colour::kBold,
      layers.size() == all ? "Layers"
                           : absl::StrCat(layers.size(), " least balanced of ", all, " layers"));
  text += "\n";
  const std::string before = report.has_previous ? "previous" : "static";
  Table table{.heading = {"layer", before, "plan", "    " + before, "plan", "bound", "gap"},
              .right = std::vector<bool>(7, true),
              .rows = {}};
  for (const size_t layer : layers) {
    table.rows.push_back({absl::StrCat(layer), Fraction(report.before.balancedness[layer]),
                          Fraction(report.after.balancedness[layer]),
                          Tokens(report.before.max_gpu_load[layer]),
                          Tokens(report.after.max_gpu_load[layer]), Tokens(report.bounds[layer]),
                          Percent(report.gaps[layer])});
  }
  constexpr char kOver[] = "         balancedness           tokens of the fullest GPU";
  return absl::StrCat(text, Paint(terminal, Colour::kDim, kOver), "\n",
                      FormatTable(table, terminal));
}

std::vector<double> RowOf(const RealMatrix& loads, size_t layer) {
  const auto row = loads.row(static_cast<Eigen::Index>(layer));
  return {row.begin(), row.end()};
}

// Columns of GPUs from left to right, under each other before and after.
std::string ChartOf(const std::string& name, const std::vector<double>& loads, double full,
                    Colour colour, const Terminal& terminal) {
  constexpr int kLabel = 10;
  std::string text;
  bool begun = false;
  const std::vector<std::string> lines =
      ColumnChart(loads, full, kChartHeight, terminal.width - kLabel, terminal);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string line(absl::StripTrailingAsciiWhitespace(lines[i]));
    const bool last = i + 1 == lines.size();
    begun = begun || last || !line.empty();
    if (!begun) continue;  // lines above the highest column
    absl::StrAppend(&text, absl::StrFormat("%-*s", kLabel, last ? name : ""),
                    Paint(terminal, colour, line), "\n");
  }
  return text;
}

// GPU loads of the layer that was worst before.
std::string GpuLoads(const PlanReport& report, const Terminal& terminal) {
  const std::vector<double>& balancedness = report.before.balancedness;
  const auto worst = static_cast<size_t>(
      std::min_element(balancedness.begin(), balancedness.end()) - balancedness.begin());
  const std::vector<double> before = RowOf(report.before.gpu_loads, worst);
  const std::vector<double> after = RowOf(report.after.gpu_loads, worst);
  const double full = std::max(report.before.max_gpu_load[worst], report.after.max_gpu_load[worst]);
  const auto num_gpus = static_cast<double>(before.size());
  std::string text =
      absl::StrCat(Paint(terminal, Colour::kBold, absl::StrCat("GPU load of layer ", worst)),
                   ", the worst before: mean ", Tokens(Sum(after) / num_gpus), " tokens\n");
  const char* name = report.has_previous ? "previous" : "static";
  if (report.placement.topology().num_gpus() > kMaxBarRows) {
    absl::StrAppend(&text, ChartOf(name, before, full, Colour::kYellow, terminal), "\n",
                    ChartOf("plan", after, full, Colour::kGreen, terminal));
    absl::StrAppend(&text, std::string(10, ' '), "GPUs from left to right; full height is ",
                    Tokens(full), " tokens\n");
    return text;
  }
  const int half = std::min(kMaxHalf, (terminal.width - 8) / 2);
  const std::string heading = absl::StrFormat("GPU  %-*s   plan\n", half, name);
  return text + Paint(terminal, Colour::kDim, heading) + PairedBars(before, after, full, terminal);
}

}  // namespace

std::string PlanReportToTable(const PlanReport& report, const Terminal& terminal) {
  return absl::StrCat(Summary(report, terminal), "\n", Layers(report, terminal), "\n",
                      GpuLoads(report, terminal));
}

}  // namespace eplb::cli
