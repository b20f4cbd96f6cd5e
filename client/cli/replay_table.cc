// The table form of a replay.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/text.h"
#include "client/cli/replay.h"
#include "client/cli/text.h"
#include "placement/decision/rebalance.h"
#include "placement/figure_mean.h"

namespace eplb::cli {
namespace {

constexpr size_t kMaxRebalances = 12;  // rows of rebalances
constexpr int kStripHeight = 4;        // lines
constexpr int kReplayLabel = 14;       // columns before a chart

std::string ReplayHeading(const ReplayCommandOptions& options, const Topology& topology,
                          const ReplayResult& result, const Terminal& terminal) {
  const std::string name = absl::StrCat("Replay by ", options.frame.policy.name);
  const std::string windows = absl::StrCat(
      ", ", Counted(result.rows.size(), "window"), ": decided every ",
      options.every == 1 ? "window" : Counted(options.every, "window"), " on ",
      options.frame.policy.chooses
          ? "what its back-test chose"
          : absl::StrCat("the last ", Counted(options.history.value_or(kDefaultHistory), "window"),
                         " (", options.window_rule(), ")"));
  std::string text = absl::StrCat(Paint(terminal, Colour::kBold, name),
                                  Wrapped(windows, terminal.width - DisplayWidth(name), 2), "\n",
                                  Paragraph(ShapeText(topology), terminal));
  std::string prices = "Costs: none, every gain of --min-gain is taken";
  if (options.costs.expert_bytes > 0) {
    prices = absl::StrCat("Costs: ", BytesText(options.costs.expert_bytes),
                          " an expert over links of ", LinksText(options.costs));
    if (options.costs.training) absl::StrAppend(&prices, ", replicas priced as in training");
  }
  const std::string split =
      options.split == "batch"
          ? "Split: each window exactly among its replicas; decisions aim at that\n"
          : "";
  return absl::StrCat(text, Paragraph(prices, terminal), split);
}

std::string Summary(const ReplaySummary& summary, const Terminal& terminal) {
  if (!summary.balancedness_mean) {
    return absl::StrCat(Counted(summary.rebalances, "rebalance"),
                        ". No window has tokens: there is nothing to compare.\n");
  }
  Table table({"", ">without EPLB", ">replay"});
  table.rows = {
      {"balancedness (mean / max GPU load), mean",
       FigureText(summary.balancedness_without_eplb_mean), FigureText(summary.balancedness_mean)},
      {"seconds of the fullest GPUs", SecondsText(summary.without_eplb_seconds),
       SecondsText(Finite(summary.without_eplb_seconds - summary.seconds_saved))},
      {"seconds of migrations and replicas", "0 s", SecondsText(summary.seconds_spent)}};
  const double net = Finite(summary.seconds_saved - summary.seconds_spent);
  const double whole = summary.without_eplb_seconds;
  const double share = whole > 0 ? net / whole : 0;
  const std::string verdict = absl::StrFormat(
      "%s, %s, %s moved. Net: %s %s, %.2f %% of the time without EPLB.",
      Counted(summary.rebalances, "rebalance"), Counted(summary.transfers, "transfer"),
      BytesText(summary.bytes), SecondsText(std::abs(net)), net < 0 ? "lost" : "saved",
      100 * std::abs(share));
  return absl::StrCat(FormatTable(table, terminal), "\n",
                      Paragraph(verdict, terminal, 2, net < 0 ? Colour::kYellow : Colour::kGreen));
}

// Means of neighbours, so that one column stands for several windows; 0, an empty column, if none
// of them has tokens.
std::vector<double> Thinned(const std::vector<ReplayRow>& rows,
                            std::optional<double> ReplayRow::*field, size_t columns) {
  const size_t per_column = (rows.size() + columns - 1) / columns;
  std::vector<double> means;
  for (size_t begin = 0; begin < rows.size(); begin += per_column) {
    const size_t end = std::min(begin + per_column, rows.size());
    FigureMean mean;
    for (size_t t = begin; t < end; ++t) mean.Add(rows[t].*field);
    means.push_back(mean.Value().value_or(0));
  }
  return means;
}

std::string Chart(const ReplayResult& result, const Terminal& terminal) {
  const int width = terminal.width - kReplayLabel;
  std::string text = absl::StrCat(Paint(terminal, Colour::kBold, "Balancedness"),
                                  " of the windows from left to right; full height is 1\n");
  const std::pair<const char*, std::optional<double> ReplayRow::*> series[] = {
      {"without EPLB", &ReplayRow::balancedness_without_eplb},
      {"replay", &ReplayRow::balancedness}};
  for (const auto& [name, field] : series) {
    const std::vector<double> values =
        Thinned(result.rows, field, static_cast<size_t>(std::max(width, 1)));
    const std::vector<std::string> lines = ColumnChart(values, 1, kStripHeight, width, terminal);
    for (size_t i = 0; i < lines.size(); ++i) {
      const Colour colour = field == &ReplayRow::balancedness ? Colour::kGreen : Colour::kYellow;
      absl::StrAppend(&text,
                      absl::StrFormat("%-*s", kReplayLabel, i + 1 == lines.size() ? name : ""),
                      Paint(terminal, colour, lines[i]), "\n");
    }
  }
  return text;
}

std::string Rebalances(const ReplayResult& result, const Terminal& terminal) {
  std::string text = Heading("Rebalances", terminal);
  Table table({">before window", ">transfers", ">moved", ">migration", ">balancedness"});
  for (size_t t = 0; t < result.rows.size(); ++t) {
    const ReplayRow& row = result.rows[t];
    if (!row.rebalanced || table.rows.size() == kMaxRebalances) continue;
    table.rows.push_back({Grouped(t), Grouped(row.transfers), BytesText(row.bytes),
                          SecondsText(row.migration_seconds), FigureText(row.balancedness)});
  }
  if (table.rows.empty()) return text + "none\n";
  text += FormatTable(table, terminal);
  const int64_t more = result.summary.rebalances - std::ssize(table.rows);
  if (more > 0) absl::StrAppend(&text, "and ", Grouped(more), " more (-o json has them all)\n");
  return text;
}

// Neighbouring windows whose decisions came down to the same, or one rebalance.
struct Stretch {
  size_t first = 0;
  size_t last = 0;
  RebalanceRule rule = RebalanceRule::kNoChange;
  bool rebalanced = false;
  const std::string* reason = nullptr;  // reason of the last decision
};

std::vector<Stretch> StretchesOf(const ReplayResult& result) {
  std::vector<Stretch> stretches;
  for (size_t t = 0; t < result.rows.size(); ++t) {
    const ReplayRow& row = result.rows[t];
    if (!row.rule) {  // no decision was due: as the one before
      if (!stretches.empty() && !stretches.back().rebalanced) stretches.back().last = t;
      continue;
    }
    const bool joins = !stretches.empty() && !row.rebalanced && !stretches.back().rebalanced &&
                       stretches.back().rule == *row.rule;
    if (!joins) stretches.push_back({.first = t, .rule = *row.rule, .rebalanced = row.rebalanced});
    stretches.back().last = t;
    stretches.back().reason = &row.reason;
  }
  return stretches;
}

// The stretches that explain most of the chart, in its order: the longest, then the earliest.
std::vector<Stretch> MostTelling(std::vector<Stretch> stretches) {
  if (stretches.size() <= kMaxRebalances) return stretches;
  std::ranges::stable_sort(stretches, [](const Stretch& a, const Stretch& b) {
    return a.last - a.first > b.last - b.first;
  });
  stretches.resize(kMaxRebalances);
  std::ranges::sort(stretches,
                    [](const Stretch& a, const Stretch& b) { return a.first < b.first; });
  return stretches;
}

std::string Why(const ReplayResult& result, const Terminal& terminal) {
  const std::vector<Stretch> all = StretchesOf(result);
  if (all.empty()) return "";
  std::string text = "\n" + Heading("Why", terminal);
  const std::vector<Stretch> shown = MostTelling(all);
  for (const Stretch& stretch : shown) {
    const std::string windows =
        stretch.first == stretch.last
            ? absl::StrCat("window ", stretch.first)
            : absl::StrCat("windows ", stretch.first, "..", stretch.last, ", the last");
    text += Paragraph(absl::StrCat(windows, ": ", *stretch.reason), terminal);
  }
  const auto more = static_cast<int64_t>(all.size() - shown.size());
  if (more > 0) {
    absl::StrAppend(&text, "and ", Counted(more, "shorter row"), " (-o json has every decision)\n");
  }
  return text;
}

}  // namespace

std::string ReplayToTable(const ReplayCommandOptions& options, const Topology& topology,
                          const ReplayResult& result, const Terminal& terminal) {
  return absl::StrCat(ReplayHeading(options, topology, result, terminal), "\n",
                      Summary(result.summary, terminal), "\n", Chart(result, terminal), "\n",
                      Rebalances(result, terminal), Why(result, terminal));
}

}  // namespace eplb::cli
