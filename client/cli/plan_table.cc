// The table form of a plan.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/gpu_picture.h"
#include "client/cli/plan_report.h"
#include "client/cli/plan_text.h"
#include "client/cli/text.h"
#include "placement/decision/cost.h"

namespace eplb::cli {
namespace {

constexpr size_t kMaxLayerRows = 10;
constexpr size_t kMaxRunsNamed = 12;  // most runs of consecutive GPUs

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Loads of many layers, and those before the plan, may leave a double's range.
std::string LoadText(double load) { return Tokens(Finite(load)); }

const char* BeforeName(const PlanReport& report) {
  return report.has_previous ? "previous" : "static";
}

// The balancedness that a job gets: by batch where it splits each one, else of the whole load.
const Evaluation& GoalAfter(const PlanReport& report) {
  return report.batches_after.has_value() ? *report.batches_after : report.after;
}

const Evaluation& GoalBefore(const PlanReport& report) {
  return report.batches_before.has_value() ? *report.batches_before : report.before;
}

std::string PlanHeading(const PlanReport& report, const Terminal& terminal) {
  const std::string name = absl::StrCat("Plan by ", report.policy);
  return absl::StrCat(Paint(terminal, Colour::kBold, name),
                      report.shares.has_value() ? ", best split" : "", ", solved in ",
                      Seconds(report.solve_seconds), "\n",
                      Paragraph(ShapeText(report.placement.topology()), terminal));
}

// "GPUs 3, 7-9": those for which `is` holds; empty for none.
template <class Predicate>
std::string NameGpus(const PlanReport& report, Predicate is) {
  std::string text;
  size_t runs = 0;
  int32_t all = 0;
  for (int32_t gpu = 0; gpu < report.speeds.num_gpus(); ++gpu) {
    if (!is(GpuId{gpu})) continue;
    const int32_t first = gpu;
    while (gpu + 1 < report.speeds.num_gpus() && is(GpuId{gpu + 1})) ++gpu;
    all += gpu - first + 1;
    if (++runs > kMaxRunsNamed) continue;
    absl::StrAppend(&text, runs == 1 ? "" : ", ", first);
    if (gpu > first) absl::StrAppend(&text, "-", gpu);
  }
  if (runs > kMaxRunsNamed) text += ", ..";
  return all == 0 ? "" : absl::StrCat(Counted(all, "GPU"), " (", text, ")");
}

// The constraints of the plan other than its shape.
std::string Constraints(const PlanReport& report, const Terminal& terminal) {
  std::string text;
  const Topology& shape = report.placement.topology();
  if (report.hierarchy == Hierarchy::kStrict && shape.num_nodes() > 1) {
    text += Paragraph("Hierarchy strict: every expert group stays on one node.", terminal);
  }
  if (report.crossing.has_value()) {
    text += Paragraph(
        absl::StrCat("Hierarchy soft: ", Percent(report.crossing->mean),
                     " of tokens are served off the node of their expert group on average, ",
                     Percent(report.crossing->max), " at most in a layer."),
        terminal);
  }
  const auto unusable =
      NameGpus(report, [&report](GpuId gpu) { return !report.speeds.Usable(gpu); });
  if (!unusable.empty()) text += Paragraph(absl::StrCat("Unusable: ", unusable, "."), terminal);
  double slowest = GpuSpeeds::kMaxSpeed;
  double fastest = 0;
  for (const double speed : report.speeds.speeds()) {
    if (speed > 0) slowest = std::min(slowest, speed);
    fastest = std::max(fastest, speed);
  }
  if (slowest < fastest) {
    const auto slow = NameGpus(
        report, [&report, slowest](GpuId gpu) { return report.speeds.SpeedOf(gpu) == slowest; });
    text += Paragraph(absl::StrFormat("Speeds %.3g to %.3g, slowest: %s; loads are tokens / speed.",
                                      slowest, fastest, slow),
                      terminal);
  }
  return text;
}

// The rows of one kind of balancedness. of: which one, "" for the only one.
void AddBalancedness(const char* of, const Evaluation& before, const Evaluation& after,
                     Table& table) {
  const char* const formula = *of == '\0' ? " (mean / max GPU load)" : "";
  table.rows.push_back({absl::StrCat("balancedness", of, formula, ", mean"),
                        FigureText(before.mean_balancedness), FigureText(after.mean_balancedness),
                        ""});
  table.rows.push_back({absl::StrCat("balancedness", of, ", worst layer"),
                        FigureText(before.min_balancedness), FigureText(after.min_balancedness),
                        ""});
}

std::string MainTable(const PlanReport& report, const Terminal& terminal) {
  Table table({"", absl::StrCat(">", BeforeName(report)), ">plan", ">lower bound"});
  const bool batch = report.batches_after.has_value();
  if (batch) AddBalancedness(" by batch", GoalBefore(report), GoalAfter(report), table);
  AddBalancedness(batch ? " of the load" : "", report.before, report.after, table);
  table.rows.push_back({"load of the fullest GPUs, all layers", LoadText(report.before.peak_load),
                        LoadText(report.after.peak_load), LoadText(Sum(report.bound.bounds))});
  std::string text = FormatTable(table, terminal);
  if (!batch) return text;
  return absl::StrCat(
      text, "\n",
      Paragraph("Balancedness = mean / max GPU load. By batch: each window split exactly among the "
                "replicas, as a job with split = batch does. Of the load: the windows as one load, "
                "with the plan's best split for it.",
                terminal));
}

// "Planned on windows 0..1, scored on windows 2..3: balancedness 0.8123, worst layer 0.7001."
std::string LaterText(const LaterWindows& later) {
  return absl::StrCat(later.text, ": balancedness ", FigureText(later.evaluation.mean_balancedness),
                      ", worst layer ", FigureText(later.evaluation.min_balancedness), ".");
}

// Names the load that the figures are on.
std::string SampleText(const PlanReport& report) {
  const std::string own = "These figures are on the load that the plan was made for";
  if (!report.later) return absl::StrCat(own, "; later loads are less balanced.");
  return absl::StrCat(own, ". ", LaterText(*report.later));
}

// How far a plan is above what is proved; a clause.
std::string GapText(const BoundGaps& bound) {
  if (!bound.mean) return "No layer has load, so that there is neither balancedness nor gap";
  std::string gap = absl::StrCat("Above the proved bound: ", Percent(*bound.mean), " on average");
  constexpr double kShown = 5e-5;  // smaller gaps are printed as 0.00 %
  if (bound.max >= kShown) {
    const auto widest = std::ranges::find(bound.gaps, bound.max);
    absl::StrAppend(&gap, ", ", Percent(*bound.max), " at most, in layer ",
                    widest - bound.gaps.begin());
  }
  return gap;
}

// Describes the windows that were chosen as scenarios, and what they leave out.
std::string ChoiceText(const ScenarioChoice& choice) {
  std::string text = absl::StrCat(
      "The weight of a window is the number of windows that it represents. Between a window and "
      "the one that represents it, ",
      Percent(choice.mean_distance), " of tokens change their expert on average");
  if (choice.max_distance > 0) {
    absl::StrAppend(&text, ", ", Percent(choice.max_distance), " at most, in window ",
                    choice.farthest);
  }
  return text + ".";
}

// The balance under each of several loads, the objective, and what it guarantees for others.
std::string ScenarioText(const PlanReport& report, const ScenarioFigures& figures,
                         const Terminal& terminal) {
  Table table({"balancedness under", ">weight", absl::StrCat(">", BeforeName(report)), ">plan",
               ">worst layer", ">above bound", ">at most"});
  for (size_t k = 0; k < figures.names.size(); ++k) {
    const Evaluation& after = figures.after.scenarios[k];
    const BoundGaps& gaps = figures.gaps[k];
    table.rows.push_back({Shortened(Printable(figures.names[k]), kMostText),
                          absl::StrFormat("%g", figures.weights[k]),
                          FigureText(figures.before.scenarios[k].mean_balancedness),
                          FigureText(after.mean_balancedness), FigureText(after.min_balancedness),
                          Percent(gaps.mean.value_or(0)), Percent(gaps.max.value_or(0))});
  }
  const bool batch = report.batches_after.has_value();
  std::string text = absl::StrCat(
      FormatTable(table, terminal), "\n",
      Paragraph(absl::StrCat("Balancedness = mean / max GPU load",
                             batch ? ", each load split exactly among the replicas" : "",
                             ". The bounds are those of placements for one of the loads alone."),
                terminal),
      Paragraph(absl::StrCat(ScenarioObjectiveText(ObjectiveName(figures.objective),
                                                   figures.after.mean_objective, BeforeName(report),
                                                   figures.before.mean_objective),
                             " ", GapText(figures.gap), "."),
                terminal),
      Paragraph(absl::StrCat("Under any mixture of these loads, each layer is at least as balanced "
                             "as under the worst of them",
                             batch ? ", but for rounding to whole tokens" : "",
                             ". The mean over layers of a mixture is at least ",
                             FigureText(figures.after.mixtures_at_least),
                             ". A load that resembles none of them may be less balanced."),
                terminal));
  if (figures.choice.has_value()) text += Paragraph(ChoiceText(*figures.choice), terminal);
  if (report.later.has_value()) text += Paragraph(LaterText(*report.later), terminal);
  return text;
}

std::string Figures(const PlanReport& report, const Terminal& terminal) {
  std::string text =
      report.scenarios.has_value()
          ? ScenarioText(report, *report.scenarios, terminal)
          : absl::StrCat(MainTable(report, terminal), "\n", Paragraph(SampleText(report), terminal),
                         Paragraph(GapText(report.bound) + ".", terminal));
  const std::string duplicates = report.duplicates == 0
                                     ? "No GPU holds an expert twice."
                                     : absl::StrCat(Grouped(report.duplicates),
                                                    " replicas are beyond the first on their GPU.");
  text += Paragraph(duplicates, terminal);
  if (report.has_previous) {
    const MoveSummary& moves = report.moves;
    text += Paragraph(absl::StrCat("Moves: ", Counted(moves.transfers, "transfer"), ", ",
                                   Grouped(moves.cross_node), " of them across nodes, at most ",
                                   Grouped(moves.max_per_gpu), " into a GPU in a layer; ",
                                   Counted(moves.slots_changed, "slot"), " changed."),
                      terminal);
  }
  if (report.survival.has_value()) text += SurvivalText(*report.survival, terminal);
  if (report.loss.has_value()) text += LossText(*report.loss, terminal);
  return text;
}

// The layers to list: all, or those that the plan leaves least balanced, in rising order.
std::vector<size_t> LayersToShow(const std::vector<std::optional<double>>& balancedness) {
  std::vector<size_t> layers(balancedness.size());
  std::iota(layers.begin(), layers.end(), 0);
  if (layers.size() <= kMaxLayerRows) return layers;
  std::ranges::stable_sort(layers, [&balancedness](size_t a, size_t b) {
    return LessBalanced(balancedness[a], balancedness[b]);
  });
  layers.resize(kMaxLayerRows);
  std::ranges::sort(layers);
  return layers;
}

std::string LayersHeading(size_t shown, size_t all, const Terminal& terminal) {
  return Heading(
      shown == all ? "Layers" : absl::StrCat(shown, " least balanced of ", all, " layers"),
      terminal);
}

// For several loads: the objective of each layer.
std::string ScenarioLayers(const PlanReport& report, const ScenarioFigures& figures,
                           const Terminal& terminal) {
  std::vector<std::optional<double>> balance;  // rises where the objective falls
  for (const std::optional<double>& objective : figures.after.objective) {
    balance.push_back(objective ? std::optional(1 / *objective) : std::nullopt);
  }
  const std::vector<size_t> layers = LayersToShow(balance);
  Table table({">layer", absl::StrCat(">", BeforeName(report)), ">plan", ">bound", ">gap"});
  for (const size_t layer : layers) {
    const std::optional<double> gap = figures.gap.gaps[layer];
    table.rows.push_back({absl::StrCat(layer), FigureText(figures.before.objective[layer]),
                          FigureText(figures.after.objective[layer]),
                          gap ? FigureText(figures.gap.bounds[layer]) : "-",
                          gap ? Percent(*gap) : "-"});
  }
  const std::string over = absl::StrCat("         objective ", ObjectiveName(figures.objective));
  return absl::StrCat(LayersHeading(layers.size(), balance.size(), terminal),
                      Paint(terminal, Colour::kDim, over), "\n", FormatTable(table, terminal));
}

std::string Layers(const PlanReport& report, const Terminal& terminal) {
  const std::vector<size_t> layers = LayersToShow(GoalAfter(report).balancedness);
  std::string text = LayersHeading(layers.size(), report.after.balancedness.size(), terminal);
  const std::string before = BeforeName(report);
  Table table({">layer", ">" + before, ">plan", ">    " + before, ">plan", ">bound", ">gap"});
  for (const size_t layer : layers) {
    const std::optional<double> gap = report.bound.gaps[layer];
    table.rows.push_back({absl::StrCat(layer), FigureText(GoalBefore(report).balancedness[layer]),
                          FigureText(GoalAfter(report).balancedness[layer]),
                          LoadText(report.before.max_gpu_load[layer]),
                          Tokens(report.after.max_gpu_load[layer]),
                          Tokens(report.bound.bounds[layer]), gap ? Percent(*gap) : "-"});
  }
  const std::string over = report.batches_after.has_value()
                               ? "         balancedness by batch   load of the fullest GPU"
                               : "         balancedness            load of the fullest GPU";
  return absl::StrCat(text, Paint(terminal, Colour::kDim, over), "\n",
                      FormatTable(table, terminal));
}

std::vector<double> RowOf(const RealMatrix& loads, size_t layer) {
  std::vector<double> row;
  for (const double load : loads.row(static_cast<Eigen::Index>(layer))) row.push_back(Finite(load));
  return row;
}

// GPU loads of the layer that was worst before.
std::string GpuLoads(const PlanReport& report, const Terminal& terminal) {
  const auto& balancedness = report.before.balancedness;
  const auto worst = static_cast<size_t>(std::ranges::min_element(balancedness, LessBalanced) -
                                         balancedness.begin());
  const std::vector<double> before = RowOf(report.before.gpu_loads, worst);
  const std::vector<double> after = RowOf(report.after.gpu_loads, worst);
  std::vector<bool> unusable;
  double tokens = 0;
  for (int32_t gpu = 0; gpu < report.speeds.num_gpus(); ++gpu) {
    const double speed = report.speeds.SpeedOf(GpuId{gpu});
    unusable.push_back(speed == 0);
    tokens += after[static_cast<size_t>(gpu)] * speed;
  }
  // The load of every usable GPU if all were equally full; with equal speeds the mean.
  const double mean = tokens / report.speeds.total();
  if (!(mean > 0)) return "No layer has load.\n";
  const std::string heading = absl::StrCat("GPU loads of layer ", worst);
  return absl::StrCat(
      Paint(terminal, Colour::kBold, heading), ", least balanced before; the mean is ",
      Tokens(mean), " tokens\n",
      DrawGpuLoads({BeforeName(report), "plan", before, after, std::move(unusable), mean},
                   terminal));
}

}  // namespace

std::string PlanReportToTable(const PlanReport& report, const Terminal& terminal) {
  const std::string text =
      absl::StrCat(PlanHeading(report, terminal), Constraints(report, terminal), "\n",
                   Figures(report, terminal), "\n");
  if (report.scenarios.has_value()) {
    return text + ScenarioLayers(report, *report.scenarios, terminal);
  }
  return absl::StrCat(text, Layers(report, terminal), "\n", GpuLoads(report, terminal));
}

}  // namespace eplb::cli
