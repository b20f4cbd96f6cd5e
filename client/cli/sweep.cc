#include "client/cli/sweep.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "client/cli/bound_gap.h"
#include "client/cli/links.h"
#include "client/cli/progress.h"
#include "client/files/load_file.h"
#include "client/files/load_window.h"
#include "client/files/read_file.h"
#include "placement/bound.h"
#include "placement/evaluate.h"
#include "placement/status_macros.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxRows = 10000;
constexpr int64_t kMaxSlots = int64_t{1} << 20;  // as Topology::Make

// "A:B:STEP": A, A + STEP, .. up to B.
absl::StatusOr<std::vector<int32_t>> ParseSlots(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t numbers[3] = {0, 0, 1};
  bool read = parts.size() <= 3;
  for (size_t i = 0; read && i < parts.size(); ++i) {
    read = absl::SimpleAtoi(parts[i], &numbers[i]) && numbers[i] >= 1 && numbers[i] <= kMaxSlots;
  }
  if (parts.size() == 1) numbers[1] = numbers[0];
  const auto [first, last, step] = numbers;
  if (!read || last < first) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--slots is \"", text, "\", expected A:B:STEP with 1 <= A <= B <= 2^20 and STEP >= 1"));
  }
  if ((last - first) / step >= kMaxRows) {
    return absl::InvalidArgumentError(absl::StrCat("--slots ", text, " has ",
                                                   (last - first) / step + 1, " rows, at most ",
                                                   kMaxRows, " are computed"));
  }
  std::vector<int32_t> slots;
  for (int64_t value = first; value <= last; value += step) {
    slots.push_back(static_cast<int32_t>(value));
  }
  return slots;
}

// What is swept over: a load of so many steps, and its prices.
struct Basis {
  Load load;
  double num_steps = 1;
  Costs costs;
};

absl::StatusOr<SweepRow> MakeRow(const SweepOptions& options, const Policy& policy,
                                 const Basis& basis, int32_t slots) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology,
                        MakeFrameTopology(options.frame, basis.load, slots));
  absl::StatusOr<Placement> placement = policy.Solve({.load = basis.load, .topology = topology});
  if (!placement.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("policy ", options.frame.policy, ", ", slots,
                                                   " slots: ", placement.status().message()));
  }
  EPLB_ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(basis.load, *placement));
  EPLB_ASSIGN_OR_RETURN(
      const std::vector<double> bounds,
      LowerBounds(basis.load, topology, {.hierarchy = HierarchyInForce(options.frame, topology)}));
  EPLB_ASSIGN_OR_RETURN(const BoundGaps gaps, GapsToBounds(evaluation.max_gpu_load, bounds));
  return SweepRow{
      .slots = slots,
      .balancedness_mean = evaluation.mean_balancedness,
      .balancedness_min = evaluation.min_balancedness,
      .bound_gap_mean = Finite(gaps.mean),
      .extra_slots_per_gpu = static_cast<double>(slots - topology.num_experts()) /
                             static_cast<double>(topology.num_gpus()),
      .token_seconds = Finite(evaluation.peak_load / basis.num_steps * basis.costs.token_seconds),
      .replica_seconds = ReplicaSecondsPerStep(*placement, basis.costs)};
}

struct Sweep {
  Topology smallest;
  std::vector<SweepRow> rows;
  std::string note = {};  // said of the load's file
};

absl::StatusOr<Sweep> ComputeRows(const SweepOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakeFramePolicy(options.frame));
  EPLB_ASSIGN_OR_RETURN(const std::vector<int32_t> slots, ParseSlots(options.slots));
  EPLB_ASSIGN_OR_RETURN(const Costs costs, MakeCosts(options.costs));
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  absl::StatusOr<Load> load = CombineWindows(file.windows, rule);
  if (!load.ok()) return InFile(options.load, load.status());
  const Basis basis{*std::move(load), StepsOfWindows(file.windows, rule), costs};
  EPLB_ASSIGN_OR_RETURN(const Topology smallest,
                        MakeFrameTopology(options.frame, basis.load, slots.front()));
  Progress progress("slot count", static_cast<int64_t>(slots.size()));
  Sweep sweep{.smallest = smallest, .rows = {}, .note = NotesOn(options.load, file)};
  for (const int32_t count : slots) {
    progress.Reached(static_cast<int64_t>(sweep.rows.size()));
    EPLB_ASSIGN_OR_RETURN(SweepRow row, MakeRow(options, *policy, basis, count));
    sweep.rows.push_back(row);
  }
  return sweep;
}

std::string SweepToJson(const SweepOptions& options, const std::vector<SweepRow>& rows) {
  Json json = {{"rows", Json::array()}};
  for (const SweepRow& row : rows) {
    Json entry = {{"slots", row.slots},
                  {"balancedness_mean", row.balancedness_mean},
                  {"balancedness_min", row.balancedness_min},
                  {"bound_gap_mean", row.bound_gap_mean},
                  {"extra_slots_per_gpu", row.extra_slots_per_gpu}};
    if (options.costs.training) {
      entry["token_seconds_per_step"] = row.token_seconds;
      entry["replica_seconds_per_step"] = row.replica_seconds;
      entry["seconds_per_step"] = Finite(row.token_seconds + row.replica_seconds);
    }
    json["rows"].push_back(std::move(entry));
  }
  return json.dump() + "\n";
}

}  // namespace

Output RunSweep(const SweepOptions& options, const Terminal& terminal) {
  const absl::StatusOr<Sweep> sweep = ComputeRows(options);
  if (!sweep.ok()) return UsageFailure(sweep.status());
  return {.exit_code = kOk,
          .out = options.format == Format::kJson
                     ? SweepToJson(options, sweep->rows)
                     : SweepToTable(options, sweep->smallest, sweep->rows, terminal),
          .message = JoinMessages(
              JoinMessages(sweep->note, LinksNote(options.costs)),
              options.frame.max_moves_per_gpu.has_value()
                  ? "note: --max-moves-per-gpu has no effect, there is no placement to move from"
                  : "")};
}

void AddSweep(CLI::App& root, Command& command) {
  const auto options = std::make_shared<SweepOptions>();
  CLI::App& app = *root.add_subcommand("sweep", "Say how many redundant slots are worth it");
  app.add_option("--load", options->load,
                 "JSON, JSON lines of windows, .npy, .npz, CSV, or what other systems record")
      ->required()
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  app.add_option("--slots", options->slots, "Slots of a layer over all GPUs, from A to B")
      ->required()
      ->type_name("A:B:STEP");
  AddFrameOptions(app, options->frame);
  app.add_option("--window", options->window, "How windows become one load [sum]")
      ->type_name("sum|last|ema:A");
  AddCostOptions(app, options->costs);
  AddFormat(app, options->format);
  app.footer(
      "Examples:\n"
      "  eplbctl sweep --load load.json --gpus 32 --slots 256:352:32\n"
      "  eplbctl sweep --load trace.jsonl --gpus 8 --slots 64:80:8 --training\n"
      "Exit codes: 0 computed, 1 error, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunSweep(*options, terminal); };
  });
}

}  // namespace eplb::cli
