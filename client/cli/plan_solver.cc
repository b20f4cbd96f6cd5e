// Computes the placement of a plan and, if tokens are split, its shares.
#include <memory>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/plan_report.h"
#include "placement/migration_plan.h"
#include "placement/policies/registry.h"
#include "placement/search/node_partition.h"
#include "placement/split/alias_placement.h"
#include "placement/split/split_graph.h"
#include "placement/split/token_split.h"

namespace eplb::cli {
namespace {

// The search for a placement is free: nothing ties it to a reference or to the current placement.
bool PlansAnew(const ShapeOptions& frame) {
  return !frame.policy.needs_previous && !frame.policy.follows_reference;
}

PolicyInput InputOf(const PlanProblem& problem) {
  const PlannedLoads& loads = problem.loads;
  PolicyInput input{.load = loads.load,
                    .topology = problem.topology,
                    .previous = problem.previous,
                    .speeds = &problem.speeds,
                    .split = problem.split};
  if (loads.scenarios.size() > 1) {
    input.scenarios = loads.scenarios;
    input.objective = loads.objective;
  } else {
    input.recent = loads.batches;
  }
  return input;
}

absl::StatusOr<Placement> AskPolicy(const ShapeOptions& frame, const PlanProblem& problem) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakeCheckedPolicy(frame));
  return SolveAligned(*policy, InputOf(problem));
}

// Puts every usable GPU, or under a strict hierarchy every GPU of a node, exactly at the mean. None
// if the construction does not apply.
absl::StatusOr<std::optional<PlanAnswer>> SolveEvenly(const ShapeOptions& frame,
                                                      const PlanProblem& problem) {
  const Hierarchy hierarchy = HierarchyInForce(frame, problem.topology);
  if (!PlansAnew(frame) || problem.previous != nullptr || hierarchy == Hierarchy::kSoft) {
    return std::nullopt;
  }
  std::optional<IndexMatrix> node_of_group;
  if (hierarchy == Hierarchy::kStrict) {
    EPLB_ASSIGN_OR_RETURN(node_of_group,
                          NodesOfGroups(problem.loads.load, problem.topology, problem.speeds));
  }
  EPLB_ASSIGN_OR_RETURN(std::optional<EvenPlacement> even,
                        PlaceEvenly(problem.loads.load, problem.topology, problem.speeds,
                                    node_of_group.has_value() ? &*node_of_group : nullptr));
  if (!even.has_value()) return std::nullopt;
  return PlanAnswer{std::move(even->placement), std::move(even->shares)};
}

// `planned` where it keeps to --max-moves-per-gpu, `incremental`'s layers where it does not.
absl::StatusOr<Placement> LimitMoves(const ShapeOptions& frame, const PlanProblem& problem,
                                     const Placement& planned) {
  EPLB_ASSIGN_OR_RETURN(const MoveSummary moves, SummariseMoves(*problem.previous, planned));
  std::vector<LayerId> beyond;
  for (int32_t layer = 0; layer < problem.topology.num_layers(); ++layer) {
    const bool too_many = moves.layer_max_per_gpu[layer] > *frame.max_moves_per_gpu;
    if (too_many) beyond.push_back(LayerId{layer});
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
  const bool splits = optimal_split || problem.split == SplitMode::kBatch;
  if (splits && problem.topology.num_gpus() > SplitGraph::kMaxGpus) {
    return InvalidInput("--split ", optimal_split ? "optimal" : "batch", " takes at most ",
                        SplitGraph::kMaxGpus, " GPUs, --gpus is ", problem.topology.num_gpus());
  }
  EPLB_ASSIGN_OR_RETURN(Placement placement, Place(frame, problem));
  PlanAnswer answer{std::move(placement), std::nullopt};
  if (problem.survival.has_value()) {
    answer.without_survival = answer.placement;
    EPLB_ASSIGN_OR_RETURN(answer.placement,
                          CoverLosses(InputOf(problem), answer.placement, *problem.survival));
  }
  if (splits) {
    EPLB_ASSIGN_OR_RETURN(answer.shares,
                          SplitOptimally(problem.loads.load, answer.placement, &problem.speeds));
  }
  return answer;
}

}  // namespace eplb::cli
