#include "client/cli/plan_solver.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/invalid_input.h"
#include "base/status_macros.h"
#include "placement/policies/registry.h"
#include "placement/search/node_affinity.h"
#include "placement/split/alias_placement.h"
#include "placement/split/token_split.h"

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
  absl::StatusOr<SplitPlacement> even = InvalidInput("not applicable");
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

}  // namespace eplb::cli
