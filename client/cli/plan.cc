#include "client/cli/plan.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/formats/placement_content.h"
#include "client/cli/held_out.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"
#include "placement/policies/registry.h"
#include "placement/search/bound.h"
#include "placement/search/node_affinity.h"
#include "placement/split/alias_placement.h"
#include "placement/split/batch_split.h"
#include "placement/split/token_split.h"
#include "proto/wire/placement_files.h"
#include "proto/wire/placement_json.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

// The search for a placement is free: nothing ties it to a reference or to the placement in force.
bool PlansAnew(const ShapeOptions& frame) {
  const PolicyTraits traits = TraitsOf(frame.policy);
  return !traits.needs_previous && !traits.follows_reference;
}

absl::StatusOr<Placement> AskPolicy(const ShapeOptions& frame, const PlanProblem& problem) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakeCheckedPolicy(frame));
  return SolveAligned(*policy, {.load = problem.load,
                                .topology = problem.topology,
                                .previous = problem.previous,
                                .speeds = &problem.speeds,
                                .split = problem.split,
                                .recent = problem.windows});
}

// Every usable GPU, or under a strict hierarchy every one of a node, exactly at the mean. None
// where the construction does not apply. Shares are fractions, so tokens need not stay whole: the
// load is solved as an estimate, or a GPU could end up to one token above the equal split.
absl::StatusOr<std::optional<PlanAnswer>> SolveEvenly(const ShapeOptions& frame,
                                                      const PlanProblem& problem) {
  const Hierarchy hierarchy = HierarchyInForce(frame, problem.topology);
  if (!PlansAnew(frame) || problem.previous != nullptr || hierarchy == Hierarchy::kSoft) {
    return std::nullopt;
  }
  EPLB_ASSIGN_OR_RETURN(const Load load, Load::FromEstimates(problem.load.ToDouble()));
  const GpuSpeeds* speeds = &problem.speeds;
  absl::StatusOr<SplitPlacement> even = absl::InvalidArgumentError("not applicable");
  if (hierarchy == Hierarchy::kStrict) {
    EPLB_ASSIGN_OR_RETURN(const IndexMatrix affinities,
                          NodeAffinityByLoad(load, problem.topology, speeds));
    if (!AliasApplies(problem.topology, affinities, speeds)) return std::nullopt;
    even = SolveAlias(load, problem.topology, affinities, speeds);
  } else {
    if (!AliasApplies(problem.topology, speeds)) return std::nullopt;
    even = SolveAlias(load, problem.topology, speeds);
  }
  if (!even.ok()) return even.status();
  return PlanAnswer{std::move(even->placement), std::move(even->shares)};
}

// Experts that a GPU holds in a layer and did not hold before, on the GPU with most of them.
int32_t MostArrivals(const Placement& before, const Placement& after, LayerId layer) {
  const Topology& topology = after.topology();
  int32_t most = 0;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    const int32_t first = topology.FirstSlotOf(GpuId{gpu}).value;
    std::set<int32_t> arrived;
    std::set<int32_t> held;
    for (int32_t slot = first; slot < first + topology.SlotsOf(GpuId{gpu}); ++slot) {
      arrived.insert(after.ExpertIn(layer, SlotId{slot}).value);
      held.insert(before.ExpertIn(layer, SlotId{slot}).value);
    }
    arrived.erase(-1);
    for (const int32_t expert : held) arrived.erase(expert);
    most = std::max(most, static_cast<int32_t>(arrived.size()));
  }
  return most;
}

// `planned` where it keeps to --max-moves-per-gpu, `incremental`'s layers where it does not.
absl::StatusOr<Placement> LimitMoves(const ShapeOptions& frame, const PlanProblem& problem,
                                     const Placement& planned) {
  std::vector<LayerId> beyond;
  for (int32_t layer = 0; layer < problem.topology.num_layers(); ++layer) {
    const int32_t moves = MostArrivals(*problem.previous, planned, LayerId{layer});
    if (moves > *frame.max_moves_per_gpu) beyond.push_back(LayerId{layer});
  }
  if (beyond.empty()) return planned;
  ShapeOptions careful = frame;
  careful.policy = kIncrementalPolicyName;
  EPLB_ASSIGN_OR_RETURN(const Placement moved, AskPolicy(careful, problem));
  std::vector<LayerPlacement> layers;
  layers.reserve(beyond.size());
  for (const LayerId layer : beyond) layers.push_back(moved.Layer(layer));
  return planned.WithLayers(layers);
}

absl::StatusOr<Placement> Place(const ShapeOptions& frame, const PlanProblem& problem) {
  EPLB_ASSIGN_OR_RETURN(Placement placement, AskPolicy(frame, problem));
  const bool limited = PlansAnew(frame) && frame.max_moves_per_gpu.has_value();
  if (!limited || problem.previous == nullptr) return placement;
  return LimitMoves(frame, problem, placement);
}

}  // namespace

absl::StatusOr<PlanAnswer> SolvePlan(const ShapeOptions& frame, bool optimal_split,
                                     const PlanProblem& problem) {
  if (optimal_split) {
    EPLB_ASSIGN_OR_RETURN(std::optional<PlanAnswer> even, SolveEvenly(frame, problem));
    if (even.has_value()) return *std::move(even);
  }
  EPLB_ASSIGN_OR_RETURN(Placement placement, Place(frame, problem));
  PlanAnswer answer{std::move(placement), std::nullopt};
  if (optimal_split || problem.split == SplitMode::kBatch) {
    EPLB_ASSIGN_OR_RETURN(TokenSplit split,
                          SplitOptimally(problem.load, answer.placement, &problem.speeds));
    answer.shares = std::move(split.shares);
  }
  return answer;
}

namespace {

// The shortest text that reads back as the same double.
std::string Number(double value) {
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  return {digits, end};
}

std::string Number(const std::optional<double>& figure) {
  return figure ? Number(*figure) : "null";
}

template <class Value>
std::string Array(const std::vector<Value>& values) {
  std::string text = "[";
  for (const Value& value : values) {
    if (text.size() > 1) text += ',';
    text += Number(value);
  }
  return text + "]";
}

std::string LaterToJson(const std::optional<LaterWindows>& later) {
  if (!later) return "null";
  return absl::StrCat("{\"planned_windows\":", later->planned_windows,
                      ",\"scored_windows\":", later->scored_windows,
                      ",\"balancedness_mean\":", Number(later->evaluation.mean_balancedness),
                      ",\"balancedness_min\":", Number(later->evaluation.min_balancedness), "}");
}

// A GPU that is unusable from now on may have served before; its speed is not known then.
absl::StatusOr<GpuSpeeds> SpeedsBefore(const GpuSpeeds& speeds, const Placement& before) {
  std::vector<double> numbers(speeds.speeds().begin(), speeds.speeds().end());
  std::vector<int32_t> unusable;
  for (int32_t gpu = 0; gpu < speeds.num_gpus(); ++gpu) {
    if (speeds.Usable(GpuId{gpu})) continue;
    numbers[static_cast<size_t>(gpu)] = 1;
    if (!before.Holds(GpuId{gpu})) unusable.push_back(gpu);
  }
  return GpuSpeeds::Make(speeds.num_gpus(), numbers, unusable);
}

// Each is split exactly.
std::span<const Load> BatchesIn(const PlanProblem& problem) {
  return problem.windows.empty() ? std::span<const Load>(&problem.load, 1) : problem.windows;
}

}  // namespace

absl::StatusOr<PlanReport> MakePlanReport(const ShapeOptions& frame, const PlanProblem& problem,
                                          PlanAnswer answer, const RealMatrix* previous_shares) {
  const Topology& topology = problem.topology;
  const bool has_previous = problem.previous != nullptr;
  PlanReport report{.policy = frame.policy,
                    .placement = std::move(answer.placement),
                    .shares = std::move(answer.shares),
                    .speeds = problem.speeds,
                    .hierarchy = HierarchyInForce(frame, topology),
                    .has_previous = has_previous};
  EPLB_ASSIGN_OR_RETURN(report.after,
                        Evaluate(problem.load, report.placement,
                                 {.speeds = &report.speeds, .shares = SharesOf(report)}));
  for (size_t layer = 0; layer < report.after.max_gpu_load.size(); ++layer) {
    if (std::isfinite(report.after.max_gpu_load[layer])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, ": tokens / speed of a GPU are above a double's range"));
  }
  const Placement start = has_previous ? *problem.previous : Placement::Static(topology);
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, SpeedsBefore(report.speeds, start));
  EPLB_ASSIGN_OR_RETURN(
      report.before, Evaluate(problem.load, start, {.speeds = &speeds, .shares = previous_shares}));
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds,
                        LowerBounds(problem.load, topology,
                                    {.speeds = &report.speeds,
                                     .hierarchy = report.hierarchy,
                                     .any_split = report.shares.has_value()}));
  EPLB_ASSIGN_OR_RETURN(report.bound, GapsToBounds(report.after.max_gpu_load, bounds));
  report.duplicates = CountDuplicates(report.placement);
  if (has_previous) {
    EPLB_ASSIGN_OR_RETURN(report.moves, SummariseMoves(*problem.previous, report.placement));
  }
  if (problem.split == SplitMode::kBatch) {
    const std::span<const Load> batches = BatchesIn(problem);
    EPLB_ASSIGN_OR_RETURN(report.batches_after,
                          EvaluateBatches(batches, report.placement, &report.speeds));
    EPLB_ASSIGN_OR_RETURN(report.batches_before, EvaluateBatches(batches, start, &speeds));
  }
  if (report.hierarchy == Hierarchy::kSoft) {
    EPLB_ASSIGN_OR_RETURN(report.crossing,
                          ComputeCrossingShare(problem.load, report.placement, SharesOf(report)));
  }
  return report;
}

const RealMatrix* SharesOf(const PlanReport& report) {
  return report.shares.has_value() ? &*report.shares : nullptr;
}

std::string PlanReportToJson(const PlanReport& report) {
  const Evaluation& after = report.after;
  std::string crossing;
  if (report.crossing.has_value()) {
    crossing = absl::StrCat(",\"crossing\":{\"share_mean\":", Number(report.crossing->mean),
                            ",\"share_max\":", Number(report.crossing->max), "}");
  }
  std::string batch;
  if (report.batches_after.has_value()) {
    batch =
        absl::StrCat(",\"batch_balancedness\":", Number(report.batches_after->mean_balancedness));
  }
  return absl::StrCat(
      "{\"policy\":", wire::JsonQuote(report.policy),
      ",\"placement\":", wire::PlacementToJson(report.placement, SharesOf(report)),
      ",\"balancedness\":{\"formula\":\"mean(gpu load)/max(gpu load)\",\"mean\":",
      Number(after.mean_balancedness), ",\"min\":", Number(after.min_balancedness),
      ",\"per_layer\":", Array(after.balancedness),
      "},\"scored_on\":\"planned_load\",\"later_windows\":", LaterToJson(report.later),
      ",\"max_gpu_load_per_layer\":", Array(after.max_gpu_load),
      ",\"bound\":{\"max_gpu_load_per_layer\":", Array(report.bound.bounds),
      ",\"gap_per_layer\":", Array(report.bound.gaps), ",\"gap_mean\":", Number(report.bound.mean),
      ",\"gap_max\":", Number(report.bound.max), "},\"duplicates\":", report.duplicates,
      ",\"moves\":{\"transfers\":", report.moves.transfers,
      ",\"slots_changed\":", report.moves.slots_changed,
      ",\"max_per_gpu\":", report.moves.max_per_gpu, ",\"cross_node\":", report.moves.cross_node,
      "}", crossing, batch, ",\"solve_seconds\":", Number(report.solve_seconds), "}\n");
}

namespace {

// A plan that moves nothing although a layer is further above its bound says why.
constexpr double kGapWorthARemark = 0.05;

absl::Status CheckFlags(const PlanOptions& options) {
  if (options.slots.has_value() == options.redundant.has_value()) {
    return absl::InvalidArgumentError(options.slots.has_value()
                                          ? "--slots and --redundant exclude each other"
                                          : "one of --slots and --redundant is required");
  }
  if (TraitsOf(options.frame.policy).needs_previous && options.previous.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy ", options.frame.policy, " needs --previous, the placement that it starts from"));
  }
  return absl::OkStatus();
}

// The load that is planned for. float32 is what the reference computes in.
absl::StatusOr<Load> CombinedLoad(const PlanOptions& options, std::span<const LoadWindow> windows,
                                  const WindowRule& rule) {
  absl::StatusOr<Load> load = CombineWindows(windows, rule);
  if (!load.ok()) return InFile(options.load, load.status());
  if (TraitsOf(options.frame.policy).follows_reference) {
    const absl::Status status = load->ToFloat().status();
    if (!status.ok()) return InFile(options.load, status);
  }
  return load;
}

absl::StatusOr<Topology> MakeTopology(const PlanOptions& options, const Load& load) {
  const int64_t slots =
      options.slots.has_value() ? *options.slots : int64_t{load.num_experts()} + *options.redundant;
  if (options.redundant.value_or(0) < 0 || slots > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--redundant is ", *options.redundant, ", expected 0..2^20"));
  }
  return MakeTopology(options.frame, load, static_cast<int32_t>(slots));
}

absl::StatusOr<std::optional<wire::PlacementWithShares>> ReadPrevious(const std::string& path,
                                                                      const Topology& topology) {
  if (path.empty()) return std::nullopt;
  absl::StatusOr<wire::PlacementWithShares> read = ReadPlacementWithShares(path);
  if (!read.ok()) return NameForeignPlacement(path, read.status());
  wire::PlacementWithShares previous = *std::move(read);
  const absl::Status same =
      CheckSameTopology("previous", previous.placement.topology(), "planned", topology);
  if (!same.ok()) return InFile(path, same);
  return std::optional<wire::PlacementWithShares>(std::move(previous));
}

absl::StatusOr<PlanAnswer> Solve(const PlanOptions& options, const PlanProblem& problem) {
  absl::StatusOr<PlanAnswer> answer = SolvePlan(options.frame, options.split == "optimal", problem);
  if (answer.ok()) return answer;
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", options.frame.policy, ": ", answer.status().message()));
}

// Scores a plan of the earlier windows on the later ones; none for a single window. problem: that
// of all windows.
absl::StatusOr<std::optional<LaterWindows>> ScoreOnLaterWindows(const PlanOptions& options,
                                                                std::span<const LoadWindow> windows,
                                                                const WindowRule& rule,
                                                                const PlanProblem& problem) {
  const HeldOut held_out = HoldOut(windows);
  if (!held_out.out_of_sample) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(const Load load, CombinedLoad(options, held_out.planned, rule));
  const std::vector<Load> batches = BatchesOf(held_out.planned, rule);
  EPLB_ASSIGN_OR_RETURN(const PlanAnswer answer, Solve(options, {.load = load,
                                                                 .topology = problem.topology,
                                                                 .speeds = problem.speeds,
                                                                 .previous = problem.previous,
                                                                 .split = problem.split,
                                                                 .windows = batches}));
  EPLB_ASSIGN_OR_RETURN(
      Evaluation evaluation,
      EvaluateWindows(held_out.scored, answer.placement, problem.split,
                      {.speeds = &problem.speeds,
                       .shares = answer.shares.has_value() ? &*answer.shares : nullptr}));
  return LaterWindows{.evaluation = std::move(evaluation),
                      .planned_windows = std::ssize(held_out.planned),
                      .scored_windows = std::ssize(held_out.scored),
                      .text = ScoredOnText(held_out)};
}

// note: receives the messages about the load's file.
absl::StatusOr<PlanReport> Plan(const PlanOptions& options, std::string& note) {
  EPLB_RETURN_IF_ERROR(MakeCheckedPolicy(options.frame).status());
  EPLB_RETURN_IF_ERROR(CheckFlags(options));
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  note = NotesOn(options.load, file);
  EPLB_ASSIGN_OR_RETURN(const Load load, CombinedLoad(options, file.windows, rule));
  EPLB_RETURN_IF_ERROR(CheckSplit(options.split, options.load, file.windows));
  const std::vector<Load> windows = BatchesOf(file.windows, rule);
  EPLB_ASSIGN_OR_RETURN(const Topology topology, MakeTopology(options, load));
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, MakeSpeeds(options.speeds, options.frame));
  EPLB_ASSIGN_OR_RETURN(const std::optional<wire::PlacementWithShares> previous,
                        ReadPrevious(options.previous, topology));
  const PlanProblem problem{.load = load,
                            .topology = topology,
                            .speeds = speeds,
                            .previous = previous.has_value() ? &previous->placement : nullptr,
                            .split = SplitModeOf(options.split),
                            .windows = windows};
  const Waiting waiting("planning");
  const auto start = std::chrono::steady_clock::now();
  EPLB_ASSIGN_OR_RETURN(PlanAnswer answer, Solve(options, problem));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const RealMatrix* previous_shares = nullptr;
  if (previous.has_value() && previous->replica_share.has_value()) {
    previous_shares = &*previous->replica_share;
  }
  EPLB_ASSIGN_OR_RETURN(PlanReport report,
                        MakePlanReport(options.frame, problem, std::move(answer), previous_shares));
  EPLB_ASSIGN_OR_RETURN(report.later, ScoreOnLaterWindows(options, file.windows, rule, problem));
  report.solve_seconds = seconds.count();
  return report;
}

// Which policy this is where it is another one than was asked for; empty: the same.
std::string PolicyNote(const PlanOptions& options) {
  return JoinMessages(NoHistoryNote(options.frame, "one plan", !options.previous.empty()),
                      EqualSharesNote(options.frame, options.split));
}

// Names the layers that have no figures; empty: all have load.
std::string IdleLayersNote(const PlanReport& report) {
  const std::vector<double>& loads = report.after.max_gpu_load;
  const auto is_idle = [](double load) { return !(load > 0); };
  const auto idle = std::count_if(loads.begin(), loads.end(), is_idle);
  if (idle == 0) return {};
  if (idle == std::ssize(loads)) {
    return "note: the load has no tokens, so that no layer has figures";
  }
  return absl::StrCat("note: ", Counted(idle, "layer"), " without load (the first is layer ",
                      std::find_if(loads.begin(), loads.end(), is_idle) - loads.begin(),
                      idle == 1 ? ") has" : ") have",
                      " no balancedness, no gap and no part in means");
}

// What a plan that is printed nevertheless did not keep, or why nothing moves; empty: nothing to
// say.
std::string Remark(const PlanOptions& options, const PlanReport& report) {
  const std::optional<int32_t> limit = options.frame.max_moves_per_gpu;
  if (limit.has_value() && options.previous.empty()) {
    return "note: --max-moves-per-gpu has no effect without --previous";
  }
  if (limit.has_value() && report.moves.max_per_gpu > *limit) {
    return absl::StrCat("warning: a GPU receives ", report.moves.max_per_gpu,
                        " experts in a layer, more than --max-moves-per-gpu ", *limit, ": ",
                        options.speeds.unusable_gpus.empty()
                            ? absl::StrCat("the placement in ", options.previous,
                                           " breaks the constraints and is repaired first")
                            : "the experts of unusable GPUs move first");
  }
  const bool careful = limit.value_or(TraitsOf(options.frame.policy).needs_previous ? 1 : 0) > 0;
  if (!careful || options.previous.empty() || report.moves.transfers > 0 ||
      report.bound.max.value_or(0) <= kGapWorthARemark) {
    return {};
  }
  return "note: every expert stays where it is: no move within the limits wins enough, or the load "
         "has too few tokens to distinguish imbalance from noise";
}

}  // namespace

Output RunPlan(const PlanOptions& options, const Terminal& terminal) {
  std::string note;
  const absl::StatusOr<PlanReport> report = Plan(options, note);
  if (!report.ok()) return UsageFailure(report.status());
  if (!options.out.empty()) {
    const std::string text = wire::PlacementToJson(report->placement, SharesOf(*report)) + "\n";
    const absl::Status written = WriteFileAtomically(options.out, text);
    if (!written.ok()) return Failure(kError, written);
  }
  const Topology& shape = report->placement.topology();
  for (const std::string& more :
       {PolicyNote(options), Remark(options, *report), IdleLayersNote(*report),
        UnequalSlotsNote(shape.num_slots(), shape.num_gpus())}) {
    note = JoinMessages(note, more);
  }
  return {.exit_code = kOk,
          .out = options.format == Format::kJson ? PlanReportToJson(*report)
                                                 : PlanReportToTable(*report, terminal),
          .message = note};
}

void AddPlan(CLI::App& root, Command& command) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App& app = *root.add_subcommand("plan", "Compute a placement from a load file, offline");
  app.add_option("--load", options->load,
                 "JSON, JSON lines of windows, .npy, .npz, CSV, or what other systems record")
      ->required()
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  AddInteger(app, "--slots", options->slots, "Slots of a layer over all GPUs")->type_name("S");
  AddInteger(app, "--redundant", options->redundant, "Instead: slots beyond one per expert")
      ->type_name("R");
  AddShapeOptions(app, options->frame);
  app.add_option("--gpu-speed", options->speeds.gpu_speed, "Relative speed of each GPU [1,1,..]")
      ->type_name("1,0.5,..");
  app.add_option("--unusable-gpus", options->speeds.unusable_gpus, "GPUs that hold nothing")
      ->type_name("3,7,..");
  AddChoice(app, "--split", options->split,
            "Tokens among replicas: equal, best for the load, by batch [equal]",
            {"equal", "optimal", "batch"});
  app.add_option("--previous", options->previous,
                 "Placement in force: moves are counted against it")
      ->type_name("FILE");
  app.add_option("--window", options->window, "How windows become one load [sum]")
      ->type_name("sum|last|ema:A");
  app.add_option("--out", options->out, "Write the placement here")->type_name("FILE");
  AddFormat(app, options->format);
  app.footer(
      "Figures are on the load that the plan was made for. If the load is a trace, a\n"
      "plan of the earlier half of its windows is scored on the later half as well.\n"
      "Examples:\n"
      "  eplbctl plan --load load.json --gpus 8 --redundant 8\n"
      "  eplbctl plan --load trace.jsonl --window ema:0.9 --gpus 32 --nodes 4 --groups 8 \\\n"
      "      --slots 288 --previous now.json --out next.json -o json\n"
      "  eplbctl plan --load load.json --gpus 8 --slots 72 --policy incremental \\\n"
      "      --previous now.json --max-moves-per-gpu 1\n"
      "  eplbctl plan --load load.json --gpus 8 --slots 72 --gpu-speed 1,1,1,1,1,1,1,0.5\n"
      "  eplbctl plan --load trace.jsonl --gpus 8 --slots 72 --policy flow \\\n"
      "      --split batch\n"
      "Exit codes: 0 planned, 1 error, as --out not written, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunPlan(*options, terminal); };
  });
}

}  // namespace eplb::cli
