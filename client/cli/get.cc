// `eplbctl get`: ranks, windows, plans and events of a job; its flags, and those of `eplbctl
// status`.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/message_table.h"
#include "client/cli/plan_text.h"
#include "client/cli/text.h"
#include "client/cli/trace.h"
#include "client/cli/watch.h"
#include "proto/wire/message_json.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) { return wire::DumpJson(json) + "\n"; }

// "connected", "away 12.5 s", or how the rank ended.
std::string StateOf(const v1::RankStatus& rank) {
  if (rank.connected()) return "connected";
  if (rank.state() != v1::RANK_STATE_UNSPECIFIED && rank.state() != v1::RANK_STATE_AWAY) {
    return wire::EnumText(rank.state());
  }
  return absl::StrCat("away ", Seconds(rank.away_seconds()));
}

constexpr int kWindowChartHeight = 4;

// Steps between two windows of one run that no window covers; 0: none.
uint64_t StepsMissing(const v1::Window& before, const v1::Window& after) {
  const uint64_t next = before.last_step() + 1;
  const bool is_gap = before.run_id() == after.run_id() && after.first_step() > next;
  return is_gap ? after.first_step() - next : 0;
}

// With a line for steps that no window covers.
std::string WindowTable(const v1::ListWindowsResponse& response, const Terminal& terminal) {
  Table table = MessageTable(response.windows(), terminal);
  for (int i = response.windows_size() - 1; i > 0; --i) {
    const v1::Window& before = response.windows(i - 1);
    if (StepsMissing(before, response.windows(i)) == 0) continue;
    std::vector<std::string> cells(table.heading.size(), "-");
    cells.front() =
        absl::StrCat(before.last_step() + 1, "..", response.windows(i).first_step() - 1);
    cells.at(1) = "no window";
    table.rows.insert(table.rows.begin() + i, std::move(cells));
  }
  return FormatTable(std::move(table), terminal);
}

// A window without a figure, and a gap between two windows, is an empty column. Without any figure
// there is no chart.
std::string Chart(const v1::ListWindowsResponse& response, const Terminal& terminal) {
  const auto has_figure = [](const v1::Window& one) { return one.has_balancedness(); };
  if (std::ranges::none_of(response.windows(), has_figure)) {
    return "\nNo window is measured; eplbctl status names the cause\n";
  }
  std::vector<double> values;
  const v1::Window* before = nullptr;
  for (const v1::Window& window : response.windows()) {
    if (before != nullptr && StepsMissing(*before, window) > 0) values.push_back(0);
    values.push_back(window.balancedness());
    before = &window;
  }
  std::string text = "\nMeasured balancedness from left to right; full height is 1\n";
  for (const std::string& line :
       ColumnChart(values, 1, kWindowChartHeight, terminal.width, terminal)) {
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string PlanTable(const v1::ListPlansResponse& response, const Terminal& terminal) {
  return FormatTable(MessageTable(response.plans(), terminal, PlanWords()), terminal);
}

// The beginnings of the newest decisions' reasons, for which the table has no room.
std::string Reasons(const v1::ListPlansResponse& response) {
  constexpr int kShown = 3;
  std::string text = "\n";
  for (int i = 0; i < std::min(response.plans_size(), kShown); ++i) {
    absl::StrAppend(&text, ShortReason(PlanReason(response.plans(i))), "\n");
  }
  return text;
}

// "41  2026-11-21T10:02:03.123Z  committed  v12  version 12 (chunk 1 of 2) was .."
std::string EventLine(const v1::JobEvent& event, const Terminal& terminal) {
  std::string text =
      absl::StrCat(event.sequence(), "  ", wire::TimeText(event.unix_micros()), "  ",
                   Paint(terminal, Colour::kBold, Printable(event.name())), "  v", event.version());
  if (!event.actor().empty()) absl::StrAppend(&text, "  by ", Printable(event.actor()));
  absl::StrAppend(&text, "\n", Beside("", 2, Printable(event.reason()), terminal));
  if (!event.before().empty() || !event.after().empty()) {
    const std::string change =
        absl::StrCat(Printable(event.before()), " -> ", Printable(event.after()));
    absl::StrAppend(&text, "\n", Beside("", 2, change, terminal));
  }
  return text + "\n";
}

// Asks for a list of a job. to_text: (job, response) -> its text.
template <class Response, class Request, class ToText>
Output ListOutput(const GetOptions& options, Request request, const char* list,
                  const ToText& to_text) {
  request.set_limit(static_cast<uint32_t>(options.limit));
  Response response;
  EPLB_ASSIGN_OR_RETURN(const std::string job,
                        AskAboutJob(options.query, options.job, request, &response));
  if (options.query.format != Format::kJson) return to_text(job, response);
  return Line({{"job", job}, {list, wire::ToJson(response)[list]}});
}

// Adds a command with the flags that all have. job_help: null if the job follows another argument.
std::pair<Flags, GetOptions&> AddGetCommand(const Flags& parent, const char* name, const char* help,
                                            Output (*run)(const GetOptions&, const Terminal&),
                                            const char* job_help = kJobHelp,
                                            Formats formats = Formats::kTableAndJson) {
  auto [flags, options] = AddCommand<GetOptions>(parent, name, help, run);
  if (job_help != nullptr) AddJobOption(flags, options.job, job_help);
  AddQueryOptions(flags, options.query, {kNotFound}, formats);
  return {flags, options};
}

constexpr char kRanksHelp[] = "Include every rank of every job (with -o json)";

}  // namespace

std::string PlansText(const v1::ListPlansResponse& response, const Terminal& terminal) {
  return PlanTable(response, terminal) + Reasons(response);
}

Output RunGetRanks(const GetOptions& options, const Terminal& terminal) {
  v1::JobStatus job;
  EPLB_ASSIGN_OR_RETURN(const std::string name,
                        AskAboutJob(options.query, options.job, v1::GetJobRequest(), &job));
  if (options.query.format == Format::kJson) {
    return Line(
        {{"job", job.job()}, {"run_id", job.run_id()}, {"ranks", wire::ToJson(job)["ranks"]}});
  }
  if (!job.ranks().empty()) {
    return FormatTable(
        MessageTable(job.ranks(), terminal, {{"state", InWords<v1::RankStatus>(StateOf)}}),
        terminal);
  }
  return absl::StrCat("no rank of job ", name, " has registered at this daemon\n");
}

Output RunGetWindows(const GetOptions& options, const Terminal& terminal) {
  return ListOutput<v1::ListWindowsResponse>(
      options, v1::ListWindowsRequest(), "windows",
      [&terminal](const std::string& job, const v1::ListWindowsResponse& response) {
        return response.windows().empty()
                   ? absl::StrCat("job ", Printable(job), " has no complete window yet\n")
                   : WindowTable(response, terminal) + Chart(response, terminal);
      });
}

Output RunGetPlans(const GetOptions& options, const Terminal& terminal) {
  return ListOutput<v1::ListPlansResponse>(
      options, v1::ListPlansRequest(), "plans",
      [&terminal](const std::string& job, const v1::ListPlansResponse& response) {
        return response.plans().empty()
                   ? absl::StrCat("nothing has been decided for job ", job, " yet\n")
                   : PlansText(response, terminal);
      });
}

Output RunGetPlan(const GetOptions& options, const Terminal& terminal) {
  v1::GetPlanRequest request;
  request.set_plan(static_cast<uint64_t>(options.plan));
  v1::ListPlansResponse one;
  v1::Plan& plan = *one.add_plans();
  EPLB_ASSIGN_OR_RETURN(const std::string job,
                        AskAboutJob(options.query, options.job, request, &plan));
  if (options.query.format == Format::kJson)
    return Line({{"job", job}, {"plan", wire::ToJson(plan)}});
  if (options.query.format == Format::kTrace) return PlanTrace(job, plan);
  return absl::StrCat(PlanTable(one, terminal), "\n", Paragraph(PlanReason(plan), terminal),
                      ScenariosText(plan, terminal), "\n", TimesTable(plan, terminal));
}

Output RunGetEvents(const GetOptions& options, const Terminal& terminal) {
  v1::ListEventsRequest request;
  request.set_after_sequence(static_cast<uint64_t>(options.after));
  return ListOutput<v1::ListEventsResponse>(
      options, request, "events",
      [&terminal](const std::string& /*job*/, const v1::ListEventsResponse& response) {
        std::string text;
        for (const v1::JobEvent& event : response.events()) text += EventLine(event, terminal);
        return text;
      });
}

void AddStatus(const Flags& root) {
  auto [flags, options] =
      AddGetCommand(root, "status", "Show the daemon and its jobs", &RunStatus, kAllJobsHelp);
  flags.Word("--sort", {"trouble", "name", "state", "saved", "measured"}, options.sort,
             "Order of the jobs, the least saved and the least balanced first [trouble]");
  flags.Text("--filter", "TEXT", options.filter, "Show only jobs with this in name or state");
  flags.Switch("--ranks", options.ranks, kRanksHelp);
  AddWatched(flags);
}

void AddGet(const Flags& root) {
  const Flags get = root.AddGroup(
      "get", "Show jobs, ranks, a placement, windows, plans, a plan or events of the daemon");
  auto [jobs, of_jobs] = AddGetCommand(get, "jobs", "Show jobs, their states, policies and shapes",
                                       &RunGetJobs, kAllJobsHelp);
  jobs.Switch("--names", of_jobs.names, "Print only the names, one per line");
  jobs.Switch("--ranks", of_jobs.ranks, kRanksHelp);
  AddWatched(jobs);

  Flags ranks =
      AddGetCommand(get, "ranks", "Show what each rank of a job runs and answered", &RunGetRanks)
          .first;
  AddWatched(ranks);

  auto [placement, of_placement] = AddGetCommand(
      get, "placement", "Show a placement of a job, by default the current one", &RunGetPlacement);
  AddCount(placement, "--version", "V", of_placement.version,
           "Show an earlier version, while the daemon keeps it");
  AddInteger(placement, "--layer", "L", of_placement.layer, "Layer shown in the table [0]");
  placement.Text("--out", "FILE", of_placement.out, "Write the placement to this file");

  auto [windows, of_windows] =
      AddGetCommand(get, "windows", "Show the balancedness of a job's load windows, oldest first",
                    &RunGetWindows);
  AddLimitOption(windows, of_windows.limit);
  AddWatched(windows);

  auto [plans, of_plans] = AddGetCommand(
      get, "plans",
      "Show decisions of a job, newest first, with what each predicted and what followed",
      &RunGetPlans);
  AddLimitOption(plans, of_plans.limit);
  AddWatched(plans);

  auto [plan, of_plan] =
      AddGetCommand(get, "plan", "Show one decision of a job and how long its parts took",
                    &RunGetPlan, nullptr, Formats::kWithTrace);
  AddCount(plan, "plan,--plan", "PLAN", of_plan.plan,
           "Number of the decision, as `eplbctl get plans` shows it")
      .Required();
  AddJobOption(plan, of_plan.job);

  auto [events, of_events] =
      AddGetCommand(get, "events", "Show the audit log of a job, newest first", &RunGetEvents);
  AddLimitOption(events, of_events.limit);
  AddCount(events, "--after", "SEQUENCE", of_events.after, "Show only events after this one");
  AddWatched(events);
}

}  // namespace eplb::cli
