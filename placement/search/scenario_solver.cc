#include "placement/search/scenario_solver.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace eplb {
namespace {

// tests/bench/scenarios.py judges the constants.
constexpr int64_t kDescendPerSlot = 16;
constexpr int64_t kLeastDescend = 4'000;
constexpr int64_t kAnneal = 96'000'000;  // in all layers; some five seconds for four loads
constexpr int64_t kAnnealPerLayer = 3'000'000;
// Partitions with the least fullest node of any scenario, whose objectives are compared.
constexpr int32_t kPartitionsToCompare = 200;

// A soft answer begins with a strict one. More effort would fit the replica counts to the mean load
// so closely that walks from there end higher.
LayerSolverOptions OptionsForMean(LayerSolverOptions options) {
  options.effort = Effort::kFast;
  if (options.hierarchy == Hierarchy::kSoft) options.hierarchy = Hierarchy::kStrict;
  return options;
}

// The layout with the least objective that a walk came through.
class BestLayout {
 public:
  explicit BestLayout(const ScenarioWalk& walk) : walk_(walk) { Keep(); }

  void Keep() {
    const double objective = walk_.Objective();
    if (objective >= least_) return;
    least_ = objective;
    const std::span<const int32_t> experts = walk_.arrangement().experts();
    layout_.assign(experts.begin(), experts.end());
  }
  const std::vector<int32_t>& layout() const { return layout_; }

 private:
  const ScenarioWalk& walk_;
  double least_ = std::numeric_limits<double>::infinity();
  std::vector<int32_t> layout_;
};

}  // namespace

WalkLimits WalkLimitsOf(Effort effort, int32_t num_slots, int32_t num_layers) {
  switch (effort) {
    case Effort::kFast:
      return {.descend = kDescendPerSlot / 4 * num_slots};
    case Effort::kDefault:
      return {.descend = std::max(kLeastDescend, kDescendPerSlot * num_slots)};
    case Effort::kThorough:
      return {.descend = std::max(kLeastDescend, kDescendPerSlot * num_slots),
              .anneal = std::min(kAnneal / num_layers, kAnnealPerLayer)};
  }
  return {};
}

ScenarioSolver::ScenarioSolver(const Topology& topology, const GpuSpeeds& speeds,
                               const LayerSolverOptions& options)
    : topology_(topology),
      options_(options),
      mean_solver_(topology, speeds, OptionsForMean(options)),
      whole_(WholeLayer(topology, speeds, options.hierarchy, options.allow_duplicates)),
      limits_(WalkLimitsOf(options.effort, topology.num_slots(), topology.num_layers())) {
  if (options.hierarchy != Hierarchy::kNone) node_domains_ = NodeDomains(topology, speeds);
}

NodePartition ScenarioSolver::ChoosePartition(const ScenarioLoads& loads) const {
  const std::vector<std::span<const double>> all(loads.tokens.begin(), loads.tokens.end());
  const PartitionProblem problem = ByNodeLoad(all, topology_.num_groups(), node_domains_);
  std::vector<NodePartition> partitions = CheapestPartitions(problem, kPartitionsToCompare);
  std::vector<PartitionProblem> problems;
  for (const std::span<const double>& load : all) {
    problems.push_back(ByNodeLoad({&load, 1}, topology_.num_groups(), node_domains_));
  }
  for (NodePartition& partition : partitions) {
    double sum = 0;
    for (size_t k = 0; k < problems.size(); ++k) {
      sum += loads.weights[k] * CostOf(problems[k], partition);
    }
    if (loads.objective == ScenarioObjective::kMean) partition.cost = sum;
  }
  return *std::ranges::min_element(partitions, {}, &NodePartition::cost);
}

void ScenarioSolver::Begin(const ScenarioLoads& loads, std::span<int32_t> slots) {
  whole_.domain.load = loads.Mean();
  if (options_.hierarchy == Hierarchy::kNone) {
    mean_solver_.Solve(whole_.domain.load, {}, slots);
    return;
  }
  const NodePartition partition = ChoosePartition(loads);
  mean_solver_.SolveOn(partition, whole_.domain.load, slots);
  SetHomes(partition.node_of_group, whole_.domain);
  whole_.domain.only_on_affine_node = true;
}

std::vector<int32_t> ScenarioSolver::Improve(std::span<const int32_t> slots,
                                             ScenarioObjective objective, ScenarioWalk& walk) {
  const std::vector<int32_t> start = whole_.Read(slots);
  walk.Start(start);
  const double before = walk.Objective();
  if (walk.Pack() && walk.Objective() >= before) walk.Start(start);
  if (options_.hierarchy == Hierarchy::kSoft) {
    walk.Walk(limits_.descend, false, options_.abandoned);
    whole_.domain.only_on_affine_node = false;
    Arrangement spread = walk.arrangement();
    // A node may have to hold experts twice that the layer need not.
    if (!options_.allow_duplicates) SpreadCopies(spread);
    walk.Start(spread.experts());
  }
  BestLayout best(walk);
  walk.Walk(limits_.descend, false, options_.abandoned);
  best.Keep();
  if (limits_.anneal == 0) return best.layout();
  if (objective == ScenarioObjective::kMean) {
    walk.Walk(limits_.anneal, true, options_.abandoned);
    best.Keep();
    return best.layout();
  }
  // A walk that lowers one scenario at a time ends higher than one that begins where the mean is
  // least.
  walk.set_objective(ScenarioObjective::kMean);
  walk.Walk(limits_.anneal / 2, true, options_.abandoned);
  walk.set_objective(objective);
  walk.Walk(limits_.descend, false, options_.abandoned);
  best.Keep();
  walk.Walk(limits_.anneal / 2, true, options_.abandoned);
  best.Keep();
  return best.layout();
}

void ScenarioSolver::Solve(const ScenarioLoads& loads,
                           std::span<const std::span<const int32_t>> candidates,
                           std::span<int32_t> slots) {
  Begin(loads, slots);
  ScenarioWalk walk(whole_.domain, loads);
  std::vector<int32_t> best = Improve(slots, loads.objective, walk);
  walk.Start(best);
  double least = walk.Objective();
  for (const std::span<const int32_t> candidate : candidates) {
    if (!PeakOf(topology_, options_, whole_, whole_.domain.load, candidate).has_value()) continue;
    std::vector<int32_t> layout = whole_.Read(candidate);
    walk.Start(layout);
    if (walk.Objective() >= least) continue;
    least = walk.Objective();
    best = std::move(layout);
  }
  walk.Start(best);
  whole_.Write(walk.arrangement(), slots);
}

}  // namespace eplb
