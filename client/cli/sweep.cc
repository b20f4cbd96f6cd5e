// `eplbctl sweep`: what additional redundant slots would gain.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/held_out.h"
#include "client/cli/message_table.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"
#include "placement/evaluate.h"
#include "placement/search/bound.h"
#include "placement/split/batch_split.h"
#include "proto/wire/message_json.h"

#include "eplb/v1/review.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {

namespace {

using Json = nlohmann::ordered_json;

struct SweepOptions {
  std::string load;
  LoadReading reading;
  ShapeOptions frame;
  std::string slots;  // A:B:STEP, A:B or A
  std::string window = "sum";
  std::string split = "equal";                    // equal, batch
  CostOptions costs{.expert_bytes = 88'080'384};  // DeepSeek-V3: 44.04 M parameters in bf16
  Format format = Format::kTable;
};

constexpr int64_t kMaxRows = 10000;
constexpr int64_t kMaxSlots = int64_t{1} << 20;  // most slots of a Topology

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
    return InvalidInput("--slots is \"", text,
                        "\", expected A:B:STEP with 1 <= A <= B <= 2^20 and STEP >= 1");
  }
  if ((last - first) / step >= kMaxRows) {
    return InvalidInput("--slots ", text, " has ", (last - first) / step + 1, " rows, at most ",
                        kMaxRows, " are computed");
  }
  std::vector<int32_t> slots;
  for (int64_t value = first; value <= last; value += step) {
    slots.push_back(static_cast<int32_t>(value));
  }
  return slots;
}

// The load that is planned for, the windows that the placements are scored on, and prices.
struct Basis {
  Load load;
  std::vector<Load> windows;  // windows behind the load
  HeldOut held_out;
  Costs costs;
};

struct Outcome {
  Evaluation evaluation;
  BoundGaps gaps;
};

// Scores a placement on the windows to be scored, each in equal shares or split exactly.
absl::StatusOr<Outcome> OutcomeOf(const SweepOptions& options, const Basis& basis,
                                  const Placement& placement, SplitMode split) {
  Outcome outcome;
  EPLB_ASSIGN_OR_RETURN(outcome.evaluation,
                        EvaluateWindows(basis.held_out.scored, placement, split));
  const Topology& topology = placement.topology();
  std::vector<double> bounds(static_cast<size_t>(topology.num_layers()));
  for (const Load& load : basis.held_out.scored) {
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> of_load,
                          LowerBounds(load, topology,
                                      {.hierarchy = HierarchyInForce(options.frame, topology),
                                       .any_split = split == SplitMode::kBatch}));
    for (size_t layer = 0; layer < bounds.size(); ++layer) bounds[layer] += of_load[layer];
  }
  EPLB_ASSIGN_OR_RETURN(outcome.gaps, GapsToBounds(outcome.evaluation.max_gpu_load, bounds));
  return outcome;
}

absl::StatusOr<v1::SweepRow> MakeRow(const SweepOptions& options, const Policy& policy,
                                     const Basis& basis, int32_t slots) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, MakeTopology(options.frame, basis.load, slots));
  const SplitMode split = SplitModeOf(options.split);
  absl::StatusOr<Placement> placement = policy.Solve(
      {.load = basis.load, .topology = topology, .split = split, .recent = basis.windows});
  if (!placement.ok()) {
    return InvalidInput("policy ", options.frame.policy.name, ", ", slots,
                        " slots: ", placement.status().message());
  }
  EPLB_ASSIGN_OR_RETURN(const Outcome outcome, OutcomeOf(options, basis, *placement, split));
  const Evaluation& evaluation = outcome.evaluation;
  v1::SweepRow row;
  row.set_slots(static_cast<uint32_t>(slots));
  row.set_extra_slots_per_gpu(static_cast<double>(slots - topology.num_experts()) /
                              static_cast<double>(topology.num_gpus()));
  if (evaluation.mean_balancedness) {  // otherwise no layer has tokens
    row.set_balancedness_mean(*evaluation.mean_balancedness);
    row.set_balancedness_min(evaluation.min_balancedness.value_or(0));
    row.set_bound_gap_mean(Finite(outcome.gaps.mean.value_or(0)));
  }
  if (!options.costs.training) return row;
  row.set_replica_seconds_per_step(ReplicaSecondsPerStep(*placement, basis.costs));
  if (evaluation.peak_load > 0) {
    row.set_token_seconds_per_step(
        Finite(evaluation.peak_load / basis.held_out.scored_steps * basis.costs.token_seconds));
    row.set_seconds_per_step(Finite(row.token_seconds_per_step() + row.replica_seconds_per_step()));
  }
  return row;
}

std::string ScoredOnSentence(const HeldOut& held_out) {
  if (held_out.out_of_sample) return absl::StrCat(ScoredOnText(held_out), ".");
  return "Scored on the load it was made for; later loads are less balanced.";
}

struct Sweep {
  Topology smallest;
  std::vector<v1::SweepRow> rows;
  std::string note;       // said of the load's file
  std::string scored_on;  // a sentence
  bool out_of_sample = false;
  int64_t planned_windows = 0;
  int64_t scored_windows = 0;
};

absl::StatusOr<Sweep> ComputeRows(const SweepOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakeCheckedPolicy(options.frame));
  EPLB_ASSIGN_OR_RETURN(const std::vector<int32_t> slots, ParseSlots(options.slots));
  EPLB_ASSIGN_OR_RETURN(const Costs costs, MakeCosts(options.costs));
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  HeldOut held_out = HoldOut(file.windows);
  EPLB_ASSIGN_OR_RETURN(Load load, InFile(options.load, CombineWindows(held_out.planned, rule)));
  EPLB_RETURN_IF_ERROR(CheckSplit(options.split, options.load, file.windows));
  std::vector<Load> batches = BatchesOf(held_out.planned, rule);
  const Basis basis{.load = std::move(load),
                    .windows = std::move(batches),
                    .held_out = std::move(held_out),
                    .costs = costs};
  EPLB_ASSIGN_OR_RETURN(const Topology smallest,
                        MakeTopology(options.frame, basis.load, slots.front()));
  Waiting waiting("slot count", std::ssize(slots));
  Sweep sweep{.smallest = smallest,
              .rows = {},
              .note = NotesOn(options.load, file),
              .scored_on = ScoredOnSentence(basis.held_out),
              .out_of_sample = basis.held_out.out_of_sample,
              .planned_windows = std::ssize(basis.held_out.planned),
              .scored_windows = std::ssize(basis.held_out.scored)};
  for (const int32_t count : slots) {
    waiting.Reached(std::ssize(sweep.rows));
    EPLB_ASSIGN_OR_RETURN(v1::SweepRow row, MakeRow(options, *policy, basis, count));
    sweep.rows.push_back(std::move(row));
  }
  return sweep;
}

std::string SweepToJson(const SweepOptions& options, const Sweep& sweep) {
  Json json = {{"split", options.split},
               {"scored_on", sweep.out_of_sample ? "later_windows" : "planned_load"},
               {"planned_windows", sweep.planned_windows},
               {"scored_windows", sweep.scored_windows},
               {"rows", Json::array()}};
  for (const v1::SweepRow& row : sweep.rows) json["rows"].push_back(wire::ToJson(row));
  return wire::DumpJson(json) + "\n";
}

// For stderr: what makes the rows mean less, or something else, than the flags ask for.
std::string Notes(const SweepOptions& options, const Sweep& sweep) {
  return JoinMessages(
      {sweep.note, LinksNote(options.costs),
       sweep.rows.front().has_balancedness_mean()
           ? ""
           : "note: what is scored has no tokens, so that there are no figures",
       NoHistoryNote(options.frame, "a sweep", /*from_previous=*/false),
       EqualSharesNote(options.frame, options.split),
       options.frame.max_moves_per_gpu
           ? "note: --max-moves-per-gpu has no effect, there is no placement to move from"
           : ""});
}

// For people; no line is wider than the terminal.
std::string SweepToTable(const SweepOptions& options, const Sweep& sweep,
                         const Terminal& terminal) {
  std::string text =
      absl::StrCat(Heading(absl::StrCat("Sweep by ", options.frame.policy.name), terminal),
                   Paragraph(absl::StrCat(ShapeText(sweep.smallest), ", and more slots"), terminal),
                   Paragraph(sweep.scored_on, terminal), "\n",
                   FormatTable(MessageTable(sweep.rows, terminal), terminal));
  std::string note = "balancedness = mean / max GPU load; gap = above the proved lower bound.";
  if (options.split == "batch") note += " Each window is split exactly among replicas.";
  if (sweep.rows.front().has_seconds_per_step()) {
    const v1::SweepRow& best =
        *std::ranges::min_element(sweep.rows, {}, &v1::SweepRow::seconds_per_step);
    absl::StrAppend(&note, " A training step is shortest with ", Counted(best.slots(), "slot"),
                    ": ", SecondsText(best.token_seconds_per_step()),
                    " for tokens on the fullest GPUs, ",
                    SecondsText(best.replica_seconds_per_step()), " for replicas of ",
                    BytesText(options.costs.weight_bytes.value_or(options.costs.expert_bytes)),
                    " over links of ", LinksText(options.costs), ".");
  }
  return absl::StrCat(text, "\n", Paragraph(note, terminal));
}

// Exit 2 for bad flags, files and shapes.
Output RunSweep(const SweepOptions& options, const Terminal& terminal) {
  EPLB_ASSIGN_OR_RETURN(const Sweep sweep, AsUsage(ComputeRows(options)));
  return {kOk,
          options.format == Format::kJson ? SweepToJson(options, sweep)
                                          : SweepToTable(options, sweep, terminal),
          Notes(options, sweep)};
}

}  // namespace

void AddSweep(const Flags& root) {
  auto [flags, options] = AddCommand<SweepOptions>(
      root, "sweep", "Show what additional redundant slots would gain", &RunSweep);
  flags.Text("load,--load", "FILE", options.load, kLoadHelp).Required();
  AddLoadReading(flags, options.reading);
  flags.Text("--slots", "A:B:STEP", options.slots, "Slots of a layer over all GPUs, from A to B")
      .Required();
  AddShapeOptions(flags, options.frame);
  AddWindow(flags, options.window);
  flags.Word("--split", {"equal", "batch"}, options.split,
             "How tokens are split among replicas: equally, or by batch [equal]");
  AddCostOptions(flags, options.costs);
  AddFormat(flags, options.format);
  flags.SetFooter(
      "Placements of a trace are planned on the earlier half of its windows and scored\n"
      "on the later half. A single window is scored on the load it was made for.\n"
      "A policy that starts from a current placement, such as incremental, starts from\n"
      "the static layout of each row.\n"
      "Examples:\n"
      "  eplbctl sweep --load load.json --gpus 32 --slots 256:352:32\n"
      "  eplbctl sweep --load trace.jsonl --gpus 8 --slots 64:80:8 --training\n"
      "Exit codes: 0 computed, 1 error, 2 wrong flag or unusable input.");
}

}  // namespace eplb::cli
