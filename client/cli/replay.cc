#include "client/cli/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/files.h"
#include "base/json_or_null.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/html_report.h"
#include "client/cli/page_documents.h"
#include "client/cli/replay_page.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"
#include "placement/decision/rebalance.h"
#include "placement/figure_mean.h"
#include "placement/policies/registry.h"
#include "placement/split/batch_split.h"
#include "proto/wire/message_json.h"
#include "proto/wire/settings.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kHistory = 4;    // windows, by default
constexpr char kWindow[] = "sum";  // likewise

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
  for (LoadWindow& window : file.windows) {
    trace.steps.push_back({window.first_step, window.last_step});
    trace.windows.push_back(std::move(window.load));
  }
  return trace;
}

absl::Status CheckCount(const char* flag, int64_t count) {
  if (count >= 1 && count <= kMaxReplayWindows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", count, ", expected 1..", kMaxReplayWindows));
}

absl::StatusOr<ReplayOptions> MakeReplayOptions(const ReplayCommandOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckCount("--every", options.every));
  EPLB_RETURN_IF_ERROR(CheckCount("--history", options.history.value_or(kHistory)));
  EPLB_RETURN_IF_ERROR(CheckCount("--horizon-windows", options.horizon_windows.value_or(1)));
  if (!(options.min_gain >= 0 && options.min_gain <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-gain is ", options.min_gain, ", expected 0..1"));
  }
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window.value_or(kWindow)));
  ReplayOptions replay{
      .every = options.every,
      .history = rule.kind == WindowRule::Kind::kLast ? 1 : options.history.value_or(kHistory),
      .decay = {},
      .min_gain = options.min_gain,
      .split = SplitModeOf(options.split),
      .policy = PolicyOptionsOf(options.frame),
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
  std::string page;  // for --html
};

absl::StatusOr<Replayed> ReplayFile(const ReplayCommandOptions& options) {
  EPLB_RETURN_IF_ERROR(MakeCheckedPolicy(options.frame).status());
  EPLB_ASSIGN_OR_RETURN(const ReplayOptions replay, MakeReplayOptions(options));
  EPLB_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(options));
  EPLB_ASSIGN_OR_RETURN(const Topology topology,
                        MakeTopology(options.frame, trace.windows.front(), options.slots));
  const ReplayTrace windows{trace.windows, trace.steps};
  std::optional<ReplayPage> page;
  if (!options.html.empty()) {
    page.emplace(windows, topology, replay,
                 ReplayPageOptions{.trace = options.trace, .policy = options.frame.policy});
  }
  Progress progress("window", static_cast<int64_t>(trace.windows.size()));
  absl::StatusOr<ReplayResult> result = Replay(
      windows, topology, options.frame.policy, replay,
      [&progress](int64_t window) { progress.Reached(window); },
      page ? ReplayObserver([&page](int64_t window, const ReplayRow& row, const Placement& ran) {
        return page->Ran(window, row, ran);
      })
           : ReplayObserver());
  if (!result.ok()) return InFile(options.trace, result.status());
  Replayed replayed{topology, *std::move(result), trace.note, ""};
  if (page) {
    EPLB_ASSIGN_OR_RETURN(replayed.page, HtmlReport(page->Finish(replayed.result)));
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
  const bool given = options.history.has_value() || options.window.has_value();
  if (!TraitsOf(options.frame.policy).chooses || !given) return "";
  return absl::StrCat("note: ", options.history.has_value() ? "--history" : "--window",
                      " has no effect on policy ", options.frame.policy,
                      ": its back-test chooses the windows that a decision looks at");
}

// For stderr: what makes the answer worth less than it looks.
std::string Notes(const ReplayCommandOptions& options, const ReplayResult& result) {
  std::string note = LinksNote(options.costs);
  note = JoinMessages(note, EqualSharesNote(options.frame, options.split));
  note = JoinMessages(note, HistoryNote(options));
  if (TraitsOf(options.frame.policy).chooses && options.costs.expert_bytes == 0) {
    note = JoinMessages(
        note, absl::StrCat("note: ", options.frame.policy,
                           " measures prices in the daemon; give --expert-bytes, --token-ns and "
                           "--link-gbps to price moves"));
  }
  if (const int64_t idle = result.summary.windows_without_tokens; idle > 0) {
    note = JoinMessages(
        note, absl::StrCat("note: ", idle, " of ", Counted(std::ssize(result.rows), "window"),
                           " have no tokens and are in no mean"));
  }
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
  if (!options.html.empty()) {
    const absl::Status written = WriteFileAtomically(options.html, replayed->page);
    if (!written.ok()) return Failure(kError, written);
  }
  return {.exit_code = kOk,
          .out = options.format == Format::kJson
                     ? ReplayToJson(options, replayed->result)
                     : ReplayToTable(options, replayed->topology, replayed->result, terminal),
          .message = JoinMessages(replayed->note, Notes(options, replayed->result))};
}

void AddReplay(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ReplayCommandOptions>();
  CLI::App& app =
      *root.add_subcommand("replay", "Decide on a recorded trace by the rules of the daemon");
  app.add_option(
         "--trace", options->trace,
         "Windows: JSON lines, .npy or .npz of three dimensions, or what other systems record")
      ->required()
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  AddInteger(app, "--slots", options->slots, "Slots of a layer over all GPUs")
      ->required()
      ->type_name("S");
  AddShapeOptions(app, options->frame);
  AddInteger(app, "--every", options->every, "Windows between decisions [1]")->type_name("W");
  AddInteger(app, "--history", options->history,
             absl::StrCat("Windows that a decision looks at [", kHistory, "]"))
      ->type_name("H");
  app.add_option("--window", options->window,
                 absl::StrCat("How they become one load [", kWindow, "]"))
      ->type_name("sum|last|ema:A");
  AddChoice(app, "--split", options->split,
            "Tokens among replicas: equal shares, or each window exactly [equal]",
            {"equal", "batch"});
  AddFraction(app, "--min-gain", options->min_gain,
              absl::StrCat("Least fall of the peak GPU load of these windows, 0..1 [",
                           options->min_gain, "]"))
      ->type_name("X");
  AddInteger(app, "--horizon-windows", options->horizon_windows,
             "A gain counts over at most this time [4 decisions]")
      ->type_name("Z");
  AddCostOptions(app, options->costs);
  app.add_option("--html", options->html,
                 "Write the web page of the replay here, one file for a browser")
      ->type_name("FILE");
  AddFormat(app, options->format);
  app.footer(
      absl::StrCat("Time saved counts against the time without EPLB: one slot per expert, in\n"
                   "order, whatever --slots is. A window without tokens is in no mean.\n"
                   "By default the daemon decides by policy ",
                   std::string(kServicePolicyName), " and min_gain ", wire::Settings().min_gain,
                   ", replay by policy\n", options->frame.policy, " and --min-gain ",
                   options->min_gain,
                   ". Policy auto decides by the back-test of all windows\n"
                   "before; --history and --window have no effect on it.\n") +
      "Examples:\n"
      "  eplbctl replay --trace trace.jsonl --gpus 8 --slots 64 --policy incremental\n"
      "  eplbctl replay --trace trace.jsonl --gpus 32 --nodes 4 --slots 288 --every 4 \\\n"
      "      --expert-bytes 88080384 --link-gbps 450,50 --token-ns 176 -o json\n"
      "  eplbctl replay --trace trace.jsonl --gpus 8 --slots 72 --policy flow \\\n"
      "      --split batch\n"
      "Exit codes: 0 replayed, 1 error, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunReplay(*options, terminal); };
  });
}

// The table form of a replay.

namespace {

constexpr size_t kMaxRebalances = 12;  // of rebalances
constexpr int kStripHeight = 4;        // lines
constexpr int kReplayLabel = 14;       // columns before a chart

std::string Heading(const ReplayCommandOptions& options, const Topology& topology,
                    const ReplayResult& result, const Terminal& terminal) {
  const std::string name = absl::StrCat("Replay by ", options.frame.policy);
  const std::string windows = absl::StrCat(
      ", ", Counted(static_cast<int64_t>(result.rows.size()), "window"), ": decided every ",
      options.every == 1 ? "window" : Counted(options.every, "window"), " on ",
      TraitsOf(options.frame.policy).chooses
          ? "what its back-test chose"
          : absl::StrCat("the last ", Counted(options.history.value_or(kHistory), "window"), " (",
                         options.window.value_or(kWindow), ")"));
  std::string text = absl::StrCat(Paint(terminal, Colour::kBold, name),
                                  Wrapped(windows, terminal.width - DisplayWidth(name), 2), "\n",
                                  Wrapped(ShapeText(topology), terminal.width, 2), "\n");
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
  return absl::StrCat(text, Wrapped(prices, terminal.width, 2), "\n", split);
}

std::string Summary(const ReplaySummary& summary, const Terminal& terminal) {
  if (!summary.balancedness_mean) {
    return absl::StrCat(Counted(summary.rebalances, "rebalance"),
                        ". No window has tokens: there is nothing to compare.\n");
  }
  std::string text = FormatTable(
      {.heading = {"", "without EPLB", "replay"},
       .right = {false, true, true},
       .rows = {{"balancedness (mean / max GPU load), mean",
                 FigureText(summary.balancedness_without_eplb_mean),
                 FigureText(summary.balancedness_mean)},
                {"seconds of the fullest GPUs", SecondsText(summary.without_eplb_seconds),
                 SecondsText(Finite(summary.without_eplb_seconds - summary.seconds_saved))},
                {"seconds of migrations and replicas", "0 s", SecondsText(summary.seconds_spent)}}},
      terminal);
  const double net = Finite(summary.seconds_saved - summary.seconds_spent);
  const double whole = summary.without_eplb_seconds;
  const double share = whole > 0 ? net / whole : 0;
  const std::string verdict = absl::StrFormat(
      "%s, %s, %s moved. Net: %s %s, %.2f %% of the time without EPLB.",
      Counted(summary.rebalances, "rebalance"), Counted(summary.transfers, "transfer"),
      BytesText(summary.bytes), SecondsText(std::abs(net)), net < 0 ? "lost" : "saved",
      100 * std::abs(share));
  return absl::StrCat(text, "\n",
                      Paint(terminal, net < 0 ? Colour::kYellow : Colour::kGreen,
                            Wrapped(verdict, terminal.width, 2)),
                      "\n");
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
    bool begun = false;
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string line(absl::StripTrailingAsciiWhitespace(lines[i]));
      const bool last = i + 1 == lines.size();
      begun = begun || last || !line.empty();
      if (!begun) continue;  // lines above the highest column
      const Colour colour = field == &ReplayRow::balancedness ? Colour::kGreen : Colour::kYellow;
      absl::StrAppend(&text, absl::StrFormat("%-*s", kReplayLabel, last ? name : ""),
                      Paint(terminal, colour, line), "\n");
    }
  }
  return text;
}

std::string Rebalances(const ReplayResult& result, const Terminal& terminal) {
  std::string text = Paint(terminal, Colour::kBold, "Rebalances");
  text += "\n";
  Table table{.heading = {"before window", "transfers", "moved", "migration", "balancedness"},
              .right = {true, true, true, true, true},
              .rows = {}};
  for (size_t t = 0; t < result.rows.size(); ++t) {
    const ReplayRow& row = result.rows[t];
    if (!row.rebalanced || table.rows.size() == kMaxRebalances) continue;
    table.rows.push_back({Grouped(static_cast<int64_t>(t)), Grouped(row.transfers),
                          BytesText(row.bytes), SecondsText(row.migration_seconds),
                          FigureText(row.balancedness)});
  }
  if (table.rows.empty()) return text + "none\n";
  text += FormatTable(table, terminal);
  const int64_t more = result.summary.rebalances - static_cast<int64_t>(table.rows.size());
  if (more > 0) absl::StrAppend(&text, "and ", Grouped(more), " more (-o json has them all)\n");
  return text;
}

// Neighbouring windows whose decisions came down to the same, or one rebalance.
struct Stretch {
  size_t first = 0;
  size_t last = 0;
  RebalanceRule rule = RebalanceRule::kNoChange;
  bool rebalanced = false;
  const std::string* reason = nullptr;  // of the last decision
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
    if (!joins) {
      stretches.push_back({.first = t, .rule = *row.rule, .rebalanced = row.rebalanced});
    }
    stretches.back().last = t;
    stretches.back().reason = &row.reason;
  }
  return stretches;
}

// The stretches that explain most of the chart, in its order: the longest, then the earliest.
std::vector<Stretch> MostTelling(std::vector<Stretch> stretches) {
  if (stretches.size() <= kMaxRebalances) return stretches;
  std::stable_sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) {
    return a.last - a.first > b.last - b.first;
  });
  stretches.resize(kMaxRebalances);
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.first < b.first; });
  return stretches;
}

std::string Why(const ReplayResult& result, const Terminal& terminal) {
  const std::vector<Stretch> all = StretchesOf(result);
  if (all.empty()) return "";
  std::string text = absl::StrCat("\n", Paint(terminal, Colour::kBold, "Why"), "\n");
  const std::vector<Stretch> shown = MostTelling(all);
  for (const Stretch& stretch : shown) {
    const std::string windows =
        stretch.first == stretch.last
            ? absl::StrCat("window ", stretch.first)
            : absl::StrCat("windows ", stretch.first, "..", stretch.last, ", the last");
    absl::StrAppend(&text, Wrapped(absl::StrCat(windows, ": ", *stretch.reason), terminal.width, 2),
                    "\n");
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
  return absl::StrCat(Heading(options, topology, result, terminal), "\n",
                      Summary(result.summary, terminal), "\n", Chart(result, terminal), "\n",
                      Rebalances(result, terminal), Why(result, terminal));
}

}  // namespace eplb::cli
