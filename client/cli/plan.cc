// `eplbctl plan`: computes a placement offline from load files.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/held_out.h"
#include "client/cli/plan_loads.h"
#include "client/cli/plan_losses.h"
#include "client/cli/plan_report.h"
#include "client/cli/shape_options.h"
#include "client/cli/text.h"
#include "placement/split/batch_split.h"
#include "proto/wire/placement_files.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {
namespace {

struct PlanOptions {
  LoadOptions loads;
  ShapeOptions frame;
  SpeedOptions speeds;
  std::optional<int32_t> slots;      // exactly one of slots and redundant is given
  std::optional<int32_t> redundant;  // slots = experts + redundant
  std::string split = "equal";       // equal, optimal, batch
  std::optional<int32_t> survive;    // losses to survive, 1
  std::string domain = "gpu";        // gpu, node: what is lost
  double survive_cost = 0.01;        // balancedness of a layer
  std::string previous;              // path, may be empty
  std::string out;                   // path, may be empty
  Format format = Format::kTable;
};

// A plan that moves nothing although a layer is further above its bound says why.
constexpr double kGapWorthARemark = 0.05;

absl::Status CheckSurvival(const PlanOptions& options) {
  const bool survives = options.survive.has_value();
  if (!options.speeds.without_gpus.empty() && options.previous.empty()) {
    return InvalidInput("--without-gpus needs --previous, the placement before the loss");
  }
  if ((survives || !options.speeds.without_gpus.empty()) && options.split != "equal") {
    return InvalidInput(survives ? "--survive" : "--without-gpus",
                        " plans for equal shares, not for --split ", options.split);
  }
  if (!survives) return absl::OkStatus();
  if (*options.survive != 1) {
    return InvalidInput("--survive is ", *options.survive, ", expected 1, the losses to survive");
  }
  if (options.frame.policy.follows_reference) {
    return InvalidInput("policy ", options.frame.policy.name,
                        " does not take --survive: it places replicas as the reference does");
  }
  if (options.survive_cost >= 0 && options.survive_cost <= 1) return absl::OkStatus();
  return InvalidInput("--survive-cost is ", options.survive_cost, ", expected 0..1");
}

absl::Status CheckFlags(const PlanOptions& options) {
  if (options.slots.has_value() == options.redundant.has_value()) {
    return InvalidInput(options.slots.has_value() ? "--slots and --redundant exclude each other"
                                                  : "one of --slots and --redundant is required");
  }
  EPLB_RETURN_IF_ERROR(CheckSurvival(options));
  if (options.frame.policy.needs_previous && options.previous.empty()) {
    return InvalidInput("policy ", options.frame.policy.name,
                        " needs --previous, the placement that it starts from");
  }
  EPLB_RETURN_IF_ERROR(CheckLoadOptions(options.loads));
  if (!options.loads.has_scenarios()) return absl::OkStatus();
  if (options.split == "optimal") {
    return InvalidInput(
        "--split optimal takes one load: the best shares for one load are not the best for others");
  }
  if (options.frame.policy.follows_reference) {
    return InvalidInput("policy ", options.frame.policy.name,
                        " takes one load, as the reference does");
  }
  return absl::OkStatus();
}

// Checks what the policy and the split need of the loads. float32 is what the reference computes
// in.
absl::Status CheckLoads(const PlanOptions& options, std::span<const LoadFile> files,
                        const PlannedLoads& loads) {
  const std::vector<std::string>& paths = options.loads.paths;
  if (options.frame.policy.follows_reference) {
    EPLB_RETURN_IF_ERROR(InFile(paths.front(), loads.load.ToFloat().status()));
  }
  if (files.size() == 1) return CheckSplit(options.split, paths.front(), files.front().windows);
  for (size_t i = 0; i < files.size(); ++i) {
    const LoadWindow batch{.load = loads.batches[i]};
    EPLB_RETURN_IF_ERROR(CheckSplit(options.split, paths[i], {&batch, 1}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Topology> MakeTopology(const PlanOptions& options, const Load& load) {
  const int64_t slots =
      options.slots.has_value() ? *options.slots : int64_t{load.num_experts()} + *options.redundant;
  if (options.redundant.value_or(0) < 0 || slots > std::numeric_limits<int32_t>::max()) {
    return InvalidInput("--redundant is ", *options.redundant, ", expected 0..2^20");
  }
  return MakeTopology(options.frame, load, static_cast<int32_t>(slots));
}

absl::StatusOr<std::optional<wire::PlacementWithShares>> ReadPrevious(const std::string& path,
                                                                      const Topology& topology) {
  if (path.empty()) return std::nullopt;
  absl::StatusOr<wire::PlacementWithShares> read = ReadPlacementWithShares(path);
  if (!read.ok()) return NameForeignPlacement(path, read.status());
  wire::PlacementWithShares previous = *std::move(read);
  EPLB_RETURN_IF_ERROR(InFile(
      path, CheckSameTopology("previous", previous.placement.topology(), "planned", topology)));
  return std::optional<wire::PlacementWithShares>(std::move(previous));
}

absl::StatusOr<PlanAnswer> Solve(const PlanOptions& options, const PlanProblem& problem) {
  absl::StatusOr<PlanAnswer> answer = SolvePlan(options.frame, options.split == "optimal", problem);
  if (answer.ok()) return answer;
  return InvalidInput("policy ", options.frame.policy.name, ": ", answer.status().message());
}

// Scores a plan of the earlier windows on the later ones; none for a single window, and if windows
// are to be chosen from earlier ones without tokens. problem: that of all windows.
absl::StatusOr<std::optional<LaterWindows>> ScoreOnLaterWindows(const PlanOptions& options,
                                                                std::span<const LoadWindow> windows,
                                                                const PlanProblem& problem) {
  const HeldOut held_out = HoldOut(windows);
  if (!held_out.out_of_sample) return std::nullopt;
  if (options.loads.has_scenarios() && !held_out.planned_on_tokens) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(const PlannedLoads loads, LoadsOfTrace(options.loads, held_out.planned));
  EPLB_ASSIGN_OR_RETURN(const PlanAnswer answer, Solve(options, {.loads = loads,
                                                                 .topology = problem.topology,
                                                                 .speeds = problem.speeds,
                                                                 .previous = problem.previous,
                                                                 .split = problem.split,
                                                                 .survival = problem.survival}));
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

// The problem that the files and flags of a command line describe.
struct Asked {
  std::vector<LoadFile> files;
  PlannedLoads loads;
  Topology topology;
  GpuSpeeds speeds;
  std::optional<wire::PlacementWithShares> previous;
  std::optional<SurvivalOptions> survival = {};
  std::vector<int32_t> lost_gpus = {};

  PlanProblem problem(const std::string& split) const {
    return {.loads = loads,
            .topology = topology,
            .speeds = speeds,
            .previous = previous.has_value() ? &previous->placement : nullptr,
            .split = SplitModeOf(split),
            .survival = survival,
            .lost_gpus = lost_gpus};
  }
};

// notes: receives the messages about the loads' files.
absl::StatusOr<Asked> Read(const PlanOptions& options, std::string& notes) {
  EPLB_RETURN_IF_ERROR(MakeCheckedPolicy(options.frame).status());
  EPLB_RETURN_IF_ERROR(CheckFlags(options));
  EPLB_ASSIGN_OR_RETURN(std::vector<LoadFile> files, ReadLoads(options.loads, notes));
  EPLB_ASSIGN_OR_RETURN(PlannedLoads loads, LoadsOfFiles(options.loads, files));
  EPLB_RETURN_IF_ERROR(CheckLoads(options, files, loads));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, MakeTopology(options, loads.load));
  EPLB_ASSIGN_OR_RETURN(GpuSpeeds speeds, MakeSpeeds(options.speeds, options.frame));
  EPLB_ASSIGN_OR_RETURN(std::optional<wire::PlacementWithShares> previous,
                        ReadPrevious(options.previous, topology));
  Asked asked{std::move(files), std::move(loads), topology, std::move(speeds), std::move(previous)};
  EPLB_ASSIGN_OR_RETURN(asked.lost_gpus, ReadLostGpus(options.speeds));
  if (options.survive.has_value()) {
    const PolicyOptions policy = PolicyOptionsOf(options.frame);
    asked.survival = {.hierarchy = HierarchyInForce(options.frame, topology),
                      .effort = policy.effort,
                      .allow_duplicates = policy.allow_duplicates,
                      .site = options.domain == "node" ? Site::kNode : Site::kGpu,
                      .most_cost = options.survive_cost};
  }
  return asked;
}

absl::StatusOr<PlanReport> Plan(const PlanOptions& options, std::string& notes) {
  EPLB_ASSIGN_OR_RETURN(const Asked asked, Read(options, notes));
  const PlanProblem problem = asked.problem(options.split);
  const Waiting waiting("planning");
  const auto start = std::chrono::steady_clock::now();
  EPLB_ASSIGN_OR_RETURN(PlanAnswer answer, Solve(options, problem));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const RealMatrix* previous_shares = nullptr;
  if (asked.previous.has_value() && asked.previous->replica_share.has_value()) {
    previous_shares = &*asked.previous->replica_share;
  }
  EPLB_ASSIGN_OR_RETURN(PlanReport report,
                        MakePlanReport(options.frame, problem, std::move(answer), previous_shares));
  if (asked.files.size() == 1) {
    EPLB_ASSIGN_OR_RETURN(report.later,
                          ScoreOnLaterWindows(options, asked.files.front().windows, problem));
  }
  report.solve_seconds = seconds.count();
  return report;
}

absl::StatusOr<LossAnswers> PlanLosses(const PlanOptions& options, std::string& notes) {
  EPLB_ASSIGN_OR_RETURN(const Asked asked, Read(options, notes));
  return PlanEachLoss(options.frame, asked.problem(options.split));
}

// Names the layers that have no figures; empty: all have load.
std::string IdleLayersNote(const PlanReport& report) {
  const std::vector<double>& loads = report.after.max_gpu_load;
  const auto is_idle = [](double load) { return !(load > 0); };
  const auto idle = std::ranges::count_if(loads, is_idle);
  if (idle == 0) return {};
  if (idle == std::ssize(loads)) {
    return "note: the load has no tokens, so that no layer has figures";
  }
  return absl::StrCat("note: ", Counted(idle, "layer"), " without load (the first is layer ",
                      std::ranges::find_if(loads, is_idle) - loads.begin(),
                      idle == 1 ? ") has" : ") have",
                      " no balancedness, no gap and no part in means");
}

// Names a limit that the plan does not keep, or the reason why nothing moves; may be empty.
std::string Remark(const PlanOptions& options, const PlanReport& report) {
  const std::optional<int32_t> limit = options.frame.max_moves_per_gpu;
  if (limit.has_value() && options.previous.empty()) {
    return "note: --max-moves-per-gpu has no effect without --previous";
  }
  if (limit.has_value() && report.moves.max_per_gpu > *limit) {
    return absl::StrCat("warning: a GPU receives ", report.moves.max_per_gpu,
                        " experts in a layer, more than --max-moves-per-gpu ", *limit, ": ",
                        report.loss.has_value()
                            ? "the experts of unusable GPUs move first"
                            : absl::StrCat("the placement in ", options.previous,
                                           " breaks the constraints and is repaired first"));
  }
  const bool careful = limit.value_or(options.frame.policy.needs_previous ? 1 : 0) > 0;
  const BoundGaps& gap = report.scenarios.has_value() ? report.scenarios->gap : report.bound;
  if (!careful || options.previous.empty() || report.moves.transfers > 0 ||
      gap.max.value_or(0) <= kGapWorthARemark) {
    return {};
  }
  return "note: every expert stays where it is: no move within the limits wins enough, or the load "
         "has too few tokens to distinguish imbalance from noise";
}

// Answers the loss of each GPU. --out names a folder, which gets one placement for each GPU.
Output RunLosses(const PlanOptions& options, const Terminal& terminal) {
  std::string notes;
  EPLB_ASSIGN_OR_RETURN(const LossAnswers answers, AsUsage(PlanLosses(options, notes)));
  EPLB_ASSIGN_OR_RETURN(std::string text, options.format == Format::kJson
                                              ? AsUsage(LossAnswersToJson(answers))
                                              : LossAnswersToTable(answers, terminal));
  for (const LossAnswers::Answer& one : answers.answers) {
    if (options.out.empty()) break;
    std::error_code error;
    std::filesystem::create_directories(options.out, error);
    if (error) return absl::InternalError(absl::StrCat(options.out, ": ", error.message()));
    EPLB_RETURN_IF_ERROR(WriteOutput(absl::StrCat(options.out, "/without-gpu-", one.gpu, ".json"),
                                     wire::PlacementToJson(one.placement) + "\n"));
  }
  return {kOk, std::move(text), notes};
}

// Reads the files, solves, writes --out, and returns text for stdout only after that. Exit 2 for
// bad flags, files and shapes; 1 if --out cannot be written.
Output RunPlan(const PlanOptions& given, const Terminal& terminal) {
  PlanOptions options = given;
  if (!options.speeds.without_gpus.empty()) {
    // A repair changes as few slots as possible.
    options.frame.policy = kIncrementalPolicyName;
    options.frame.max_moves_per_gpu = given.frame.max_moves_per_gpu.value_or(0);
  }
  if (options.speeds.without_gpus == kEachGpu) return RunLosses(options, terminal);
  std::string notes;
  EPLB_ASSIGN_OR_RETURN(const PlanReport report, AsUsage(Plan(options, notes)));
  EPLB_RETURN_IF_ERROR(
      WriteOutput(options.out, wire::PlacementToJson(report.placement, SharesOf(report)) + "\n"));
  const Topology& shape = report.placement.topology();
  return {kOk,
          options.format == Format::kJson ? PlanReportToJson(report)
                                          : PlanReportToTable(report, terminal),
          JoinMessages({notes, NoHistoryNote(options.frame, "one plan", !options.previous.empty()),
                        EqualSharesNote(options.frame, options.split), Remark(given, report),
                        IdleLayersNote(report),
                        UnequalSlotsNote(shape.num_slots(), shape.num_gpus())})};
}

// --load, how it is read, and how several loads become scenarios.
void AddLoadOptions(Flags& flags, LoadOptions& options) {
  flags.Texts("load,--load", "FILE", options.paths,
              absl::StrCat(kLoadHelp, "; repeat it to serve several loads by one placement"));
  flags.Required();
  AddLoadReading(flags, options.reading);
  flags.Text("--weights", "2,1,..", options.weights, "Weight of each of several loads [1,1,..]");
  AddWindow(flags, options.window);
  AddInteger(flags, "--scenarios", "K", options.scenarios,
             "Serve K windows of a trace that stand for all, each as a load of its own");
  flags.Excludes("--window").Excludes("--weights");
  flags.Word("--objective", {"mean", "worst"}, options.objective,
             "What to lower in a layer: mean or worst, over several loads, of largest / mean GPU "
             "load [mean]");
}

// Placements that survive a loss, and those after one.
void AddLossOptions(Flags& flags, PlanOptions& options) {
  AddInteger(flags, "--survive", "1", options.survive,
             "Give experts a replica on a second GPU, the hottest first, as far as slots and "
             "--survive-cost allow");
  flags.Excludes("--max-moves-per-gpu");
  flags.Word("--domain", {"gpu", "node"}, options.domain, "What may be lost, for --survive [gpu]");
  flags.Needs("--survive");
  AddFraction(flags, "--survive-cost", options.survive_cost,
              "Balancedness that --survive may take from a layer; 1: any [0.01]");
  flags.Needs("--survive");
  flags.Text("--without-gpus", "5,6|each", options.speeds.without_gpus,
             "Repair --previous after the loss of these GPUs in the fewest copies that the "
             "hierarchy allows; each: of every single GPU, with --out a folder");
  flags.Excludes("--survive").Excludes("--policy");
}

}  // namespace

void AddPlan(const Flags& root) {
  auto [flags, options] = AddCommand<PlanOptions>(
      root, "plan", "Compute a placement from load files, offline", &RunPlan);
  AddLoadOptions(flags, options.loads);
  AddInteger(flags, "--slots", "S", options.slots, "Slots of a layer over all GPUs");
  AddInteger(flags, "--redundant", "R", options.redundant,
             "Slots beyond one per expert, instead of --slots");
  AddShapeOptions(flags, options.frame);
  flags.Text("--gpu-speed", "1,0.5,..", options.speeds.gpu_speed,
             "Relative speed of each GPU [1,1,..]");
  flags.Text("--unusable-gpus", "3,7,..", options.speeds.unusable_gpus, "GPUs that hold nothing");
  flags.Word(
      "--split", {"equal", "optimal", "batch"}, options.split,
      "How tokens are split among replicas: equally, best for the load, or by batch [equal]");
  flags.Text("--previous", "FILE", options.previous,
             "Current placement, against which moves are counted");
  AddLossOptions(flags, options);
  flags.Text("--out", "FILE", options.out, "Write the placement to this file");
  AddFormat(flags, options.format);
  flags.SetFooter(
      "Figures are on the load that the plan was made for. If the load is a trace, a\n"
      "plan of the earlier half of its windows is scored on the later half as well.\n"
      "Examples:\n"
      "  eplbctl plan --load load.json --gpus 8 --redundant 8\n"
      "  eplbctl plan --load trace.jsonl --window ema:0.9 --gpus 32 --nodes 4 \\\n"
      "      --groups 8 --slots 288 --previous now.json --out next.json -o json\n"
      "  eplbctl plan --load load.json --gpus 8 --slots 72 --policy incremental \\\n"
      "      --previous now.json --max-moves-per-gpu 1\n"
      "  eplbctl plan --load load.json --gpus 8 --slots 72 \\\n"
      "      --gpu-speed 1,1,1,1,1,1,1,0.5\n"
      "  eplbctl plan --load trace.jsonl --gpus 8 --slots 72 --policy flow \\\n"
      "      --split batch\n"
      "Before and after the loss of GPUs:\n"
      "  eplbctl plan --load load.json --gpus 32 --slots 288 --survive 1 --out now.json\n"
      "  eplbctl plan --load load.json --gpus 32 --slots 288 --previous now.json \\\n"
      "      --without-gpus each --out losses\n"
      "One placement for several loads:\n"
      "  eplbctl plan --load chat.json --load code.json --weights 2,1 --gpus 8 \\\n"
      "      --slots 72\n"
      "  eplbctl plan --load trace.jsonl --scenarios 4 --gpus 8 --slots 72\n"
      "Exit codes: 0 planned, 1 error, such as --out not written, 2 wrong flag or\n"
      "  unusable input.");
}

}  // namespace eplb::cli
