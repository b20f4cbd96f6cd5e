// `eplbctl status` and `eplbctl get`: the daemon, its jobs, ranks, placements, windows, plans and
// events.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/json_value.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/trace.h"
#include "client/cli/watch.h"
#include "placement/evaluate.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"
#include "proto/wire/names.h"
#include "proto/wire/placement_json.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxName = 24;

std::string Line(const Json& json) { return wire::DumpJson(json) + "\n"; }

Json StatusJson(const v1::GetStatusResponse& response, bool with_ranks) {
  Json status = wire::ToJson(response);
  if (!with_ranks) {
    for (Json& job : status["jobs"]) job.erase("ranks");
  }
  return status;
}

std::string Daemon(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text =
      absl::StrCat(Paint(terminal, Colour::kBold, "eplbd " + Printable(response.server_version())),
                   ", up ", Seconds(response.uptime_seconds()), ", term ", response.term(), ", ",
                   response.ready() ? Paint(terminal, Colour::kGreen, "ready")
                                    : Paint(terminal, Colour::kRed, "not ready"));
  if (!response.leader().empty()) {
    absl::StrAppend(&text, ", leads at ", Printable(response.leader()), " by ",
                    Printable(response.store()));
  }
  text += "\n";
  if (!response.ready()) text += Paragraph(Printable(response.not_ready_reason()), terminal, 0);
  for (const std::string& warning : response.warnings()) {
    text += Paragraph("warning: " + Printable(warning), terminal, 2, Colour::kYellow);
  }
  return text;
}

// Refusals of jobs that the daemon does not have, which are in no table.
std::string Refusals(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text;
  for (const v1::Refusal& refusal : response.refusals()) {
    const std::string sentence =
        absl::StrCat(Shortened(refusal.job(), kMaxName), " is not served: ", refusal.reason(), " (",
                     Counted(refusal.count(), "refusal"), ", the newest ",
                     Seconds(refusal.seconds_ago()), " ago)");
    absl::StrAppend(&text, "\n", Paragraph(Printable(sentence), terminal, 2, Colour::kRed));
  }
  return text;
}

std::string StatusTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table({"job", "state", ">since", ">ranks", ">step", ">version", ">run", ">measured",
               ">without EPLB", ">predicted", ">seen"});
  for (const v1::JobStatus& job : response.jobs()) {
    table.rows.push_back(
        {Shortened(Printable(job.job()), kMaxName), Shortened(StateText(job), kMaxName),
         Seconds(job.state_seconds()), absl::StrCat(job.connected_ranks(), "/", job.world_size()),
         Grouped(job.step()), Grouped(job.version()), RunText(job), RatioText(job.balancedness()),
         RatioText(job.balancedness_without_eplb()), RatioText(job.balancedness_predicted()),
         RatioText(job.balancedness_seen())});
  }
  // The job's notes repeat the ratios.
  return FormatTable(table, terminal,
                     {"run", "seen", "predicted", "without EPLB", "version", "since"});
}

// The facts about a job for which the table has no room.
std::string Notes(const v1::JobStatus& job, const Terminal& terminal) {
  const std::string name = Shortened(Printable(job.job()), kMaxName) + " ";
  std::string text = StateNotes(job, name, terminal) +
                     Paragraph(name + "balancedness " + BalancednessText(job), terminal);
  if (const std::string objective = ObjectiveText(job); !objective.empty()) {
    text += Paragraph(name + objective, terminal);
  }
  if (job.last_reason().empty()) return text;
  return text + Paragraph(name + "last decision: " + Printable(job.last_reason()), terminal);
}

// Leaves one job and its refusals. errors: NotFound when the daemon has neither.
absl::Status KeepJob(const std::string& job, v1::GetStatusResponse* response) {
  if (job.empty()) return absl::OkStatus();
  const auto is_another = [&job](const auto& one) { return one.job() != job; };
  auto* jobs = response->mutable_jobs();
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(), is_another), jobs->end());
  auto* refusals = response->mutable_refusals();
  refusals->erase(std::remove_if(refusals->begin(), refusals->end(), is_another), refusals->end());
  if (!jobs->empty() || !refusals->empty()) return absl::OkStatus();
  return NotFound("the daemon has no job ", Printable(job));
}

std::string JobNameTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table({"job", "state", "policy", ">layers", ">experts", ">slots", ">GPUs", ">nodes",
               ">ranks", ">version", ">run", "run id"});
  for (const v1::JobStatus& job : response.jobs()) {
    const v1::Shape& shape = job.shape();
    const std::string policy = Printable(job.policy().name());
    table.rows.push_back({Shortened(Printable(job.job()), kMaxName),
                          Shortened(StateText(job), kMaxName), OrDash(!policy.empty(), policy),
                          absl::StrCat(shape.num_layers()), absl::StrCat(shape.num_experts()),
                          absl::StrCat(shape.num_slots()), absl::StrCat(shape.num_gpus()),
                          absl::StrCat(shape.num_nodes()), absl::StrCat(job.world_size()),
                          absl::StrCat(job.version()), RunText(job),
                          Shortened(Printable(job.run_id()), kMaxName / 2)});
  }
  return FormatTable(table, terminal, {"run id", "run", "nodes", "policy", "version"});
}

// The names of jobs, for scripts and completion. A shell may expand what it reads, so names that no
// daemon of ours accepts are left out.
std::string Names(const v1::GetStatusResponse& response) {
  std::string text;
  for (const v1::JobStatus& job : response.jobs()) {
    if (!wire::CheckPlainName("job", job.job()).ok()) continue;
    absl::StrAppend(&text, job.job(), "\n");
  }
  return text;
}

absl::Status AskJobs(const GetOptions& options, v1::GetStatusResponse* response) {
  if (options.job.empty()) return Ask(options.query, v1::GetStatusRequest(), response);
  return AskAboutJob(options.query, options.job, v1::GetJobRequest(), response->add_jobs())
      .status();
}

// "connected", "away 12.5 s", or how the rank ended.
std::string StateOf(const v1::RankStatus& rank) {
  if (rank.connected()) return "connected";
  if (rank.state() != v1::RANK_STATE_UNSPECIFIED && rank.state() != v1::RANK_STATE_AWAY) {
    return wire::EnumText(rank.state());
  }
  return absl::StrCat("away ", Seconds(rank.away_seconds()));
}

// via: the transport; its name would be wider than all its values. boundary: how long the newest
// switch held the rank's training.
std::string RankTable(const v1::JobStatus& job, const Terminal& terminal) {
  Table table({">rank", ">gpu", "state", "via", ">step", ">runs", ">PREPARED", "answer", ">prepare",
               ">boundary", ">step time", ">drops"});
  for (const v1::RankStatus& rank : job.ranks()) {
    table.rows.push_back(
        {absl::StrCat(rank.rank()), absl::StrCat(rank.gpu()), StateOf(rank),
         OrDash(!rank.transport().name().empty(), Printable(rank.transport().name())),
         Grouped(rank.step()), absl::StrCat(rank.running_version()),
         OrDash(rank.prepared_version() != 0, Grouped(rank.prepared_version())),
         OrDash(rank.answer() != v1::RANK_ANSWER_UNSPECIFIED, wire::EnumText(rank.answer())),
         OrDash(rank.has_answer_seconds(), Seconds(rank.answer_seconds())),
         OrDash(rank.has_pause_seconds(), Seconds(rank.pause_seconds())),
         OrDash(rank.has_step_seconds(), Seconds(rank.step_seconds())),
         Grouped(rank.dropped_steps())});
  }
  return FormatTable(table, terminal, {"PREPARED", "gpu", "step time", "via"});
}

// GPU by GPU, what a layer's slots hold; a primary is marked.
std::string LayerTable(const Placement& placement, LayerId layer, const Terminal& terminal) {
  constexpr int kGpuColumns = 8;
  const Topology& shape = placement.topology();
  Table table({">GPU", ">node", "experts (* primary of several replicas)"});
  for (int32_t gpu = 0; gpu < shape.num_gpus(); ++gpu) {
    std::string experts = placement.Holds(GpuId{gpu}) ? "" : "unusable";
    const int32_t first = shape.FirstSlotOf(GpuId{gpu}).value;
    for (int32_t slot = first; slot < first + shape.SlotsOf(GpuId{gpu}); ++slot) {
      const ExpertId expert = placement.ExpertIn(layer, SlotId{slot});
      if (expert.value < 0) continue;
      const bool marked = placement.ReplicaCount(layer, expert) > 1 &&
                          placement.PrimaryOf(layer, expert) == SlotId{slot};
      absl::StrAppend(&experts, experts.empty() ? "" : " ", expert.value, marked ? "*" : "");
    }
    table.rows.push_back({absl::StrCat(gpu), absl::StrCat(shape.NodeOf(GpuId{gpu}).value),
                          Shortened(experts, terminal.width - kGpuColumns - 4)});
  }
  return FormatTable(table, terminal);
}

std::string PlacementTable(const std::string& job, const wire::PlacementBody& body, LayerId layer,
                           const Terminal& terminal) {
  const Topology& shape = body.placement.topology();
  const std::string size = absl::StrCat(
      Counted(shape.num_layers(), "layer"), " of ", Counted(shape.num_experts(), "expert"), " in ",
      Counted(shape.num_slots(), "slot"), " on ", Counted(shape.num_gpus(), "GPU"), ", ",
      Counted(shape.num_nodes(), "node"), ", at most ",
      Counted(body.placement.max_replicas(), "replica"), ", ",
      Counted(CountDuplicates(body.placement), "duplicate"));
  return absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Placement of job ", Printable(job))),
      ", version ", body.version, "\ndigest ", body.digest.Hex(), "\n", Paragraph(size, terminal),
      "\n", Heading(absl::StrCat("Layer ", layer.value), terminal),
      LayerTable(body.placement, layer, terminal));
}

std::string PlacementJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", wire::JsonQuote(job), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

constexpr int kWindowChartHeight = 4;

// Steps between two windows of one run that no window covers; 0: none.
uint64_t StepsMissing(const v1::Window& before, const v1::Window& after) {
  const uint64_t next = before.last_step() + 1;
  const bool is_gap = before.run_id() == after.run_id() && after.first_step() > next;
  return is_gap ? after.first_step() - next : 0;
}

std::string WindowTable(const v1::ListWindowsResponse& response, const Terminal& terminal) {
  Table table({">steps", ">measured", ">without EPLB", ">versions", ">coverage", ">tokens"});
  const v1::Window* before = nullptr;
  for (const v1::Window& window : response.windows()) {
    if (before != nullptr && StepsMissing(*before, window) > 0) {
      table.rows.push_back({absl::StrCat(before->last_step() + 1, "..", window.first_step() - 1),
                            "no window", "-", "-", "-", "-"});
    }
    table.rows.push_back({absl::StrCat(window.first_step(), "..", window.last_step()),
                          OrDash(window.has_balancedness(), FigureText(window.balancedness(), 3)),
                          OrDash(window.has_balancedness_without_eplb(),
                                 FigureText(window.balancedness_without_eplb(), 3)),
                          OrDash(!window.versions().empty(), absl::StrJoin(window.versions(), ",")),
                          absl::StrFormat("%.1f %%", 100 * window.coverage()),
                          Grouped(window.tokens())});
    before = &window;
  }
  return FormatTable(table, terminal, {"tokens", "coverage", "versions"});
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

constexpr int kWide = 100;

std::string Versions(const v1::Plan& plan) {
  if (plan.first_version() == 0) return "-";
  if (plan.last_version() <= plan.first_version()) return absl::StrCat(plan.first_version());
  return absl::StrCat(plan.first_version(), "..", plan.last_version());
}

// "committed", or how many chunks were when not all.
std::string ResultText(const v1::Plan& plan) {
  if (plan.chunks_committed() == 0 || plan.chunks_committed() == plan.num_chunks()) {
    return wire::EnumText(plan.result());
  }
  return absl::StrCat(wire::EnumText(plan.result()), " ", plan.chunks_committed(), "/",
                      plan.num_chunks());
}

// Bytes received for the layers that were switched.
std::string ReceivedText(const v1::Plan& plan) {
  if (!plan.has_received_bytes() || plan.chunks_committed() == 0) return "-";
  return absl::StrFormat("%.1f MB", static_cast<double>(plan.received_bytes()) / 1e6);
}

// "0.741 +- 0.030"; without an error where it is no prediction, or none was compared yet.
std::string PredictedCell(const v1::Plan& plan) {
  if (!plan.has_prediction_error()) return RatioText(plan.balancedness_predicted(), 3);
  return absl::StrFormat("%.3f +- %.3f", plan.balancedness_predicted(), plan.prediction_error());
}

std::string PlanTable(const v1::ListPlansResponse& response, const Terminal& terminal) {
  const char* const format = terminal.width >= kWide ? "%Y-%m-%d %H:%M:%S" : "%m-%d %H:%M";
  // boundary: how long the longest boundary of a switch held a rank's training.
  Table table({">plan", "time (UTC)", ">steps", "result", ">versions", ">measured", ">predicted",
               ">seen", ">transfers", ">received", ">boundary"});
  for (const v1::Plan& plan : response.plans()) {
    const bool switched = plan.chunks_committed() > 0;
    table.rows.push_back(
        {absl::StrCat(plan.plan()),
         absl::FormatTime(format, absl::FromUnixMicros(plan.unix_micros()), absl::UTCTimeZone()),
         absl::StrCat(plan.decided_first_step(), "..", plan.decided_last_step()), ResultText(plan),
         Versions(plan), RatioText(plan.balancedness_before(), 3), PredictedCell(plan),
         RatioText(plan.balancedness_seen(), 3), Grouped(plan.transfers()), ReceivedText(plan),
         OrDash(switched && plan.has_pause_seconds(), Seconds(plan.pause_seconds()))});
  }
  return FormatTable(table, terminal,
                     {"versions", "transfers", "boundary", "received", "time (UTC)"});
}

// The reasons of the newest decisions, for which the table has no room.
std::string Reasons(const v1::ListPlansResponse& response, const Terminal& terminal) {
  constexpr int kShown = 3;
  std::string text;
  for (int i = 0; i < std::min(response.plans_size(), kShown); ++i) {
    const v1::Plan& plan = response.plans(i);
    const std::string who =
        plan.asked_by().empty() ? "" : absl::StrCat(" (asked for by ", plan.asked_by(), ")");
    const std::string reason = absl::StrCat("plan ", plan.plan(), who, ": ", plan.reason());
    absl::StrAppend(&text, "\n", Paragraph(Printable(reason), terminal));
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

// Adds a command with the flags that all have.
std::pair<Flags, GetOptions&> AddGetCommand(const Flags& parent, const char* name, const char* help,
                                            Output (*run)(const GetOptions&, const Terminal&),
                                            const char* job_help = kJobHelp,
                                            Formats formats = Formats::kTableAndJson) {
  auto [flags, options] = AddCommand<GetOptions>(parent, name, help, run);
  AddJobOption(flags, options.job, job_help);
  AddQueryOptions(flags, options.query, {kNotFound}, formats);
  return {flags, options};
}

constexpr char kRanksHelp[] = "Include every rank of every job (with -o json)";

}  // namespace

Output RunStatus(const GetOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(Ask(options.query, v1::GetStatusRequest(), &response));
  EPLB_RETURN_IF_ERROR(KeepJob(options.job, &response));
  if (options.query.format == Format::kJson) return Line(StatusJson(response, options.ranks));
  std::string text = Daemon(response, terminal) + "\n";
  if (response.jobs().empty()) {
    absl::StrAppend(&text, response.jobs_hidden() ? kNoVisibleJob : "no job has connected yet",
                    "\n");
  } else {
    text += StatusTable(response, terminal);
  }
  for (const v1::JobStatus& job : response.jobs()) {
    absl::StrAppend(&text, "\n", Notes(job, terminal));
  }
  return text + Refusals(response, terminal);
}

Output RunGetJobs(const GetOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  EPLB_RETURN_IF_ERROR(AskJobs(options, &response));
  if (options.names) return Names(response);
  if (options.query.format == Format::kJson) {
    Json status = StatusJson(response, options.ranks);
    Json jobs;
    for (const char* key : {"jobs", "jobs_hidden", "refusals", "warnings"}) {
      jobs[key] = std::move(status[key]);
    }
    return Line(jobs);
  }
  const bool none_visible = response.jobs().empty() && response.jobs_hidden();
  return {kOk, JobNameTable(response, terminal), none_visible ? kNoVisibleJob : ""};
}

Output RunGetRanks(const GetOptions& options, const Terminal& terminal) {
  v1::JobStatus job;
  EPLB_ASSIGN_OR_RETURN(const std::string name,
                        AskAboutJob(options.query, options.job, v1::GetJobRequest(), &job));
  if (options.query.format == Format::kJson) {
    return Line(
        {{"job", job.job()}, {"run_id", job.run_id()}, {"ranks", wire::ToJson(job)["ranks"]}});
  }
  if (!job.ranks().empty()) return RankTable(job, terminal);
  return absl::StrCat("no rank of job ", name, " has registered at this daemon\n");
}

Output RunGetPlacement(const GetOptions& options, const Terminal& terminal) {
  EPLB_ASSIGN_OR_RETURN(const std::string job, ChooseJob(options.query, options.job));
  EPLB_ASSIGN_OR_RETURN(const wire::PlacementBody body,
                        AskPlacement(options.query, job, options.version));
  const int32_t num_layers = body.placement.topology().num_layers();
  if (options.layer < 0 || options.layer >= num_layers) {
    return InvalidInput("--layer is ", options.layer, ", job ", job, " has layers 0..",
                        num_layers - 1);
  }
  EPLB_RETURN_IF_ERROR(WriteOutput(options.out, wire::PlacementToJson(body.placement) + "\n"));
  return options.query.format == Format::kJson
             ? PlacementJson(job, body)
             : PlacementTable(job, body, LayerId{options.layer}, terminal);
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
                   : PlanTable(response, terminal) + Reasons(response, terminal);
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
  return absl::StrCat(PlanTable(one, terminal), Reasons(one, terminal), "\n",
                      TimesTable(plan, terminal));
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
                    &RunGetPlan, kJobHelp, Formats::kWithTrace);
  AddCount(plan, "plan", "PLAN", of_plan.plan,
           "Number of the decision, as `eplbctl get plans` shows it")
      .Required();

  auto [events, of_events] =
      AddGetCommand(get, "events", "Show the audit log of a job, newest first", &RunGetEvents);
  AddLimitOption(events, of_events.limit);
  AddCount(events, "--after", "SEQUENCE", of_events.after, "Show only events after this one");
  AddWatched(events);
}

}  // namespace eplb::cli
