#include "client/cli/plan.h"

#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/plan_report.h"
#include "client/cli/plan_solver.h"
#include "client/cli/progress.h"
#include "client/files/atomic_write.h"
#include "client/files/load_file.h"
#include "client/files/load_window.h"
#include "client/files/placement_file.h"
#include "client/files/read_file.h"
#include "placement/registry.h"
#include "placement/status_macros.h"
#include "proto/wire/placement_json.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// A plan that moves nothing although a layer is further above its bound says why.
constexpr double kGapWorthARemark = 0.05;

absl::Status CheckFlags(const PlanOptions& options) {
  if (options.slots.has_value() == options.redundant.has_value()) {
    return absl::InvalidArgumentError(options.slots.has_value()
                                          ? "--slots and --redundant exclude each other"
                                          : "one of --slots and --redundant is required");
  }
  if (options.frame.policy == "incremental" && options.previous.empty()) {
    return absl::InvalidArgumentError(
        "policy incremental needs --previous, the placement that it starts from");
  }
  return absl::OkStatus();
}

// The load that is planned for. float32 is what the reference computes in.
// note: what is said of the file.
absl::StatusOr<Load> ReadLoad(const PlanOptions& options, std::string& note) {
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.reading));
  note = NotesOn(options.load, file);
  absl::StatusOr<Load> load = CombineWindows(file.windows, rule);
  if (!load.ok()) return InFile(options.load, load.status());
  if (options.frame.policy == "deepseek") {
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
  return MakeFrameTopology(options.frame, load, static_cast<int32_t>(slots));
}

absl::StatusOr<std::optional<wire::PlacementWithShares>> ReadPrevious(const std::string& path,
                                                                      const Topology& topology) {
  if (path.empty()) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(wire::PlacementWithShares previous, ReadPlacementWithShares(path));
  const absl::Status same =
      CheckSameTopology("previous", previous.placement.topology(), "planned", topology);
  if (!same.ok()) return InFile(path, same);
  return std::optional<wire::PlacementWithShares>(std::move(previous));
}

absl::StatusOr<PlanReport> Plan(const PlanOptions& options, std::string& note) {
  EPLB_RETURN_IF_ERROR(MakeFramePolicy(options.frame).status());
  EPLB_RETURN_IF_ERROR(CheckFlags(options));
  EPLB_ASSIGN_OR_RETURN(const Load load, ReadLoad(options, note));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, MakeTopology(options, load));
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, MakeSpeeds(options.speeds, options.frame));
  EPLB_ASSIGN_OR_RETURN(const std::optional<wire::PlacementWithShares> previous,
                        ReadPrevious(options.previous, topology));
  const PlanProblem problem{.load = load,
                            .topology = topology,
                            .speeds = speeds,
                            .previous = previous.has_value() ? &previous->placement : nullptr};
  const Waiting waiting("planning");
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<PlanAnswer> answer = SolvePlan(options.frame, options.split == "optimal", problem);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!answer.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy ", options.frame.policy, ": ", answer.status().message()));
  }
  const RealMatrix* previous_shares = nullptr;
  if (previous.has_value() && previous->replica_share.has_value()) {
    previous_shares = &*previous->replica_share;
  }
  EPLB_ASSIGN_OR_RETURN(PlanReport report, MakePlanReport(options.frame, problem,
                                                          *std::move(answer), previous_shares));
  report.solve_seconds = seconds.count();
  return report;
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
                                           " breaks the constraints and is mended first")
                            : "what unusable GPUs held goes elsewhere first");
  }
  const bool careful = limit.value_or(options.frame.policy == "incremental" ? 1 : 0) > 0;
  if (!careful || options.previous.empty() || report.moves.transfers > 0 ||
      report.bound.max <= kGapWorthARemark) {
    return {};
  }
  return "note: every expert stays where it is: no move within the limits wins enough, or the load "
         "has too few tokens to tell imbalance from noise";
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
  return {.exit_code = kOk,
          .out = options.format == Format::kJson ? PlanReportToJson(*report)
                                                 : PlanReportToTable(*report, terminal),
          .message = JoinMessages(note, Remark(options, *report))};
}

void AddPlan(CLI::App& root, Command& command) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App& app = *root.add_subcommand("plan", "Compute a placement from a load file, offline");
  app.add_option("--load", options->load,
                 "JSON, JSON lines of windows, .npy, .npz, CSV, or what other systems record")
      ->required()
      ->type_name("FILE");
  AddLoadReading(app, options->reading);
  app.add_option("--slots", options->slots, "Slots of a layer over all GPUs")->type_name("S");
  app.add_option("--redundant", options->redundant, "Instead: slots beyond one per expert")
      ->type_name("R");
  AddFrameOptions(app, options->frame);
  app.add_option("--gpu-speed", options->speeds.gpu_speed, "Relative speed of each GPU [1,1,..]")
      ->type_name("1,0.5,..");
  app.add_option("--unusable-gpus", options->speeds.unusable_gpus, "GPUs that hold nothing")
      ->type_name("3,7,..");
  AddChoice(app, "--split", options->split, "Tokens among replicas [equal]", {"equal", "optimal"});
  app.add_option("--previous", options->previous,
                 "Placement in force: moves are counted against it")
      ->type_name("FILE");
  app.add_option("--window", options->window, "How windows become one load [sum]")
      ->type_name("sum|last|ema:A");
  app.add_option("--out", options->out, "Write the placement here")->type_name("FILE");
  AddFormat(app, options->format);
  app.footer(
      "Examples:\n"
      "  eplbctl plan --load load.json --gpus 8 --redundant 8\n"
      "  eplbctl plan --load trace.jsonl --window ema:0.9 --gpus 32 --nodes 4 --groups 8 \\\n"
      "      --slots 288 --previous now.json --out next.json -o json\n"
      "  eplbctl plan --load load.json --gpus 8 --slots 72 --policy incremental \\\n"
      "      --previous now.json --max-moves-per-gpu 1\n"
      "  eplbctl plan --load load.json --gpus 8 --slots 72 --gpu-speed 1,1,1,1,1,1,1,0.5\n"
      "Exit codes: 0 planned, 1 error, as --out not written, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunPlan(*options, terminal); };
  });
}

}  // namespace eplb::cli
