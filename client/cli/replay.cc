#include "client/cli/replay.h"

#include <initializer_list>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/json_or_null.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/page_documents.h"
#include "client/cli/replay_page.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"
#include "placement/decision/rebalance.h"
#include "proto/eplb/v1/query.pb.h"
#include "proto/wire/message_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {

namespace {

using Json = nlohmann::ordered_json;

// The windows as Replay takes them.
struct Trace {
  std::vector<Load> windows;
  std::vector<StepRange> steps;
  std::string note;  // said of the file
};

absl::StatusOr<Trace> ReadTrace(const ReplayCommandOptions& options) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadLoadFile(options.trace, options.reading));
  Trace trace;
  trace.note = NotesOn(options.trace, file);
  EPLB_RETURN_IF_ERROR(CheckSplit(options.split, options.trace, file.windows));
  if (!file.has_steps && file.windows.size() > 1) {
    trace.note =
        JoinMessages({trace.note, absl::StrCat("note: ", options.trace,
                                               " has no step numbers: each window counts as ",
                                               kUsualWindowSteps, " steps")});
  }
  for (LoadWindow& window : file.windows) {
    const int64_t first = std::ssize(trace.steps) * kUsualWindowSteps;
    trace.steps.push_back(file.has_steps ? StepRange{window.first_step, window.last_step}
                                         : StepRange{first, first + kUsualWindowSteps - 1});
    trace.windows.push_back(std::move(window.load));
  }
  return trace;
}

absl::Status CheckCount(const char* flag, int64_t count) {
  if (count >= 1 && count <= kMaxReplayWindows) return absl::OkStatus();
  return InvalidInput(flag, " is ", count, ", expected 1..", kMaxReplayWindows);
}

// Returns the job that --like names; empty without the flag.
absl::StatusOr<v1::JobStatus> AskLike(const ReplayCommandOptions& options) {
  v1::JobStatus job;
  if (options.like.empty()) return job;
  EPLB_RETURN_IF_ERROR(
      AskAboutJob(options.query, options.like, v1::GetJobRequest(), &job).status());
  return job;
}

// Checks the figures that --like takes from the job.
absl::Status CheckSwitchTime(const v1::JobStatus& job) {
  if (!job.has_switch_time()) return InvalidInput("job ", job.job(), " has no switching time yet");
  constexpr auto kMost = static_cast<double>(int64_t{1} << 62);
  const v1::SwitchTime& time = job.switch_time();
  for (const auto& [name, value, least, most] :
       std::initializer_list<std::tuple<const char*, double, double, double>>{
           {"decide_steps", time.decide_steps(), 0, kMost},
           {"vote_every", time.vote_every(), 1, kMaxReplayWindows},
           {"rows_per_chunk", static_cast<double>(time.rows_per_chunk()), 1, kMost},
           {"seconds_per_byte", time.seconds_per_byte(), 0, kMost}}) {
    if (value >= least && value <= most) continue;
    return InvalidInput("job ", job.job(), ": ", name, " is ", value, ", expected ", least, "..",
                        most);
  }
  return absl::OkStatus();
}

// Returns the usual time of a switch, with the figures of the job and then those of the flags.
absl::StatusOr<SwitchTime> SwitchTimeOf(const ReplayCommandOptions& options,
                                        const v1::JobStatus& job, const Topology& topology,
                                        const Costs& costs) {
  SwitchTime time = UsualSwitchTime(topology, costs);
  if (!options.like.empty()) {
    EPLB_RETURN_IF_ERROR(CheckSwitchTime(job));
    time.decide_steps = job.switch_time().decide_steps();
    time.vote_every = static_cast<int32_t>(job.switch_time().vote_every());
    time.rows_per_chunk = static_cast<int64_t>(job.switch_time().rows_per_chunk());
    const double per_byte = job.switch_time().seconds_per_byte();
    if (per_byte > 0) time.seconds_per_byte = per_byte;
  }
  if (job.policy().has_layers_per_chunk()) time.layers_per_chunk = job.policy().layers_per_chunk();
  if (job.policy().has_max_pause_seconds()) {
    time.max_pause_seconds = job.policy().max_pause_seconds();
  }
  EPLB_RETURN_IF_ERROR(CheckCount("--vote-every", options.vote_every.value_or(1)));
  EPLB_RETURN_IF_ERROR(CheckCount("--staging", options.staging.value_or(1)));
  if (options.vote_every) time.vote_every = static_cast<int32_t>(*options.vote_every);
  if (options.staging) time.rows_per_chunk = *options.staging * topology.max_slots_per_gpu();
  if (!options.max_pause.empty()) {
    EPLB_ASSIGN_OR_RETURN(const absl::Duration most,
                          ParseDuration("--max-pause", options.max_pause));
    time.max_pause_seconds = absl::ToDoubleSeconds(most);
  }
  return time;
}

absl::StatusOr<ReplayOptions> MakeReplayOptions(const ReplayCommandOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckCount("--every", options.every));
  EPLB_RETURN_IF_ERROR(CheckCount("--history", options.history.value_or(kDefaultHistory)));
  EPLB_RETURN_IF_ERROR(CheckCount("--horizon-windows", options.horizon_windows.value_or(1)));
  if (!(options.min_gain >= 0 && options.min_gain <= 1)) {
    return InvalidInput("--min-gain is ", options.min_gain, ", expected 0..1");
  }
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window_rule()));
  ReplayOptions replay{.every = options.every,
                       .history = rule.kind == WindowRule::Kind::kLast
                                      ? 1
                                      : options.history.value_or(kDefaultHistory),
                       .decay = {},
                       .min_gain = options.min_gain,
                       .split = SplitModeOf(options.split),
                       .policy = PolicyOptionsOf(options.frame),
                       .horizon_windows = options.horizon_windows.value_or(0)};
  if (rule.kind == WindowRule::Kind::kEma) replay.decay = rule.decay;
  EPLB_ASSIGN_OR_RETURN(replay.costs, MakeCosts(options.costs));
  return replay;
}

// One slot an expert and full GPUs; a number of GPUs that cannot be gets no further slots.
int32_t SlotsOf(const ReplayCommandOptions& options, const Load& load) {
  constexpr int32_t kMaxGpus = 1 << 20;  // a Topology has no more
  const int32_t experts = load.num_experts();
  const int32_t gpus = options.frame.gpus;
  if (options.slots || gpus < 1 || gpus > kMaxGpus) return options.slots.value_or(experts);
  return (experts + gpus - 1) / gpus * gpus;
}

// A replay, and what it was of.
struct Replayed {
  Topology topology;
  ReplayResult result;
  std::string note;  // said of the trace's file
  std::string page;  // for --html
};

absl::StatusOr<Replayed> ReplayFile(const ReplayCommandOptions& options, const v1::JobStatus& job) {
  EPLB_RETURN_IF_ERROR(MakeCheckedPolicy(options.frame).status());
  EPLB_ASSIGN_OR_RETURN(ReplayOptions replay, MakeReplayOptions(options));
  EPLB_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(options));
  const Load& first = trace.windows.front();
  EPLB_ASSIGN_OR_RETURN(const Topology topology,
                        MakeTopology(options.frame, first, SlotsOf(options, first)));
  EPLB_ASSIGN_OR_RETURN(replay.switch_time, SwitchTimeOf(options, job, topology, replay.costs));
  const ReplayTrace windows{trace.windows, trace.steps};
  std::optional<ReplayPage> page;
  if (!options.html.empty()) {
    page.emplace(windows, topology, replay,
                 ReplayPageOptions{.trace = options.trace, .policy = options.frame.policy});
  }
  Waiting waiting("window", std::ssize(trace.windows));
  absl::StatusOr<ReplayResult> result = Replay(
      windows, topology, options.frame.policy.name, replay,
      [&waiting](int64_t window) { waiting.Reached(window); },
      page ? ReplayObserver([&page](const ReplayedWindow& window) { return page->Ran(window); })
           : ReplayObserver());
  if (!result.ok()) return InFile(options.trace, result.status());
  Replayed replayed{topology, *std::move(result), trace.note, ""};
  if (page) {
    EPLB_ASSIGN_OR_RETURN(const PageJson documents, page->Finish(replayed.result));
    EPLB_ASSIGN_OR_RETURN(replayed.page, HtmlReport(documents));
  }
  return replayed;
}

std::string ReplayToJson(const ReplayCommandOptions& options, const ReplayResult& result) {
  Json rows = Json::array();
  for (size_t t = 0; t < result.rows.size(); ++t) {
    const ReplayRow& row = result.rows[t];
    rows.push_back(
        {{"window", t},
         {"balancedness_without_eplb", JsonOrNull(row.balancedness_without_eplb)},
         {"balancedness_static", JsonOrNull(row.balancedness_static)},
         {"balancedness", JsonOrNull(row.balancedness)},
         {"rebalanced", row.rebalanced},
         {"decided_by", row.rule ? NameOf(*row.rule) : "nothing_due"},
         {"reason", row.reason},
         {"balancedness_predicted",
          row.prediction ? Json(row.prediction->balancedness) : Json(nullptr)},
         {"prediction_error", row.prediction ? JsonOrNull(row.prediction->error) : Json(nullptr)},
         {"transfers", row.transfers},
         {"bytes", row.bytes},
         {"migration_seconds", row.migration_seconds},
         {"chunks", row.chunks},
         {"switched_step", JsonOrNull(row.switched_step)},
         {"replica_seconds", row.replica_seconds},
         {"seconds_saved", row.saved_seconds}});
  }
  const ReplaySummary& summary = result.summary;
  const auto known = [&summary](double seconds) {  // without tokens nothing takes time
    return summary.balancedness_mean ? Json(seconds) : Json(nullptr);
  };
  Json candidates = Json::array();
  for (const CandidateScore& one : result.candidates) {
    candidates.push_back({{"name", NameOf(one.candidate)},
                          {"balancedness", JsonOrNull(one.balancedness)},
                          {"seconds_saved", one.saved_seconds},
                          {"seconds_spent", one.spent_seconds},
                          {"realized", JsonOrNull(one.realized)}});
  }
  const Json json = {
      {"windows", std::move(rows)},
      {"summary",
       {{"split", options.split},
        {"balancedness_without_eplb_mean", JsonOrNull(summary.balancedness_without_eplb_mean)},
        {"balancedness_static_mean", JsonOrNull(summary.balancedness_static_mean)},
        {"balancedness_mean", JsonOrNull(summary.balancedness_mean)},
        {"windows_without_tokens", summary.windows_without_tokens},
        {"rebalances", summary.rebalances},
        {"transfers", summary.transfers},
        {"bytes", summary.bytes},
        {"seconds_without_eplb", known(summary.without_eplb_seconds)},
        {"seconds_static", known(summary.static_seconds)},
        {"seconds_saved", known(summary.seconds_saved)},
        {"seconds_spent", summary.seconds_spent},
        {"predictions", summary.predictions},
        {"predictions_held", summary.predictions_held}}},
      {"candidates", std::move(candidates)}};
  return wire::DumpJson(json) + "\n";
}

// A policy that chooses finds out by itself what these flags say.
std::string HistoryNote(const ReplayCommandOptions& options) {
  const bool given = options.history.has_value() || !options.window.empty();
  if (!options.frame.policy.chooses || !given) return "";
  return absl::StrCat("note: ", options.history.has_value() ? "--history" : "--window",
                      " has no effect on policy ", options.frame.policy.name,
                      ": its back-test chooses the windows that a decision looks at");
}

// For stderr: what makes the answer worth less than it looks.
std::string Notes(const ReplayCommandOptions& options, const Replayed& replayed) {
  const int64_t idle = replayed.result.summary.windows_without_tokens;
  const auto windows = std::ssize(replayed.result.rows);
  return JoinMessages(
      {replayed.note, LinksNote(options.costs), EqualSharesNote(options.frame, options.split),
       HistoryNote(options),
       options.frame.policy.chooses && options.costs.expert_bytes == 0
           ? absl::StrCat("note: ", options.frame.policy.name,
                          " measures prices in the daemon; give --expert-bytes, --token-ns and "
                          "--link-gbps to price moves")
           : "",
       idle > 0 ? absl::StrCat("note: ", idle, " of ", Counted(windows, "window"),
                               " have no tokens and are in no mean")
                : "",
       windows == 1 ? absl::StrCat("note: ", options.trace,
                                   " has 1 window, which runs the starting layout: nothing was "
                                   "decided")
                    : ""});
}

}  // namespace

Output RunReplay(const ReplayCommandOptions& options, const Terminal& terminal) {
  EPLB_ASSIGN_OR_RETURN(const v1::JobStatus job, AskLike(options));
  EPLB_ASSIGN_OR_RETURN(const Replayed replayed, AsUsage(ReplayFile(options, job)));
  EPLB_RETURN_IF_ERROR(WriteOutput(options.html, replayed.page));
  return {kOk,
          options.query.format == Format::kJson
              ? ReplayToJson(options, replayed.result)
              : ReplayToTable(options, replayed.topology, replayed.result, terminal),
          Notes(options, replayed)};
}

void AddReplay(const Flags& root) {
  auto [flags, options] = AddCommand<ReplayCommandOptions>(
      root, "replay", "Apply the daemon's decision rules to a recorded trace", &RunReplay);
  flags
      .Text("trace,--trace", "FILE", options.trace,
            "Windows: JSON lines, .npy, .npz or .pt of three dimensions, or what other systems "
            "record")
      .Required();
  AddLoadReading(flags, options.reading);
  AddInteger(flags, "--slots", "S", options.slots,
             "Slots of a layer over all GPUs [one an expert, rounded up to full GPUs]");
  AddShapeOptions(flags, options.frame);
  AddInteger(flags, "--every", "W", options.every, "Number of windows between decisions [1]");
  AddInteger(flags, "--history", "H", options.history,
             absl::StrCat("Number of windows that a decision covers [", kDefaultHistory, "]"));
  AddWindow(flags, options.window).Describe("How these windows are combined into one load [sum]");
  flags.Word("--split", {"equal", "batch"}, options.split,
             "How tokens are split among replicas: equally, or exactly for each window [equal]");
  AddFraction(flags, "--min-gain", options.min_gain,
              absl::StrCat("Least decrease of the peak GPU load of these windows, 0..1 [",
                           options.min_gain, "]"));
  AddInteger(flags, "--horizon-windows", "Z", options.horizon_windows,
             "A gain counts over at most this many windows [4 decisions]");
  AddCostOptions(flags, options.costs);
  AddInteger(flags, "--vote-every", "N", options.vote_every,
             absl::StrCat("The ranks' vote_every: a change begins at such a step [",
                          kUsualVoteEvery, "]"));
  AddInteger(flags, "--staging", "LAYERS", options.staging,
             absl::StrCat("Layers that fit into the ranks' staging [", kUsualStagingLayers, "]"));
  flags.Text("--max-pause", "DURATION", options.max_pause,
             "Longest pause of a switch, as migration.max_pause of the daemon [200ms]");
  flags.Text("--like", "JOB", options.like,
             "Job of a daemon that gives these three and the time of a decision");
  flags.Text("--html", "FILE", options.html, "Write the web page of the replay to this file");
  AddQueryOptions(flags, options.query);
  flags.SetFooter(
      "Time saved is relative to the time without EPLB: one slot per expert, in\n"
      "order, whatever --slots is. Means leave out windows without tokens.\n"
      "Policy auto, the daemon's default, decides by the back-test of all windows\n"
      "before; --history and --window have no effect on it. A decision takes effect\n"
      "as in a job: one step after its window, at the next vote, chunk by chunk.\n"
      "Examples:\n"
      "  eplbctl replay trace.jsonl --gpus 8\n"
      "  eplbctl replay trace.jsonl --gpus 32 --nodes 4 --slots 288 --every 4 \\\n"
      "      --expert-bytes 88080384 --link-gbps 450,50 --token-ns 176 -o json\n"
      "  eplbctl replay trace.jsonl --gpus 8 --slots 72 --split batch\n"
      "Exit codes: 0 replayed, 1 error, 2 wrong flag or unusable input; with --like\n"
      "also 3 daemon not reached, 4 denied, 5 no such job, 7 timeout.");
}

}  // namespace eplb::cli
