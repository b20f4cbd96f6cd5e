#include "client/cli/get.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "base/files.h"
#include "base/invalid_input.h"
#include "base/json_value.h"
#include "client/cli/get_windows.h"
#include "client/cli/job_json.h"
#include "client/cli/job_text.h"
#include "client/cli/rebalance_trace.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"
#include "placement/evaluate.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"
#include "proto/wire/placement_json.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

constexpr int kMaxName = 24;

Table JobNameTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table{.heading = {"job", "state", "policy", "layers", "experts", "slots", "GPUs", "nodes",
                          "ranks", "version", "run", "run id"},
              .right = {false, false, false, true, true, true, true, true, true, true, true, false},
              .rows = {}};
  for (const v1::JobStatus& job : response.jobs()) {
    const v1::Shape& shape = job.shape();
    const std::string policy = Printable(job.policy().name());
    table.rows.push_back({Shortened(Printable(job.job()), kMaxName),
                          Shortened(StateText(job), kMaxName), policy.empty() ? "-" : policy,
                          absl::StrCat(shape.num_layers()), absl::StrCat(shape.num_experts()),
                          absl::StrCat(shape.num_slots()), absl::StrCat(shape.num_gpus()),
                          absl::StrCat(shape.num_nodes()), absl::StrCat(job.world_size()),
                          absl::StrCat(job.version()), RunText(job),
                          Shortened(Printable(job.run_id()), kMaxName / 2)});
  }
  constexpr std::string_view kOptional[] = {"run id", "run", "nodes", "policy", "version"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// For scripts and completion: a shell may expand what it reads, so only names that a daemon of ours
// can have are told.
std::string Names(const v1::GetStatusResponse& response) {
  std::string text;
  for (const v1::JobStatus& job : response.jobs()) {
    if (!wire::CheckPlainName("job", job.job()).ok()) continue;
    absl::StrAppend(&text, job.job(), "\n");
  }
  return text;
}

absl::Status AskJobs(const GetJobsOptions& options, v1::GetStatusResponse* response) {
  if (options.job.empty()) return AskStatus(options.query, response);
  v1::GetJobRequest request;
  request.set_job(options.job);
  return Ask(options.query, request, response->add_jobs());
}

}  // namespace

Output RunGetJobs(const GetJobsOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  if (const absl::Status status = AskJobs(options, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.names) return {.exit_code = kOk, .out = Names(response), .message = {}};
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = JobsToJson(response, options.ranks), .message = {}};
  }
  const bool none_visible = response.jobs().empty() && response.jobs_hidden();
  return {.exit_code = kOk,
          .out = FormatTable(JobNameTable(response, terminal), terminal),
          .message = none_visible ? kNoVisibleJob : ""};
}

void AddGetJobs(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetJobsOptions>();
  CLI::App& app = *get.add_subcommand("jobs", "Jobs, their states, policies and shapes");
  AddJobOption(app, options->job, "Only this job [all]");
  app.add_flag("--names", options->names, "Only the names, one a line");
  app.add_flag("--ranks", options->ranks, "With -o json: every rank of every job, too");
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetJobs(*options, terminal); });
}

namespace {

std::string Version(uint64_t version) {
  return version == 0 ? "-" : Grouped(static_cast<int64_t>(version));
}

std::string SecondsOrNone(bool is_set, double seconds) { return is_set ? Seconds(seconds) : "-"; }

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
Table RankTable(const v1::JobStatus& job, const Terminal& terminal) {
  Table table{.heading = {"rank", "gpu", "state", "via", "step", "runs", "PREPARED", "answer",
                          "prepare", "boundary", "step time", "drops"},
              .right = {true, true, false, false, true, true, true, false, true, true, true, true},
              .rows = {}};
  for (const v1::RankStatus& rank : job.ranks()) {
    table.rows.push_back(
        {absl::StrCat(rank.rank()), absl::StrCat(rank.gpu()), StateOf(rank),
         rank.transport().name().empty() ? "-" : Printable(rank.transport().name()),
         Grouped(static_cast<int64_t>(rank.step())), absl::StrCat(rank.running_version()),
         Version(rank.prepared_version()),
         rank.answer() == v1::RANK_ANSWER_UNSPECIFIED ? "-" : wire::EnumText(rank.answer()),
         SecondsOrNone(rank.has_answer_seconds(), rank.answer_seconds()),
         SecondsOrNone(rank.has_pause_seconds(), rank.pause_seconds()),
         SecondsOrNone(rank.has_step_seconds(), rank.step_seconds()),
         Grouped(static_cast<int64_t>(rank.dropped_steps()))});
  }
  constexpr std::string_view kOptional[] = {"PREPARED", "gpu", "step time", "via"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

}  // namespace

Output RunGetRanks(const GetRanksOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> name = ChooseJob(options.query, options.job);
  if (!name.ok()) return QueryFailure(name.status());
  v1::GetJobRequest request;
  request.set_job(*name);
  v1::JobStatus job;
  if (const absl::Status status = Ask(options.query, request, &job); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = RanksToJson(job), .message = {}};
  }
  if (job.ranks().empty()) {
    return {.exit_code = kOk,
            .out = absl::StrCat("no rank of job ", *name, " has registered at this daemon\n"),
            .message = {}};
  }
  return {.exit_code = kOk, .out = FormatTable(RankTable(job, terminal), terminal), .message = {}};
}

void AddGetRanks(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetRanksOptions>();
  CLI::App& app = *get.add_subcommand("ranks", "What each rank of a job runs and answered");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetRanks(*options, terminal); });
}

namespace {

// GPU by GPU, what a layer's slots hold; a primary is marked.
std::string LayerTable(const Placement& placement, LayerId layer, const Terminal& terminal) {
  constexpr int kGpuColumns = 8;
  const Topology& shape = placement.topology();
  Table table{.heading = {"GPU", "node", "experts (* primary of several replicas)"},
              .right = {true, true, false},
              .rows = {}};
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
      ", version ", body.version, "\ndigest ", body.digest.Hex(), "\n",
      Wrapped(size, terminal.width, 2), "\n\n",
      Paint(terminal, Colour::kBold, absl::StrCat("Layer ", layer.value)), "\n",
      LayerTable(body.placement, layer, terminal));
}

std::string PlacementJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", wire::JsonQuote(job), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

}  // namespace

Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  const absl::StatusOr<wire::PlacementBody> body =
      AskPlacement(options.query, *job, options.version);
  if (!body.ok()) return QueryFailure(body.status());
  const int32_t num_layers = body->placement.topology().num_layers();
  if (options.layer < 0 || options.layer >= num_layers) {
    return UsageFailure(InvalidInput("--layer is ", options.layer, ", job ", *job,
                                     " has layers 0..", num_layers - 1));
  }
  if (!options.out.empty()) {
    const absl::Status written =
        WriteFileAtomically(options.out, wire::PlacementToJson(body->placement) + "\n");
    if (!written.ok()) return Failure(kError, written);
  }
  std::string text = options.query.format == Format::kJson
                         ? PlacementJson(*job, *body)
                         : PlacementTable(*job, *body, LayerId{options.layer}, terminal);
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddGetPlacement(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetPlacementOptions>();
  CLI::App& app = *get.add_subcommand("placement", "A placement of a job: the one in force");
  AddJobOption(app, options->job);
  AddInteger(app, "--version", options->version, "An earlier version, while it is kept")
      ->check(&CheckNotNegative)
      ->type_name("V");
  AddInteger(app, "--layer", options->layer, "Layer that the table shows [0]")->type_name("L");
  app.add_option("--out", options->out, "Write the placement here")->type_name("FILE");
  AddQueryOptions(app, options->query, {kNotFound});
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunGetPlacement(*options, terminal); };
  });
}

namespace {

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

// Of the layers that were switched; a decision that moved nothing received nothing.
std::string ReceivedText(const v1::Plan& plan) {
  if (!plan.has_received_bytes() || plan.chunks_committed() == 0) return "-";
  return absl::StrFormat("%.1f MB", static_cast<double>(plan.received_bytes()) / 1e6);
}

std::string Ratio(std::optional<double> ratio) {
  return ratio.has_value() && *ratio > 0 ? absl::StrFormat("%.3f", *ratio) : "-";
}

// "0.741 +- 0.030"; without an error where it is no prediction, or none was compared yet.
std::string PredictedCell(const v1::Plan& plan) {
  if (!plan.has_prediction_error()) return Ratio(plan.balancedness_predicted());
  return absl::StrFormat("%.3f +- %.3f", plan.balancedness_predicted(), plan.prediction_error());
}

Table PlanTable(const v1::ListPlansResponse& response, const Terminal& terminal) {
  const char* const format = terminal.width >= kWide ? "%Y-%m-%d %H:%M:%S" : "%m-%d %H:%M";
  // boundary: how long the longest boundary of a switch held a rank's training.
  Table table{.heading = {"plan", "time (UTC)", "steps", "result", "versions", "measured",
                          "predicted", "seen", "transfers", "received", "boundary"},
              .right = {true, false, true, false, true, true, true, true, true, true, true},
              .rows = {}};
  for (const v1::Plan& plan : response.plans()) {
    const bool switched = plan.chunks_committed() > 0;
    table.rows.push_back(
        {absl::StrCat(plan.plan()),
         absl::FormatTime(format, absl::FromUnixMicros(plan.unix_micros()), absl::UTCTimeZone()),
         absl::StrCat(plan.decided_first_step(), "..", plan.decided_last_step()), ResultText(plan),
         Versions(plan), Ratio(plan.balancedness_before()), PredictedCell(plan),
         Ratio(plan.has_balancedness_seen() ? std::optional(plan.balancedness_seen())
                                            : std::nullopt),
         Grouped(static_cast<int64_t>(plan.transfers())), ReceivedText(plan),
         SecondsOrNone(switched && plan.has_pause_seconds(), plan.pause_seconds())});
  }
  constexpr std::string_view kOptional[] = {"versions", "transfers", "boundary", "received",
                                            "time (UTC)"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// A table has no room for sentences.
std::string Reasons(const v1::ListPlansResponse& response, const Terminal& terminal) {
  constexpr int kShown = 3;
  std::string text;
  for (int i = 0; i < std::min(response.plans_size(), kShown); ++i) {
    const v1::Plan& plan = response.plans(i);
    const std::string who =
        plan.asked_by().empty() ? "" : absl::StrCat(" (asked for by ", plan.asked_by(), ")");
    absl::StrAppend(&text, "\n",
                    Wrapped(Printable(absl::StrCat("plan ", plan.plan(), who, ": ", plan.reason())),
                            terminal.width, 2),
                    "\n");
  }
  return text;
}

}  // namespace

Output RunGetPlans(const GetPlansOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::ListPlansRequest request;
  request.set_job(*job);
  request.set_limit(static_cast<uint32_t>(options.limit));
  v1::ListPlansResponse response;
  if (const absl::Status status = Ask(options.query, request, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = PlansToJson(*job, response), .message = {}};
  }
  if (response.plans().empty()) {
    return {.exit_code = kOk,
            .out = absl::StrCat("nothing has been decided for job ", *job, " yet\n"),
            .message = {}};
  }
  return {.exit_code = kOk,
          .out = FormatTable(PlanTable(response, terminal), terminal) + Reasons(response, terminal),
          .message = {}};
}

void AddGetPlans(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetPlansOptions>();
  CLI::App& app = *get.add_subcommand(
      "plans", "Decisions of a job, newest first: what each predicted and what was seen after it");
  AddJobOption(app, options->job);
  AddLimitOption(app, options->limit);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetPlans(*options, terminal); });
}

namespace {

// "11:06:40.123".
std::string ClockText(int64_t unix_micros) {
  return absl::FormatTime("%H:%M:%E3S", absl::FromUnixMicros(unix_micros), absl::UTCTimeZone());
}

// A row of what lay between two times, of which 0 is not known.
std::vector<std::string> TimeRow(const std::string& what, int64_t began, int64_t ended,
                                 const std::string& note) {
  const bool known = began != 0 && ended >= began;
  return {what, began == 0 ? "-" : ClockText(began),
          known ? Seconds(static_cast<double>(ended - began) / 1e6) : "-", note};
}

void AddChunkRows(const v1::Plan& plan, int index, Table& table) {
  const v1::ChunkTimes& chunk = plan.times().chunks(index);
  const std::string name = absl::StrCat("chunk ", index + 1, "/", plan.num_chunks());
  const std::string end = chunk.ended_unix_micros() == 0 ? "its end is not known"
                          : chunk.committed()            ? "committed"
                                                         : "withdrawn";
  table.rows.push_back(TimeRow(name, chunk.proposed_unix_micros(), chunk.ended_unix_micros(),
                               absl::StrCat("version ", chunk.version(), ", ",
                                            Counted(chunk.num_layers(), "layer"), ", ", end)));
  const v1::ChunkRankTimes* const last = SlowestOf(chunk);
  const std::string slowest =
      last == nullptr ? "" : absl::StrCat("the slowest: rank ", last->rank());
  table.rows.push_back(
      TimeRow("  prepare", chunk.proposed_unix_micros(), chunk.prepared_unix_micros(), slowest));
  if (!chunk.committed()) return;
  const std::string longest =
      chunk.has_longest_pause_rank()
          ? absl::StrCat("the longest boundary: rank ", chunk.longest_pause_rank(), ", ",
                         Seconds(chunk.longest_pause_seconds()))
          : "";
  table.rows.push_back(TimeRow("  vote and switch", chunk.prepared_unix_micros(),
                               chunk.ended_unix_micros(), longest));
}

Table TimesTable(const v1::Plan& plan) {
  const v1::PlanTimes& times = plan.times();
  Table table{.heading = {"what", "began (UTC)", "took", ""},
              .right = {false, false, true, false},
              .rows = {}};
  table.rows.push_back(TimeRow("window", times.window_began_unix_micros(),
                               times.window_complete_unix_micros(),
                               absl::StrCat("reports of steps ", plan.decided_first_step(), "..",
                                            plan.decided_last_step())));
  table.rows.push_back(TimeRow("solve", times.solve_began_unix_micros(), SolveEndMicros(plan),
                               Printable(plan.policy())));
  for (int i = 0; i < times.chunks_size(); ++i) AddChunkRows(plan, i, table);
  return table;
}

}  // namespace

Output RunGetPlan(const GetPlanOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::GetPlanRequest request;
  request.set_job(*job);
  request.set_plan(static_cast<uint64_t>(options.plan));
  v1::ListPlansResponse one;
  v1::Plan& plan = *one.add_plans();
  if (const absl::Status status = Ask(options.query, request, &plan); !status.ok()) {
    return QueryFailure(status);
  }
  Output output;
  switch (options.query.format) {
    case Format::kJson:
      output.out = PlanToJson(*job, plan);
      break;
    case Format::kTrace:
      output.out = PlanTrace(*job, plan);
      break;
    case Format::kTable:
      output.out =
          absl::StrCat(FormatTable(PlanTable(one, terminal), terminal), Reasons(one, terminal),
                       "\n", FormatTable(TimesTable(plan), terminal));
      break;
  }
  return output;
}

void AddGetPlan(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetPlanOptions>();
  CLI::App& app = *get.add_subcommand("plan", "One decision of a job, and what took how long");
  AddInteger(app, "plan", options->plan, "Its number, as `eplbctl get plans` shows it")
      ->required()
      ->check(&CheckNotNegative)
      ->type_name("PLAN");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound}, Formats::kWithTrace);
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunGetPlan(*options, terminal); };
  });
}

namespace {

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

}  // namespace

Output RunGetEvents(const GetEventsOptions& options, const Terminal& terminal) {
  const absl::StatusOr<std::string> job = ChooseJob(options.query, options.job);
  if (!job.ok()) return QueryFailure(job.status());
  v1::ListEventsRequest request;
  request.set_job(*job);
  request.set_limit(static_cast<uint32_t>(options.limit));
  request.set_after_sequence(static_cast<uint64_t>(options.after));
  v1::ListEventsResponse response;
  if (const absl::Status status = Ask(options.query, request, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = EventsToJson(*job, response), .message = {}};
  }
  std::string text;
  for (const v1::JobEvent& event : response.events()) text += EventLine(event, terminal);
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddGetEvents(CLI::App& get, Command& command) {
  const auto options = std::make_shared<GetEventsOptions>();
  CLI::App& app = *get.add_subcommand("events", "The audit log of a job, newest first");
  AddJobOption(app, options->job);
  AddLimitOption(app, options->limit);
  AddInteger(app, "--after", options->after, "Only events after this one")
      ->check(&CheckNotNegative)
      ->type_name("SEQUENCE");
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunGetEvents(*options, terminal); });
}

void AddGet(CLI::App& root, Command& command) {
  CLI::App& app = *root.add_subcommand(
      "get", "Show jobs, ranks, a placement, windows, plans, a plan or events of the daemon");
  app.require_subcommand(1);
  AddGetJobs(app, command);
  AddGetRanks(app, command);
  AddGetPlacement(app, command);
  AddGetWindows(app, command);
  AddGetPlans(app, command);
  AddGetPlan(app, command);
  AddGetEvents(app, command);
}

}  // namespace eplb::cli
