// Placements without a daemon: the functions of eplb_plan.h.
#include "client/c/plan.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "client/batch_splits.h"
#include "client/c/client_handle.h"
#include "client/c/eplb_plan.h"
#include "client/c/structs.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/policies/deepseek_policy.h"
#include "placement/policies/registry.h"
#include "placement/scenarios.h"

#include <Eigen/Core>

namespace eplb::c {

namespace {

// Returns the value at `number` of `values`. errors: InvalidArgument, naming the option.
template <class Value, size_t kCount>
absl::StatusOr<Value> ReadChoice(const char* option, int32_t number,
                                 const Value (&values)[kCount]) {
  if (number >= 0 && number < std::ssize(values)) return values[number];
  return InvalidInput(option, ": ", number, ", expected 0..", kCount - 1);
}

// Values in the order of eplb_tie_break, eplb_hierarchy, eplb_effort and eplb_objective.
constexpr TieBreak kTieBreaks[] = {TieBreak::kStable, TieBreak::kCompat};
constexpr std::optional<Hierarchy> kHierarchies[] = {std::nullopt, Hierarchy::kStrict,
                                                     Hierarchy::kSoft, Hierarchy::kNone};
constexpr Effort kEfforts[] = {Effort::kDefault, Effort::kFast, Effort::kThorough};
constexpr ScenarioObjective kObjectives[] = {ScenarioObjective::kMean, ScenarioObjective::kWorst};

absl::StatusOr<TieBreak> ReadTieBreak(int32_t number) {
  return ReadChoice("tie_break", number, kTieBreaks);
}

absl::StatusOr<PolicyOptions> ReadPolicyOptions(const eplb_plan_options& options) {
  PolicyOptions policy;
  EPLB_ASSIGN_OR_RETURN(policy.tie_break, ReadTieBreak(options.tie_break));
  EPLB_ASSIGN_OR_RETURN(policy.hierarchy, ReadChoice("hierarchy", options.hierarchy, kHierarchies));
  EPLB_ASSIGN_OR_RETURN(policy.effort, ReadChoice("effort", options.effort, kEfforts));
  policy.allow_duplicates = options.allow_duplicates != 0;
  if (options.max_moves_per_gpu < -1) {
    return InvalidInput("max_moves_per_gpu: ", options.max_moves_per_gpu,
                        ", expected 0 or more, or -1: its own rule");
  }
  if (options.max_moves_per_gpu >= 0) policy.max_moves_per_gpu = options.max_moves_per_gpu;
  return policy;
}

// The reference reads expert groups only in its hierarchical branch, and reports errors itself.
absl::Status CheckGroups(const PolicyTraits& policy, const Topology& topology) {
  const int32_t experts = topology.num_experts(), groups = topology.num_groups();
  if (policy.follows_reference || experts % groups == 0) return absl::OkStatus();
  return InvalidInput("num_groups is ", groups, ", expected a divisor of the ", experts,
                      " experts");
}

// Returns [L, S]: each slot's place among its expert's replicas, from a logical_to_physical_map.
absl::StatusOr<IndexMatrix> ReadReplicaRanks(const eplb_plan_options& options) {
  if (options.previous_max_replicas < 1 || options.previous_max_replicas > options.num_slots) {
    return InvalidInput("previous_max_replicas: ", options.previous_max_replicas, ", expected 1..",
                        options.num_slots);
  }
  IndexMatrix ranks = IndexMatrix::Constant(options.num_layers, options.num_slots, -1);
  const int64_t* next = options.previous_replicas;
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    for (int32_t expert = 0; expert < options.num_experts; ++expert) {
      for (int32_t rank = 0; rank < options.previous_max_replicas; ++rank) {
        const int64_t slot = *next++;
        if (slot == -1) continue;
        if (slot < 0 || slot >= options.num_slots) {
          return InvalidInput("previous_replicas: layer ", layer, " expert ", expert, " replica ",
                              rank, " is in slot ", slot, ", expected -1..", options.num_slots - 1);
        }
        ranks(layer, slot) = rank;
      }
    }
  }
  return ranks;
}

absl::StatusOr<Placement> ReadPrevious(const eplb_plan_options& options, const Topology& topology) {
  const Eigen::Map<const LoadMatrix> given(options.previous, options.num_layers, options.num_slots);
  for (Eigen::Index layer = 0; layer < given.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < given.cols(); ++slot) {
      const int64_t expert = given(layer, slot);
      if (expert >= -1 && expert < options.num_experts) continue;
      return InvalidInput("previous: layer ", layer, " slot ", slot, " holds expert ", expert,
                          ", expected -1..", options.num_experts - 1);
    }
  }
  const IndexMatrix slots = given.cast<int32_t>();
  if (options.previous_replicas == nullptr) return Placement::FromSlots(topology, slots);
  EPLB_ASSIGN_OR_RETURN(const IndexMatrix ranks, ReadReplicaRanks(options));
  return Placement::FromSlotsAndRanks(topology, slots, ranks);
}

// Options: num_layers and num_experts are the shape of the array `name`.
template <class Options>
absl::Status CheckCells(const char* name, const void* cells, const Options& options) {
  EPLB_RETURN_IF_ERROR(CheckNotNull(name, cells));
  if (options.num_layers >= 1 && options.num_experts >= 1) return absl::OkStatus();
  return InvalidInput("num_layers ", options.num_layers, ", num_experts ", options.num_experts,
                      ", expected at least 1");
}

// Gives the caller the plan of `make`, () -> StatusOr<unique_ptr<eplb_plan>>.
template <class Make>
int32_t GivePlan(eplb_plan** plan, const Make& make) noexcept {
  return CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    *plan = nullptr;
    EPLB_ASSIGN_OR_RETURN(std::unique_ptr<eplb_plan> made, make());
    *plan = made.release();
    return absl::OkStatus();
  });
}

eplb_plan_options DefaultPlanOptions() {
  eplb_plan_options options = {};
  options.struct_size = sizeof(options);
  options.num_gpus = 1;
  options.num_nodes = 1;
  options.num_groups = 1;
  options.max_moves_per_gpu = -1;
  return options;
}

absl::StatusOr<eplb_plan_options> ReadPlanOptions(const eplb_plan_options* given) {
  return ReadStruct("options", given, DefaultPlanOptions());
}

// Plans with DeepSeek's own function. errors: InvalidArgument, naming the numbers.
absl::StatusOr<std::unique_ptr<eplb_plan>> Rebalance(const eplb_rebalance_options* pointer,
                                                     const float* weight) {
  EPLB_ASSIGN_OR_RETURN(const eplb_rebalance_options options, ReadStruct("options", pointer));
  EPLB_ASSIGN_OR_RETURN(const TieBreak tie_break, ReadTieBreak(options.tie_break));
  EPLB_RETURN_IF_ERROR(CheckCells("weight", weight, options));
  const Eigen::Map<const FloatMatrix> weights(weight, options.num_layers, options.num_experts);
  EPLB_ASSIGN_OR_RETURN(const DeepseekMaps maps,
                        RebalanceExperts(weights,
                                         {.num_slots = options.num_replicas,
                                          .num_groups = options.num_groups,
                                          .num_nodes = options.num_nodes,
                                          .num_gpus = options.num_gpus},
                                         tie_break));
  // The reference may ignore nodes and expert groups, so the placement has none.
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make({.num_layers = options.num_layers,
                                                                 .num_experts = options.num_experts,
                                                                 .num_slots = options.num_replicas,
                                                                 .num_gpus = options.num_gpus}));
  EPLB_ASSIGN_OR_RETURN(
      Placement placement,
      Placement::FromSlotsAndRanks(topology, maps.physical_to_logical, maps.replica_rank));
  auto plan = std::make_unique<eplb_plan>(eplb_plan{std::move(placement), {}, {}});
  const absl::StatusOr<Load> load = Load::FromEstimates(weights.cast<double>());
  if (load.ok()) {
    EPLB_ASSIGN_OR_RETURN(plan->evaluation, Evaluate(*load, plan->placement));
  }
  return plan;
}

// load: the only load, or the mean of the scenarios. errors: InvalidArgument for shapes, values out
// of range and input that the policy rejects.
absl::StatusOr<std::unique_ptr<eplb_plan>> SolvePlan(const eplb_plan_options& options,
                                                     const Load& load,
                                                     std::span<const Scenario> scenarios = {},
                                                     ScenarioObjective objective = {}) {
  const NamedPolicy named(options.policy == nullptr ? kDefaultPolicyName : options.policy);
  if (named.chooses) {
    return InvalidInput("policy ", named.name,
                        " needs the windows of a running job; name another policy");
  }
  EPLB_ASSIGN_OR_RETURN(const PolicyOptions policy_options, ReadPolicyOptions(options));
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy,
                        MakePolicy(named.name, policy_options));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(ShapeOf(options)));
  EPLB_RETURN_IF_ERROR(CheckGroups(named, topology));
  const auto num_speeds = static_cast<size_t>(options.gpu_speeds == nullptr ? 0 : options.num_gpus);
  EPLB_ASSIGN_OR_RETURN(const std::optional<GpuSpeeds> read,
                        ReadSpeeds({options.gpu_speeds, num_speeds}, options.num_gpus));
  const GpuSpeeds* const speeds = read.has_value() ? &*read : nullptr;
  std::optional<Placement> previous;
  if (options.previous != nullptr) {
    EPLB_ASSIGN_OR_RETURN(previous, ReadPrevious(options, topology));
  } else if (named.needs_previous) {
    return InvalidInput("policy ", named.name, " needs `previous`, the placement to start from");
  }
  EPLB_ASSIGN_OR_RETURN(
      Placement placement,
      SolveAligned(*policy, {.load = load,
                             .topology = topology,
                             .previous = previous.has_value() ? &*previous : nullptr,
                             .speeds = speeds,
                             .scenarios = scenarios,
                             .objective = objective}));
  EPLB_ASSIGN_OR_RETURN(Evaluation evaluation, Evaluate(load, placement, {.speeds = speeds}));
  std::vector<Evaluation> each;
  for (const Scenario& scenario : scenarios) {
    EPLB_ASSIGN_OR_RETURN(Evaluation one, Evaluate(scenario.load, placement, {.speeds = speeds}));
    each.push_back(std::move(one));
  }
  return std::make_unique<eplb_plan>(
      eplb_plan{std::move(placement), std::move(evaluation), std::move(each)});
}

// loads: [num_loads, L, E]. weights: [num_loads], or NULL.
absl::StatusOr<std::unique_ptr<eplb_plan>> PlanFromScenarios(const eplb_plan_options& options,
                                                             int32_t num_loads, const double* loads,
                                                             const double* weights,
                                                             int32_t objective) {
  EPLB_RETURN_IF_ERROR(CheckCells("loads", loads, options));
  EPLB_ASSIGN_OR_RETURN(const ScenarioObjective read,
                        ReadChoice("objective", objective, kObjectives));
  if (num_loads < 1 || num_loads > static_cast<int32_t>(kMaxScenarios)) {
    return InvalidInput("num_loads is ", num_loads, ", expected 1..", kMaxScenarios);
  }
  std::vector<Scenario> scenarios;
  for (int32_t k = 0; k < num_loads; ++k) {
    const Eigen::Map<const RealMatrix> cells(loads, options.num_layers, options.num_experts);
    absl::StatusOr<Load> load = Load::FromEstimates(cells);
    if (!load.ok()) {
      return InvalidInput("scenario ", k, ": ", std::string(load.status().message()));
    }
    scenarios.push_back({*std::move(load), weights == nullptr ? 1 : weights[k]});
    loads += cells.size();
  }
  EPLB_RETURN_IF_ERROR(CheckScenarios(scenarios));
  const Load load = num_loads == 1 ? scenarios.front().load : MeanOfScenarios(scenarios);
  return SolvePlan(options, load, scenarios, read);
}

// Makes a plan of the placement `previous`.
absl::StatusOr<std::unique_ptr<eplb_plan>> PlanFromMaps(const eplb_plan_options& options) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(ShapeOf(options)));
  if (options.previous == nullptr) return InvalidInput("previous is NULL");
  EPLB_ASSIGN_OR_RETURN(Placement placement, ReadPrevious(options, topology));
  return std::make_unique<eplb_plan>(eplb_plan{std::move(placement), {}, {}});
}

// make_load: (Matrix) -> StatusOr<Load>.
template <class Matrix, class Cell, class MakeLoad>
int32_t MakePlan(const eplb_plan_options* pointer, const Cell* cells, const MakeLoad& make_load,
                 eplb_plan** plan) noexcept {
  return GivePlan(plan, [&]() -> absl::StatusOr<std::unique_ptr<eplb_plan>> {
    EPLB_ASSIGN_OR_RETURN(const eplb_plan_options options, ReadPlanOptions(pointer));
    EPLB_RETURN_IF_ERROR(CheckCells("the load", cells, options));
    EPLB_ASSIGN_OR_RETURN(const Load load, make_load(Eigen::Map<const Matrix>(
                                               cells, options.num_layers, options.num_experts)));
    return SolvePlan(options, load);
  });
}

// figures: [L], NaN for a layer without load. Returns the end of the copy.
double* CopyBalancedness(const Evaluation& evaluation, double* figures) {
  return std::transform(evaluation.balancedness.begin(), evaluation.balancedness.end(), figures,
                        [](const auto& figure) { return figure.value_or(kNoFigure); });
}

void CopyMap(const IndexMatrix& map, int64_t* cells) {
  if (cells != nullptr) std::copy_n(map.data(), map.size(), cells);
}

}  // namespace

}  // namespace eplb::c

extern "C" {

int32_t eplb_rebalance_experts(const eplb_rebalance_options* options, const float* weight,
                               eplb_plan** plan) noexcept {
  return eplb::c::GivePlan(plan, [&] { return eplb::c::Rebalance(options, weight); });
}

int32_t eplb_plan_options_init(eplb_plan_options* options, size_t struct_size) noexcept {
  return eplb::c::InitStruct(eplb::c::DefaultPlanOptions(), options, struct_size);
}

int32_t eplb_plan_from_counts(const eplb_plan_options* options, const int64_t* counts,
                              eplb_plan** plan) noexcept {
  return eplb::c::MakePlan<eplb::LoadMatrix>(options, counts, eplb::Load::FromCounts, plan);
}

int32_t eplb_plan_from_estimates(const eplb_plan_options* options, const double* load,
                                 eplb_plan** plan) noexcept {
  return eplb::c::MakePlan<eplb::RealMatrix>(options, load, eplb::Load::FromEstimates, plan);
}

int32_t eplb_plan_from_scenarios(const eplb_plan_options* options, int32_t num_loads,
                                 const double* loads, const double* weights, int32_t objective,
                                 eplb_plan** plan) noexcept {
  return eplb::c::GivePlan(plan, [&]() -> absl::StatusOr<std::unique_ptr<eplb_plan>> {
    EPLB_ASSIGN_OR_RETURN(const eplb_plan_options read, eplb::c::ReadPlanOptions(options));
    return eplb::c::PlanFromScenarios(read, num_loads, loads, weights, objective);
  });
}

int32_t eplb_plan_from_maps(const eplb_plan_options* options, eplb_plan** plan) noexcept {
  return eplb::c::GivePlan(plan, [&]() -> absl::StatusOr<std::unique_ptr<eplb_plan>> {
    EPLB_ASSIGN_OR_RETURN(const eplb_plan_options read, eplb::c::ReadPlanOptions(options));
    return eplb::c::PlanFromMaps(read);
  });
}

int32_t eplb_plan_get_sizes(const eplb_plan* plan, eplb_plan_sizes* sizes) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("plan", plan));
    EPLB_RETURN_IF_ERROR(eplb::c::CheckFillable("sizes", sizes));
    const eplb::Topology& topology = plan->placement.topology();
    eplb_plan_sizes result = {};
    result.num_layers = topology.num_layers();
    result.num_experts = topology.num_experts();
    result.num_slots = topology.num_slots();
    result.max_replicas = plan->placement.max_replicas();
    eplb::c::FillStruct(result, sizes);
    return absl::OkStatus();
  });
}

int32_t eplb_plan_copy_maps(const eplb_plan* plan, int64_t* physical_to_logical_map,
                            int64_t* logical_to_physical_map, int64_t* logical_count) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("plan", plan));
    eplb::c::CopyMap(plan->placement.physical_to_logical_map(), physical_to_logical_map);
    eplb::c::CopyMap(plan->placement.logical_replica_count(), logical_count);
    if (logical_to_physical_map != nullptr) {
      eplb::c::CopyMap(plan->placement.logical_to_physical_map(), logical_to_physical_map);
    }
    return absl::OkStatus();
  });
}

int32_t eplb_plan_copy_figures(const eplb_plan* plan, double* balancedness,
                               double* max_gpu_load) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("plan", plan));
    if (!plan->evaluation.has_value()) {
      return eplb::FailedPrecondition(
          "the plan has no figures: it was made of maps, or its weights are no load, some are "
          "negative or not finite");
    }
    const eplb::Evaluation& figures = *plan->evaluation;
    if (balancedness != nullptr) eplb::c::CopyBalancedness(figures, balancedness);
    if (max_gpu_load != nullptr) {
      std::copy(figures.max_gpu_load.begin(), figures.max_gpu_load.end(), max_gpu_load);
    }
    return absl::OkStatus();
  });
}

int32_t eplb_plan_copy_scenario_figures(const eplb_plan* plan, double* balancedness) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("plan", plan));
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("balancedness", balancedness));
    if (plan->scenarios.empty()) {
      return eplb::FailedPrecondition("the plan was not made by eplb_plan_from_scenarios");
    }
    for (const eplb::Evaluation& each : plan->scenarios) {
      balancedness = eplb::c::CopyBalancedness(each, balancedness);
    }
    return absl::OkStatus();
  });
}

void eplb_plan_destroy(eplb_plan* plan) noexcept { delete plan; }

}  // extern "C"
