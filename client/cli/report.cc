// `eplbctl report`: checks and sums up what a run of the demonstration trainer left in its log
// directory.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/errors.h"
#include "base/json_or_null.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/page_documents.h"
#include "client/cli/report_forms.h"
#include "client/cli/run_review.h"
#include "client/cli/text.h"
#include "client/run_log/run_directory.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

// The seconds of a row that has none are 0: they were neither measured nor modelled.
Json SecondsJson(double seconds) { return seconds > 0 ? Json(seconds) : Json(nullptr); }

Json ToJson(const RunRow& row) {
  return {{"balancedness", JsonOrNull(row.balancedness)},
          {"slowdown", JsonOrNull(row.slowdown)},
          {"peak_tokens", row.peak_tokens},
          {"step_seconds", SecondsJson(row.step_seconds)},
          {"total_seconds", SecondsJson(row.total_seconds)},
          {"transfers", row.transfers},
          {"bytes_moved", row.bytes.has_value() ? Json(*row.bytes) : Json(nullptr)}};
}

Json ToJson(const RunTime& time) {
  return {{"measured_seconds", time.measured_seconds},
          {"boundary_seconds", time.boundary_seconds},
          {"switch_seconds", time.switch_seconds},
          {"longest_pause_seconds", time.longest_pause_seconds},
          {"modelled", time.modelled},
          {"steps_over_model", time.steps_over_model}};
}

Json ToJson(const RunDecision& decision) {
  return {{"decision", decision.decision},
          {"policy", decision.policy},
          {"asked_by", decision.asked_by},
          {"reason", decision.reason},
          {"decided_first_step", decision.decided_first_step},
          {"decided_last_step", decision.decided_last_step},
          {"switch_steps", decision.switch_steps},
          {"bytes_moved", decision.bytes_moved},
          {"pause_seconds", decision.pause_seconds},
          {"balancedness_before", JsonOrNull(decision.before)},
          {"balancedness_computed", JsonOrNull(decision.computed)},
          {"balancedness_until_next", JsonOrNull(decision.until_next)},
          {"until_next_first_step", decision.until_next_first_step},
          {"until_next_last_step", decision.until_next_last_step}};
}

Json ToJson(const OperatorReview& operators) {
  Json actions = Json::array();
  for (const OperatorAction& action : operators.actions) {
    actions.push_back({{"step", action.step},
                       {"name", action.name},
                       {"actor", action.actor},
                       {"reason", action.reason},
                       {"before", action.before},
                       {"after", action.after}});
  }
  Json held_back = Json::array();
  for (const HeldBack& stretch : operators.held_back) {
    held_back.push_back({{"first_step", stretch.first_step},
                         {"last_step", stretch.last_step},
                         {"why", stretch.why}});
  }
  return {{"actions", std::move(actions)}, {"held_back", std::move(held_back)}};
}

std::string FormulaOf(const RunReview& review) {
  return absl::StrCat(
      "mean(gpu load)/max(gpu load), mean over layers and steps from the first switch on",
      review.split == SplitMode::kBatch
          ? ", run and split_hindsight with an exact split of each step, the others in equal shares"
          : "",
      review.leaves_steps_out() ? ", without the steps in operators.held_back" : "");
}

std::string ToJson(const RunDirectory& run, const RunReview& review) {
  Json json = {{"format", "eplb.report.v1"},
               {"job", run.report.job},
               {"run_id", run.report.run_id},
               {"ranks", run.histories.size()},
               {"steps", review.steps},
               {"split", wire::SplitName(review.split)},
               {"rebalances", review.rebalances},
               {"first_switch_step", review.first_switch_step},
               {"time", ToJson(review.time)},
               {"time_saved", review.time_saved() ? Json(*review.time_saved()) : Json()},
               {"balancedness",
                {{"formula", FormulaOf(review)},
                 {"run", JsonOrNull(review.run.balancedness)},
                 {"without_eplb", JsonOrNull(review.without_eplb.balancedness)},
                 {"static", JsonOrNull(review.unmoved.balancedness)},
                 {"deepseek_same_windows", JsonOrNull(review.policy.balancedness)},
                 {"deepseek_hindsight", JsonOrNull(review.hindsight.balancedness)},
                 {"hindsight_window_steps", review.window_steps},
                 {"largest_difference_to_reported", review.largest_difference}}},
               {"comparison",
                {{"first_step", review.compared_first_step},
                 {"steps", review.compared_steps},
                 {"run", ToJson(review.run)},
                 {"without_eplb_predicted", ToJson(review.without_eplb)},
                 {"static_predicted", ToJson(review.unmoved)},
                 {"deepseek_same_windows_predicted", ToJson(review.policy)},
                 {"deepseek_hindsight_predicted", ToJson(review.hindsight)}}},
               {"gpu_loads",
                {{"layer", review.worst_layer},
                 {"static", review.gpu_loads_unmoved},
                 {"run", review.gpu_loads_run}}},
               {"bytes_verified", run.report.bytes_verified},
               {"decisions", Json::array()},
               {"operators", run.events.has_value() ? ToJson(review.operators) : Json(nullptr)},
               {"switches", Json::array()},
               {"problems", review.problems}};
  if (review.split == SplitMode::kBatch) {
    json["balancedness"]["equal_shares"] = JsonOrNull(review.equal_shares.balancedness);
    json["balancedness"]["split_hindsight"] = JsonOrNull(review.hindsight_split.balancedness);
    json["comparison"]["equal_shares_predicted"] = ToJson(review.equal_shares);
    json["comparison"]["split_hindsight_predicted"] = ToJson(review.hindsight_split);
  }
  for (const RunDecision& decision : review.decisions) {
    json["decisions"].push_back(ToJson(decision));
  }
  for (const SwitchRecord& change : run.report.switches) {
    json["switches"].push_back({{"step", change.step},
                                {"version", change.version},
                                {"decision", change.decision},
                                {"reason", change.reason},
                                {"bytes_moved", change.bytes_moved},
                                {"pause_seconds", change.pause_seconds},
                                {"bytes_verified", change.bytes_verified}});
  }
  return wire::DumpJson(json, 1) + "\n";
}

void CheckLeastFigures(const ReportOptions& options, RunReview& review) {
  if (review.rebalances < options.min_rebalances) {
    review.problems.push_back(absl::StrCat(Counted(review.rebalances, "rebalance"),
                                           " committed, expected at least ",
                                           options.min_rebalances));
  }
  if (!options.min_gain.has_value()) return;
  if (!review.run.balancedness || !review.without_eplb.balancedness) {
    review.problems.emplace_back("no step has tokens, so that there is no gain of balancedness");
    return;
  }
  const double gain = *review.run.balancedness - *review.without_eplb.balancedness;
  if (!(gain >= *options.min_gain)) {
    review.problems.push_back(
        absl::StrFormat("balancedness is %.4f above that without EPLB, expected at least %.4f",
                        gain, *options.min_gain));
  }
}

// Prints the ranks' logs alone, which jobs of any trainer have.
Output TraceOf(const ReportOptions& options) {
  const bool checks = options.min_rebalances > 0 || options.min_gain.has_value();
  const bool writes = !options.out.empty() || !options.html.empty();
  if (checks || writes || !options.events.empty()) {
    return InvalidInput(
        "-o trace prints the ranks' logs alone: --events, --out, --html, --min-rebalances "
        "and --min-gain need another -o");
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<RankTimeline> timelines,
                        AsUsage(ReadTimelines(options.directory)));
  const bool any = std::ranges::any_of(
      timelines, [](const auto& timeline) { return !timeline.boundaries.empty(); });
  return {kOk, RunTrace(options.directory, timelines),
          any ? ""
              : absl::StrCat(options.directory,
                             ": no rank logged a boundary at which it was PREPARED")};
}

}  // namespace

Output RunReportCommand(const ReportOptions& options, const Terminal& terminal) {
  if (options.window_steps < 1) return InvalidInput("--window-steps must be at least 1");
  if (options.min_gain.has_value() && !(*options.min_gain >= 0 && *options.min_gain <= 1)) {
    return InvalidInput("--min-gain is ", *options.min_gain, ", expected 0..1");
  }
  if (options.format == Format::kTrace) return TraceOf(options);
  EPLB_ASSIGN_OR_RETURN(RunDirectory run, AsUsage(ReadRunDirectory(options.directory)));
  if (!options.events.empty()) {
    EPLB_ASSIGN_OR_RETURN(run.events, AsUsage(ReadEventsFile(options.events)));
  }
  EPLB_ASSIGN_OR_RETURN(RunReview review, AsUsage(ReviewRun(run, options.window_steps)));
  CheckLeastFigures(options, review);
  const std::string json = ToJson(run, review);
  std::string page;
  if (!options.html.empty()) {
    EPLB_ASSIGN_OR_RETURN(const Json documents, AsUsage(RunPage(run, review, options.directory)));
    EPLB_ASSIGN_OR_RETURN(page, HtmlReport(documents));
  }
  EPLB_RETURN_IF_ERROR(WriteOutput(options.out, json));
  EPLB_RETURN_IF_ERROR(WriteOutput(options.html, page));
  return {review.problems.empty() ? kOk : kConditionNotMet,
          options.format == Format::kJson ? json : ReportText(run, review, terminal), ""};
}

void AddReport(const Flags& root) {
  auto [flags, options] = AddCommand<ReportOptions>(
      root, "report", "Check a run's log directory and summarise the run", &RunReportCommand);
  flags
      .Text("directory", "DIR", options.directory,
            "Directory that eplb-trainer --log-dir and --report-json wrote")
      .Required();
  AddInteger(flags, "--window-steps", "N", options.window_steps,
             "Steps in a window of the hindsight line and of --html [50]");
  AddCount(flags, "--min-rebalances", "N", options.min_rebalances,
           "Fail if the run has fewer rebalances [0]");
  AddFraction(flags, "--min-gain", options.min_gain,
              "Fail if the balancedness gained over that without EPLB is lower");
  flags.Text("--events", "FILE", options.events,
             "Audit log, from `eplbctl get events -o json` [DIR/events.json]");
  flags.Text("--out", "FILE", options.out, "Write the report as JSON to this file");
  flags.Text("--html", "FILE", options.html,
             "Write the web page of the run to this file, for a browser without a daemon");
  AddFormat(flags, options.format, Formats::kWithTrace);
  flags.SetFooter(
      "Examples:\n"
      "  eplbctl report build/demo --out report.json\n"
      "  eplbctl report build/demo --html report.html\n"
      "  eplbctl report build/demo -o trace > trace.json   open it in ui.perfetto.dev\n"
      "-o trace needs only the rank-*.jsonl of any job's log directory, and checks nothing.\n"
      "Exit codes: 0 everything holds, 1 error, such as a file not written, 2 wrong flag or not a "
      "run,\n"
      "  8 something does not hold.");
}

}  // namespace eplb::cli
