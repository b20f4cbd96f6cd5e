#include "client/cli/replay.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/links.h"
#include "client/cli/progress.h"
#include "client/files/load_file.h"
#include "client/files/load_window.h"
#include "client/files/read_file.h"
#include "placement/status_macros.h"

#include <CLI/CLI.hpp>
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
  for (LoadWindow& window : file.windows) {
    trace.steps.push_back({window.first_step, window.last_step});
    trace.windows.push_back(std::move(window.load));
  }
  return trace;
}

absl::Status CheckCount(const char* flag, int64_t count) {
  if (count >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " is ", count, ", expected at least 1"));
}

absl::StatusOr<ReplayOptions> MakeReplayOptions(const ReplayCommandOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckCount("--every", options.every));
  EPLB_RETURN_IF_ERROR(CheckCount("--history", options.history));
  EPLB_RETURN_IF_ERROR(CheckCount("--horizon-windows", options.horizon_windows.value_or(1)));
  if (!(options.min_gain >= 0 && options.min_gain <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-gain is ", options.min_gain, ", expected 0..1"));
  }
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  ReplayOptions replay{.every = options.every,
                       .history = rule.kind == WindowRule::Kind::kLast ? 1 : options.history,
                       .decay = {},
                       .min_gain = options.min_gain,
                       .costs = {},
                       .horizon_windows = options.horizon_windows.value_or(0)};
  if (rule.kind == WindowRule::Kind::kEma) replay.decay = rule.decay;
  EPLB_ASSIGN_OR_RETURN(replay.costs, MakeCosts(options.costs));
  return replay;
}

// A replay, and what it was of.
struct Replayed {
  Topology topology;
  ReplayResult result;
  std::string note;  // said of the trace's file
};

absl::StatusOr<Replayed> ReplayFile(const ReplayCommandOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakeFramePolicy(options.frame));
  EPLB_ASSIGN_OR_RETURN(const ReplayOptions replay, MakeReplayOptions(options));
  EPLB_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(options));
  EPLB_ASSIGN_OR_RETURN(const Topology topology,
                        MakeFrameTopology(options.frame, trace.windows.front(), options.slots));
  Progress progress("window", static_cast<int64_t>(trace.windows.size()));
  absl::StatusOr<ReplayResult> result =
      Replay({trace.windows, trace.steps}, topology, *policy, replay,
             [&progress](int64_t window) { progress.Reached(window); });
  if (!result.ok()) return InFile(options.trace, result.status());
  return Replayed{topology, *std::move(result), trace.note};
}

std::string ReplayToJson(const ReplayResult& result) {
  Json rows = Json::array();
  for (size_t t = 0; t < result.rows.size(); ++t) {
    const ReplayRow& row = result.rows[t];
    rows.push_back({{"window", t},
                    {"balancedness_static", row.balancedness_static},
                    {"balancedness", row.balancedness},
                    {"rebalanced", row.rebalanced},
                    {"decided_by", row.rule ? NameOf(*row.rule) : "nothing_due"},
                    {"reason", row.reason},
                    {"transfers", row.transfers},
                    {"bytes", row.bytes},
                    {"migration_seconds", row.migration_seconds},
                    {"replica_seconds", row.replica_seconds},
                    {"seconds_saved", row.saved_seconds}});
  }
  const ReplaySummary& summary = result.summary;
  const Json json = {{"windows", std::move(rows)},
                     {"summary",
                      {{"balancedness_static_mean", summary.balancedness_static_mean},
                       {"balancedness_mean", summary.balancedness_mean},
                       {"rebalances", summary.rebalances},
                       {"transfers", summary.transfers},
                       {"bytes", summary.bytes},
                       {"seconds_static", summary.static_seconds},
                       {"seconds_saved", summary.seconds_saved},
                       {"seconds_spent", summary.seconds_spent}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// For stderr: what makes the answer worth less than it looks.
std::string Notes(const ReplayCommandOptions& options, const ReplayResult& result) {
  std::string note = LinksNote(options.costs);
  if (result.rows.size() == 1) {
    absl::StrAppend(&note, note.empty() ? "note: " : "; ", options.trace,
                    " has 1 window, which runs the starting layout: nothing was decided");
  }
  return note;
}

}  // namespace

Output RunReplay(const ReplayCommandOptions& options, const Terminal& terminal) {
  const absl::StatusOr<Replayed> replayed = ReplayFile(options);
  if (!replayed.ok()) return UsageFailure(replayed.status());
  return {.exit_code = kOk,
          .out = options.format == Format::kJson
                     ? ReplayToJson(replayed->result)
                     : ReplayToTable(options, replayed->topology, replayed->result, terminal),
          .message = JoinMessages(replayed->note, Notes(options, replayed->result))};
}

void AddReplay(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ReplayCommandOptions>();
  CLI::App& app =
      *root.add_subcommand("replay", "Decide on a recorded trace as the daemon would have");
  app.add_option(
         "--trace", options->trace,
         "Windows: JSON lines, .npy or .npz of three dimensions, or what other systems record")
      ->required()
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  app.add_option("--slots", options->slots, "Slots of a layer over all GPUs")
      ->required()
      ->type_name("S");
  AddFrameOptions(app, options->frame);
  app.add_option("--every", options->every, "Windows between decisions [1]")->type_name("W");
  app.add_option("--history", options->history, "Windows that a decision looks at [4]")
      ->type_name("H");
  app.add_option("--window", options->window, "How they become one load [sum]")
      ->type_name("sum|last|ema:A");
  app.add_option("--min-gain", options->min_gain, "Least fall of the predicted peak load [0.05]")
      ->type_name("X");
  app.add_option("--horizon-windows", options->horizon_windows,
                 "A placement is trusted no longer than this [as long as it was watched]")
      ->type_name("Z");
  AddCostOptions(app, options->costs);
  AddFormat(app, options->format);
  app.footer(
      "The policy of a daemon that was told of none is incremental.\n"
      "Examples:\n"
      "  eplbctl replay --trace trace.jsonl --gpus 8 --slots 64 --policy incremental\n"
      "  eplbctl replay --trace trace.jsonl --gpus 32 --nodes 4 --slots 288 --every 4 \\\n"
      "      --expert-bytes 88080384 --link-gbps 450,50 --token-ns 176 -o json\n"
      "Exit codes: 0 replayed, 1 error, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunReplay(*options, terminal); };
  });
}

}  // namespace eplb::cli
