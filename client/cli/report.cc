// `eplbctl report`: sums up a job that a daemon knows, or checks and sums up the log directory of a
// run of the demonstration trainer.
#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/page_documents.h"
#include "client/cli/report_forms.h"
#include "client/cli/run_review.h"
#include "client/cli/text.h"
#include "client/run_log/run_directory.h"
#include "proto/wire/message_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string ToJson(const RunDirectory& run, const v1::RunReview& review) {
  Json json = wire::ToJson(review);
  json["switches"] = SwitchesToJson(run.report.switches);
  json["decisions"] = Json::array();
  for (const v1::RunDecision& decision : review.decisions()) {
    json["decisions"].push_back(DecisionJson(decision));
  }
  return wire::DumpJson(json, 1) + "\n";
}

void CheckLeastFigures(const ReportOptions& options, v1::RunReview& review) {
  if (review.rebalances() < options.min_rebalances) {
    review.add_problems(absl::StrCat(Counted(review.rebalances(), "rebalance"),
                                     " committed, expected at least ", options.min_rebalances));
  }
  if (!options.min_gain.has_value()) return;
  const v1::RunBalancedness& balancedness = review.balancedness();
  if (!balancedness.has_run() || !balancedness.has_without_eplb()) {
    review.add_problems("no step has tokens, so that there is no gain of balancedness");
    return;
  }
  const double gain = balancedness.run() - balancedness.without_eplb();
  if (!(gain >= *options.min_gain)) {
    review.add_problems(
        absl::StrFormat("balancedness is %.4f above that without EPLB, expected at least %.4f",
                        gain, *options.min_gain));
  }
}

// Returns a flag that needs a directory; empty: none was given.
std::string FlagOfDirectories(const ReportOptions& options) {
  if (!options.html.empty()) return "--html";
  if (!options.events.empty()) return "--events";
  if (options.min_rebalances > 0) return "--min-rebalances";
  if (options.min_gain.has_value()) return "--min-gain";
  if (options.window_steps != ReportOptions().window_steps) return "--window-steps";
  return options.query.format == Format::kTrace ? "-o trace" : "";
}

// Reports a job from what the daemon knows of it, also once its run has ended.
Output ReportOfJob(const ReportOptions& options, const Terminal& terminal) {
  if (const std::string flag = FlagOfDirectories(options); !flag.empty()) {
    return InvalidInput(flag, " needs the directory of a run in place of --job");
  }
  constexpr uint32_t kPlansShown = 10;
  v1::JobStatus job;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options.query, options.job, v1::GetJobRequest(), &job).status());
  v1::ListPlansRequest request;
  request.set_limit(kPlansShown);
  v1::ListPlansResponse plans;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options.query, options.job, request, &plans).status());
  Json document = wire::ToJson(job);
  document.erase("ranks");
  document["plans"] = wire::ToJson(plans)["plans"];
  const std::string json = wire::DumpJson(document, 1) + "\n";
  EPLB_RETURN_IF_ERROR(WriteOutput(options.out, json));
  if (options.query.format == Format::kJson) return json;
  std::string text = JobReport(job, "", terminal);
  if (!plans.plans().empty()) absl::StrAppend(&text, "\n", PlansText(plans, terminal));
  return text;
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

nlohmann::ordered_json DecisionJson(const v1::RunDecision& decision) {
  const v1::Plan& plan = decision.plan();
  Json json = KnownJson(plan);
  Json further = wire::ToJson(decision);
  further.erase("plan");
  json.update(further);
  // The names of two figures before a run's decision had those of a daemon's.
  json["decision"] = plan.plan();
  json["bytes_moved"] = plan.received_bytes();
  return json;
}

Output RunReportCommand(const ReportOptions& options, const Terminal& terminal) {
  if (options.job.empty() && options.directory.empty()) {
    return InvalidInput("DIR is missing; for a job of the daemon give --job");
  }
  if (!options.job.empty() && !options.directory.empty()) {
    return InvalidInput("DIR and --job were given, expected one of them");
  }
  if (!options.job.empty()) return ReportOfJob(options, terminal);
  if (options.window_steps < 1) return InvalidInput("--window-steps must be at least 1");
  if (options.min_gain.has_value() && !(*options.min_gain >= 0 && *options.min_gain <= 1)) {
    return InvalidInput("--min-gain is ", *options.min_gain, ", expected 0..1");
  }
  std::error_code error;
  if (!std::filesystem::is_directory(options.directory, error)) {
    return InvalidInput(options.directory, " is not a directory; for a job of the daemon give ",
                        "--job");
  }
  if (options.query.format == Format::kTrace) return TraceOf(options);
  EPLB_ASSIGN_OR_RETURN(RunDirectory run, AsUsage(ReadRunDirectory(options.directory)));
  if (!options.events.empty()) {
    EPLB_ASSIGN_OR_RETURN(run.events, AsUsage(ReadEventsFile(options.events, run.report.job)));
  }
  EPLB_ASSIGN_OR_RETURN(v1::RunReview review, AsUsage(ReviewRun(run, options.window_steps)));
  CheckLeastFigures(options, review);
  const std::string json = ToJson(run, review);
  std::string page;
  if (!options.html.empty()) {
    EPLB_ASSIGN_OR_RETURN(const Json documents, AsUsage(RunPage(run, review, options.directory)));
    EPLB_ASSIGN_OR_RETURN(page, HtmlReport(documents));
  }
  EPLB_RETURN_IF_ERROR(WriteOutput(options.out, json));
  EPLB_RETURN_IF_ERROR(WriteOutput(options.html, page));
  return {review.problems().empty() ? kOk : kConditionNotMet,
          options.query.format == Format::kJson ? json : ReportText(run, review, terminal), ""};
}

void AddReport(const Flags& root) {
  auto [flags, options] = AddCommand<ReportOptions>(
      root, "report", "Summarise a job, or check the log directory of a run", &RunReportCommand);
  flags.Text("directory,--run", "DIR", options.directory,
             "Directory that eplb-trainer --log-dir and --report-json wrote");
  AddJobOption(flags, options.job, "Report this job of the daemon, in place of DIR", "--job");
  AddInteger(flags, "--window-steps", "N", options.window_steps,
             "Steps in a window of the hindsight line and of --html [50]");
  AddCount(flags, "--min-rebalances", "N", options.min_rebalances,
           "Fail if the run has fewer rebalances [0]");
  AddFraction(flags, "--min-gain", options.min_gain,
              "Fail if the balancedness gained over that without EPLB is lower");
  flags.Text("--events", "FILE", options.events,
             "Audit log, from `eplbctl get events --limit 1000 -o json` [DIR/events.json]");
  flags.Text("--out", "FILE", options.out, "Write the report as JSON to this file");
  flags.Text("--html", "FILE", options.html,
             "Write the web page of the run to this file, for a browser without a daemon");
  AddQueryOptions(flags, options.query, {kNotFound, kConditionNotMet}, Formats::kWithTrace);
  flags.SetFooter(absl::StrCat(
      "Examples:\n"
      "  eplbctl report --job train\n"
      "  eplbctl report build/demo --out report.json --html report.html\n"
      "  eplbctl report build/demo -o trace > trace.json   open it in ui.perfetto.dev\n"
      "-o trace needs only the rank-*.jsonl of any job's directory, and checks nothing.\n"
      "Exit 8: something in the logs does not hold.\n",
      flags.footer()));
}

}  // namespace eplb::cli
