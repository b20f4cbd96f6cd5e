#include "client/cli/plan.h"

#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/plan_report.h"
#include "client/files/atomic_write.h"
#include "client/files/load_file.h"
#include "client/files/load_window.h"
#include "client/files/placement_file.h"
#include "client/files/read_file.h"
#include "placement/status_macros.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {
namespace {

absl::Status NotTaken(const PlanOptions& options, const char* flag) {
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", options.policy, " does not take ", flag));
}

// What only other policies understand. `--effort` bounds a search that this policy does not have,
// so any value is obeyed.
absl::Status CheckFlags(const PlanOptions& options) {
  if (options.hierarchy == "soft") return NotTaken(options, "--hierarchy soft");
  if (options.split != "equal") return NotTaken(options, "--split optimal");
  if (!options.gpu_speed.empty()) return NotTaken(options, "--gpu-speed");
  if (!options.unusable_gpus.empty()) return NotTaken(options, "--unusable-gpus");
  if (options.allow_duplicates) return NotTaken(options, "--allow-duplicates");
  if (options.max_moves_per_gpu.has_value()) return NotTaken(options, "--max-moves-per-gpu");
  if (options.slots.has_value() == options.redundant.has_value()) {
    return absl::InvalidArgumentError(options.slots.has_value()
                                          ? "--slots and --redundant exclude each other"
                                          : "one of --slots and --redundant is required");
  }
  if (options.hierarchy == "strict" && options.nodes > 0 && options.groups % options.nodes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--hierarchy strict needs --groups ",
                                                   options.groups, " to be a multiple of --nodes ",
                                                   options.nodes));
  }
  return absl::OkStatus();
}

// The load that is planned for. float32 is what the reference computes in.
absl::StatusOr<Load> ReadLoad(const PlanOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(options.load, options.load_format));
  absl::StatusOr<Load> load = CombineWindows(file.windows, rule);
  if (!load.ok()) return InFile(options.load, load.status());
  if (const absl::Status status = load->ToFloat().status(); !status.ok()) {
    return InFile(options.load, status);
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
  return Topology::Make({.num_layers = load.num_layers(),
                         .num_experts = load.num_experts(),
                         .num_slots = static_cast<int32_t>(slots),
                         .num_gpus = options.gpus,
                         .num_nodes = options.nodes,
                         .num_groups = options.groups});
}

absl::StatusOr<std::optional<Placement>> ReadPrevious(const std::string& path,
                                                      const Topology& topology) {
  if (path.empty()) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(Placement previous, ReadPlacementFile(path));
  const absl::Status same = CheckSameTopology("previous", previous.topology(), "planned", topology);
  if (!same.ok()) return InFile(path, same);
  return std::optional<Placement>(std::move(previous));
}

absl::StatusOr<PlanReport> Plan(const PlanOptions& options) {
  EPLB_ASSIGN_OR_RETURN(
      const std::unique_ptr<Policy> policy,
      MakePolicy(
          options.policy,
          {.tie_break = options.tie_break == "compat" ? TieBreak::kCompat : TieBreak::kStable,
           .hierarchy =
               options.hierarchy == "none" ? std::optional(Hierarchy::kNone) : std::nullopt}));
  EPLB_RETURN_IF_ERROR(CheckFlags(options));
  EPLB_ASSIGN_OR_RETURN(const Load load, ReadLoad(options));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, MakeTopology(options, load));
  EPLB_ASSIGN_OR_RETURN(const std::optional<Placement> previous,
                        ReadPrevious(options.previous, topology));
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<Placement> placement =
      policy->Solve({.load = load,
                     .topology = topology,
                     .previous = previous.has_value() ? &*previous : nullptr});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!placement.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy ", options.policy, ": ", placement.status().message()));
  }
  EPLB_ASSIGN_OR_RETURN(PlanReport report,
                        MakePlanReport(options.policy, load, *placement, previous));
  report.solve_seconds = seconds.count();
  return report;
}

}  // namespace

Output RunPlan(const PlanOptions& options, const Terminal& terminal) {
  const absl::StatusOr<PlanReport> report = Plan(options);
  if (!report.ok()) return UsageFailure(report.status());
  if (!options.out.empty()) {
    const absl::Status written =
        WriteFileAtomically(options.out, wire::PlacementToJson(report->placement) + "\n");
    if (!written.ok()) return Failure(kError, written);
  }
  return {.exit_code = kOk,
          .out = options.format == Format::kJson ? PlanReportToJson(*report)
                                                 : PlanReportToTable(*report, terminal),
          .message = {}};
}

}  // namespace eplb::cli
