#include "client/cli/report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/run_review.h"
#include "client/cli/text.h"
#include "client/files/atomic_write.h"
#include "client/files/run_directory.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string ToJson(const RunDirectory& run, const RunReview& review) {
  Json json = {
      {"format", "eplb.report.v1"},
      {"job", run.report.job},
      {"incarnation", run.report.incarnation},
      {"ranks", run.histories.size()},
      {"steps", review.steps},
      {"rebalances", review.rebalances},
      {"first_switch_step", review.first_switch_step},
      {"balancedness",
       {{"formula",
         "mean(gpu load)/max(gpu load), mean over layers and steps from the first switch on"},
        {"run", review.run},
        {"static", review.unmoved},
        {"deepseek_same_windows", review.policy},
        {"deepseek_hindsight", review.hindsight},
        {"hindsight_window_steps", review.window_steps},
        {"largest_difference_to_reported", review.largest_difference}}},
      {"step_seconds", review.step_seconds},
      {"gpu_loads",
       {{"layer", review.worst_layer},
        {"static", review.gpu_loads_unmoved},
        {"run", review.gpu_loads_run}}},
      {"bytes_verified", run.report.bytes_verified},
      {"switches", Json::array()},
      {"problems", review.problems}};
  for (const SwitchRecord& change : run.report.switches) {
    json["switches"].push_back({{"step", change.step},
                                {"version", change.version},
                                {"reason", change.reason},
                                {"bytes_moved", change.bytes_moved},
                                {"pause_seconds", change.pause_seconds},
                                {"bytes_verified", change.bytes_verified}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

std::string Heading(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  const Topology& shape = run.placements.front().placement.topology();
  return absl::StrCat(Paint(terminal, Colour::kBold, absl::StrCat("Run of job ", run.report.job)),
                      ": ", Counted(static_cast<int64_t>(run.histories.size()), "rank"), ", ",
                      Counted(review.steps, "step"), ", ", Counted(shape.num_layers(), "layer"),
                      " of ", Counted(shape.num_experts(), "expert"), " in ",
                      Counted(shape.num_slots(), "slot"), "\n");
}

std::string Balancedness(const RunReview& review, const Terminal& terminal) {
  const auto row = [&review](const std::string& name, double value) -> std::vector<std::string> {
    return {name, absl::StrFormat("%.4f", value), absl::StrFormat("%+.4f", value - review.unmoved)};
  };
  const int64_t first = std::max<int64_t>(review.first_switch_step, 0);
  std::string text =
      absl::StrCat("\n", Paint(terminal, Colour::kBold, "Balancedness"),
                   " (mean / max GPU load, mean of steps ", first, "..", review.steps - 1, ")\n");
  text +=
      FormatTable({.heading = {"", "mean", "gain"},
                   .right = {false, true, true},
                   .rows = {row("static layout", review.unmoved), row("this run", review.run),
                            row("policy deepseek, same windows and switch steps", review.policy),
                            row(absl::StrCat("upper line: each ", review.window_steps,
                                             " steps planned in hindsight"),
                                review.hindsight)}},
                  terminal);
  absl::StrAppend(&text, "\nA step took ", Seconds(review.step_seconds),
                  " on the wall clock, checks after a switch left out.\n");
  return text;
}

// The chunks of one decision.
struct Rebalance {
  std::vector<std::string> steps;
  std::string reason;
  int64_t bytes = 0;
  double pause = 0;
};

std::string Rebalances(const RunReport& report, const Terminal& terminal) {
  std::map<std::pair<int64_t, int64_t>, Rebalance> rebalances;
  for (const SwitchRecord& change : report.switches) {
    Rebalance& rebalance = rebalances[{change.decided_first_step, change.decided_last_step}];
    rebalance.steps.push_back(absl::StrCat(change.step));
    rebalance.reason = change.reason;
    rebalance.bytes += change.bytes_moved;
    rebalance.pause = std::max(rebalance.pause, change.pause_seconds);
  }
  std::string text = absl::StrCat("\n", Paint(terminal, Colour::kBold, "Rebalances"), "\n");
  if (rebalances.empty()) return text + "none\n";
  Table table{.heading = {"decided on steps", "switched after", "moved", "pause"},
              .right = {false, false, true, true},
              .rows = {}};
  std::string reasons;
  for (const auto& [window, rebalance] : rebalances) {
    table.rows.push_back({absl::StrCat(window.first, "..", window.second),
                          absl::StrJoin(rebalance.steps, ", "), Megabytes(rebalance.bytes),
                          Seconds(rebalance.pause)});
    absl::StrAppend(&reasons, Wrapped(rebalance.reason, terminal.width, 2), "\n");
  }
  return absl::StrCat(text, FormatTable(table, terminal), "\n",
                      Paint(terminal, Colour::kBold, "Why"), "\n", reasons);
}

std::string GpuLoads(const RunReview& review, const Terminal& terminal) {
  const double full =
      *std::max_element(review.gpu_loads_unmoved.begin(), review.gpu_loads_unmoved.end());
  const int64_t first = std::max<int64_t>(review.first_switch_step, 0);
  return absl::StrCat(
      "\n", Paint(terminal, Colour::kBold, absl::StrCat("GPU loads of layer ", review.worst_layer)),
      " (tokens of steps ", first, "..", review.steps - 1, "; left static, right this run)\n",
      PairedBars(review.gpu_loads_unmoved, review.gpu_loads_run, full, terminal));
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

void CheckLeastFigures(const ReportOptions& options, RunReview& review) {
  if (review.rebalances < options.min_rebalances) {
    review.problems.push_back(absl::StrCat(Counted(review.rebalances, "rebalance"),
                                           " committed, expected at least ",
                                           options.min_rebalances));
  }
  const double gain = review.run - review.unmoved;
  if (options.min_gain > 0 && gain < options.min_gain) {
    review.problems.push_back(
        absl::StrFormat("balancedness is %.4f above the static layout's, expected at least %.4f",
                        gain, options.min_gain));
  }
}

}  // namespace

Output RunReportCommand(const ReportOptions& options, const Terminal& terminal) {
  if (options.window_steps < 1) {
    return UsageFailure(absl::InvalidArgumentError("--window-steps must be at least 1"));
  }
  const absl::StatusOr<RunDirectory> run = ReadRunDirectory(options.directory);
  if (!run.ok()) return UsageFailure(run.status());
  absl::StatusOr<RunReview> review = ReviewRun(*run, options.window_steps);
  if (!review.ok()) return UsageFailure(review.status());
  CheckLeastFigures(options, *review);
  const std::string json = ToJson(*run, *review);
  if (!options.out.empty()) {
    if (const absl::Status written = WriteFileAtomically(options.out, json); !written.ok()) {
      return Failure(kError, written);
    }
  }
  Output output{.exit_code = review->problems.empty() ? kOk : kConditionNotMet};
  output.out = options.format == Format::kJson
                   ? json
                   : absl::StrCat(Heading(*run, *review, terminal), Balancedness(*review, terminal),
                                  Rebalances(run->report, terminal), GpuLoads(*review, terminal),
                                  Verdict(*run, *review, terminal));
  return output;
}

void AddReport(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App& app =
      *root.add_subcommand("report", "Check and sum up what a run left in its log directory");
  app.add_option("directory", options->directory,
                 "What eplb-trainer --log-dir and --report-json wrote")
      ->required()
      ->type_name("DIR");
  app.add_option("--window-steps", options->window_steps,
                 "Steps planned at once in the upper line [50]")
      ->type_name("N");
  app.add_option("--min-rebalances", options->min_rebalances, "Fewer are a problem [0]")
      ->type_name("N");
  app.add_option("--min-gain", options->min_gain,
                 "Less balancedness gained over the static layout is a problem")
      ->type_name("X");
  app.add_option("--out", options->out, "Write the JSON form here")->type_name("FILE");
  AddFormat(app, options->format);
  app.footer(
      "Example:\n"
      "  eplbctl report build/demo --out report.json\n"
      "Exit codes: 0 everything holds, 1 error, as --out not written, 2 wrong flag or not a run,\n"
      "  8 something does not hold.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunReportCommand(*options, terminal); };
  });
}

}  // namespace eplb::cli
