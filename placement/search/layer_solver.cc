#include "placement/search/layer_solver.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/search/node_affinity.h"

namespace eplb {
namespace {

// Partitions that a thorough search solves again with all its work.
constexpr size_t kPartitionsToDeepen = 3;
// A soft search looks at further partitions with one more such part of its work.
constexpr int64_t kLookParts = 4;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Partitions of the expert groups to solve before the cheapest is believed.
int32_t PartitionsToTry(Effort effort) { return ByEffort(effort, 1, 4, 32); }

// True if no expert has more copies on a GPU than it must if `available` experts may be there.
bool CopiesAreSpread(std::span<const int32_t> on_gpu, size_t available) {
  const size_t least = on_gpu.size() / available;
  const size_t with_one_more = on_gpu.size() % available;  // experts
  size_t slots_of_those = 0;
  for (const int32_t expert : on_gpu) {
    const auto copies = AsIndex(std::ranges::count(on_gpu, expert));
    if (copies > least + 1) return false;
    slots_of_those += copies > least ? 1 : 0;
  }
  return slots_of_those <= with_one_more * (least + 1);
}

// True if a layout has no empty slot and every expert.
bool HoldsAll(std::span<const int32_t> layout, int32_t num_experts) {
  std::vector<bool> held(AsIndex(num_experts), false);
  for (const int32_t expert : layout) {
    if (expert < 0) return false;
    held[AsIndex(expert)] = true;
  }
  return std::ranges::find(held, false) == held.end();
}

}  // namespace

std::optional<double> PeakOf(const Topology& topology, const LayerSolverOptions& options,
                             const DomainInLayer& whole, std::span<const double> load,
                             std::span<const int32_t> slots) {
  std::vector<int32_t> counts(load.size());
  for (const int32_t expert : slots) {
    if (expert >= 0) ++counts[AsIndex(expert)];
  }
  if (std::ranges::find(counts, 0) != counts.end()) return std::nullopt;
  const bool strict = options.hierarchy == Hierarchy::kStrict;
  const auto available = load.size() / AsIndex(strict ? topology.num_nodes() : 1);
  double peak = 0;
  size_t held = 0;
  for (size_t gpu = 0; gpu < whole.first_slot.size(); ++gpu) {
    const auto first = slots.begin() + whole.first_slot[gpu];
    const std::span<const int32_t> on_gpu(first, first + whole.domain.slots[gpu]);
    double tokens = 0;
    for (const int32_t expert : on_gpu) {
      if (expert < 0) return std::nullopt;
      tokens += load[AsIndex(expert)] / counts[AsIndex(expert)];
    }
    if (!options.allow_duplicates && !CopiesAreSpread(on_gpu, available)) return std::nullopt;
    held += on_gpu.size();
    peak = std::max(peak, tokens / whole.domain.speed[gpu]);
  }
  const auto all = AsIndex(std::accumulate(counts.begin(), counts.end(), 0));
  if (held != all) return std::nullopt;
  if (options.hierarchy != Hierarchy::kNone &&
      !NodeAffinityOf(topology, options.hierarchy, slots).has_value()) {
    return std::nullopt;
  }
  return peak;
}

absl::Status LayerSolver::Check(const Topology& topology, const GpuSpeeds& speeds,
                                const LayerSolverOptions& options) {
  if (speeds.num_gpus() != topology.num_gpus()) {
    return InvalidInput(speeds.num_gpus(), " GPU speeds for ", topology.num_gpus(), " GPUs");
  }
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, options.hierarchy));
  const bool by_node = options.hierarchy != Hierarchy::kNone;
  const int32_t parts = by_node ? topology.num_nodes() : 1;
  const int32_t gpus = topology.num_gpus() / parts;
  const int32_t experts = topology.num_experts() / parts;
  std::vector<Domain> domains;
  int32_t fewest = gpus;  // usable GPUs of a part
  for (int32_t part = 0; part < parts; ++part) {
    domains.push_back(DomainOf(topology, speeds, part * gpus, (part + 1) * gpus));
    fewest = std::min(fewest, domains.back().num_gpus());
  }
  const std::string next =
      fewest == 0
          ? ""
          : absl::StrCat(", next: ", EqualSlots(experts, fewest) / fewest * topology.num_gpus(),
                         " slots");
  for (int32_t part = 0; part < parts; ++part) {
    const int32_t slots = domains[AsIndex(part)].num_slots();
    if (slots >= experts) continue;
    if (!by_node) {
      return InvalidInput("the ", speeds.num_usable(), " usable GPUs have ", slots, " slots for ",
                          experts, " experts", next);
    }
    return InvalidInput("node ", part, " has ", slots, " usable slots for the ", experts,
                        " experts of its expert groups", next);
  }
  return absl::OkStatus();
}

LayerSolver::LayerSolver(const Topology& topology, const GpuSpeeds& speeds,
                         const LayerSolverOptions& options)
    : topology_(topology),
      options_(options),
      whole_{{WholeLayer(topology, speeds, options.hierarchy, options.allow_duplicates)}, nullptr} {
  if (options.hierarchy != Hierarchy::kStrict) {
    whole_.solver = std::make_unique<DomainSolver>(whole_.domain);
  }
  if (options.hierarchy == Hierarchy::kNone) return;
  node_domains_ = NodeDomains(topology, speeds);
  const int32_t gpus = topology.num_gpus() / topology.num_nodes();
  for (int32_t node = 0; node < topology.num_nodes(); ++node) {
    auto frame = std::make_unique<SolvedDomain>(
        SolvedDomain{{PlaceInLayer(topology, speeds, node * gpus, (node + 1) * gpus)}, nullptr});
    frame->domain.allow_duplicates = options.allow_duplicates;
    frame->domain.load.resize(AsIndex(topology.num_experts() / topology.num_nodes()));
    frame->solver = std::make_unique<DomainSolver>(frame->domain);
    nodes_.push_back(std::move(frame));
  }
}

SearchLimits LayerSolver::LimitsFor(Effort effort, const Domain& domain, int32_t num_layers) const {
  SearchLimits limits = LimitsOf(effort, domain, num_layers);
  limits.abandoned = options_.abandoned;
  return limits;
}

SearchLimits LayerSolver::NodeLimits(const SolvedDomain& frame) const {
  SearchLimits limits = LimitsFor(effort_, frame.domain, topology_.num_layers());
  // Half, so that a second node that matters finds something left.
  limits.work = std::max(work_ / 2, LimitsOf(Effort::kFast, frame.domain, 1).work);
  return limits;
}

void LayerSolver::Solve(std::span<const double> load,
                        std::span<const std::span<const int32_t>> candidates,
                        std::span<int32_t> slots) {
  whole_.domain.load.assign(load.begin(), load.end());
  Answer answer = {.peak = kInfinity, .slots = std::vector<int32_t>(slots.size(), -1)};
  switch (options_.hierarchy) {
    case Hierarchy::kNone:
      SolveFlat(candidates, answer);
      break;
    case Hierarchy::kStrict:
      SolveStrict(load, answer);
      break;
    case Hierarchy::kSoft:
      SolveSoft(load, answer);
      break;
  }
  for (const std::span<const int32_t> candidate : candidates) {
    const std::optional<double> peak = PeakOf(topology_, options_, whole_, load, candidate);
    if (!peak.has_value() || *peak >= answer.peak) continue;
    answer.peak = *peak;
    answer.slots.assign(candidate.begin(), candidate.end());
  }
  std::copy(answer.slots.begin(), answer.slots.end(), slots.begin());
}

void LayerSolver::SolveOn(const NodePartition& partition, std::span<const double> load,
                          std::span<int32_t> slots) {
  Answer answer = {.peak = kInfinity, .slots = std::vector<int32_t>(slots.size(), -1)};
  effort_ = options_.effort;
  SolvePartition(load, Partitions(load), partition, 1, answer);
  std::copy(answer.slots.begin(), answer.slots.end(), slots.begin());
}

void LayerSolver::SolveFlat(std::span<const std::span<const int32_t>> candidates, Answer& answer) {
  whole_.solver->Begin(LimitsFor(options_.effort, whole_.domain, topology_.num_layers()));
  const Arrangement* found = &whole_.solver->Solve();
  Arrangement start(whole_.domain);
  for (const std::span<const int32_t> candidate : candidates) {
    if (whole_.solver->Done()) break;
    const std::vector<int32_t> layout = whole_.Read(candidate);
    if (!HoldsAll(layout, whole_.domain.num_experts())) continue;
    start.Assign(layout);
    if (!options_.allow_duplicates) SpreadCopies(start);
    found = &whole_.solver->SolveFrom(start.experts());
  }
  whole_.Write(*found, answer.slots);
  answer.peak = found->MaxLoad();
}

PartitionProblem LayerSolver::Partitions(std::span<const double> load) const {
  const std::span<const double> loads[] = {load};
  return ByNodeLoad(loads, topology_.num_groups(), node_domains_);
}

void LayerSolver::SolveStrict(std::span<const double> load, Answer& answer) {
  const PartitionProblem problem = Partitions(load);
  std::vector<NodePartition> partitions =
      CheapestPartitions(problem, PartitionsToTry(options_.effort));
  // All partitions get a little work, then the most promising ones the rest.
  const bool thorough = options_.effort == Effort::kThorough;
  effort_ = thorough ? Effort::kDefault : options_.effort;
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < partitions.size() && partitions[i].cost < answer.peak; ++i) {
    order.emplace_back(SolvePartition(load, problem, partitions[i], 1, answer), i);
  }
  if (!thorough) return;
  effort_ = Effort::kThorough;
  std::ranges::sort(order);
  order.resize(std::min(order.size(), kPartitionsToDeepen));
  int64_t share = 2;
  for (const auto& [peak, i] : order) {
    if (partitions[i].cost >= answer.peak) continue;
    SolvePartition(load, problem, partitions[i], share, answer);
    share *= 2;
  }
}

double LayerSolver::SolvePartition(std::span<const double> load, const PartitionProblem& problem,
                                   const NodePartition& partition, int64_t share, Answer& answer) {
  work_ = 0;
  for (const auto& node : nodes_) {
    work_ += LimitsOf(effort_, node->domain, topology_.num_layers() * problem.num_nodes).work;
  }
  work_ /= share;
  // The dearest nodes first, because their peak is good enough for the others.
  std::vector<std::pair<double, int32_t>> order;
  for (int32_t node = 0; node < problem.num_nodes; ++node) {
    std::vector<int32_t> groups;
    for (int32_t group = 0; group < problem.num_groups; ++group) {
      if (partition.node_of_group[AsIndex(group)] == node) groups.push_back(group);
    }
    order.emplace_back(-problem.cost(problem.kind_of_node[AsIndex(node)], groups), node);
  }
  std::ranges::sort(order);
  slots_.assign(answer.slots.size(), -1);
  double peak = 0;
  for (const auto& [cost, node] : order) {
    peak = std::max(peak, SolveNode(load, partition, node, peak, slots_));
    if (peak >= answer.peak) return peak;
  }
  answer = {.peak = peak, .slots = slots_};
  partition_ = partition;
  return peak;
}

double LayerSolver::SolveNode(std::span<const double> load, const NodePartition& partition,
                              int32_t node, double enough, std::span<int32_t> slots) {
  SolvedDomain& frame = *nodes_[AsIndex(node)];
  frame.domain.load.clear();
  frame.experts.clear();
  for (size_t group = 0; group < partition.node_of_group.size(); ++group) {
    if (partition.node_of_group[group] != node) continue;
    const auto experts = load.subspan(group * per_group(), per_group());
    frame.domain.load.insert(frame.domain.load.end(), experts.begin(), experts.end());
    for (size_t i = 0; i < per_group(); ++i) {
      frame.experts.push_back(static_cast<int32_t>(group * per_group() + i));
    }
  }
  frame.solver->Begin(NodeLimits(frame));
  frame.solver->set_enough(enough);
  const Arrangement& found = frame.solver->Solve();
  work_ -= frame.solver->work_done();
  frame.Write(found, slots);
  return found.MaxLoad();
}

// Solves the strict answer's partition with all its work. Because replicas may leave a node, the
// load of a node decides less here. So further partitions get some work, and a better one more.
void LayerSolver::SolveSoft(std::span<const double> load, Answer& answer) {
  SolveStrict(load, answer);
  const NodePartition first = partition_;
  SearchLimits limits = LimitsFor(options_.effort, whole_.domain, topology_.num_layers());
  Soften(first, limits, answer);
  const PartitionProblem problem = Partitions(load);
  const std::vector<NodePartition> partitions =
      CheapestPartitions(problem, PartitionsToTry(options_.effort));
  const SearchLimits least = LimitsOf(Effort::kFast, whole_.domain, 1);
  const int64_t more_work = limits.work / kLookParts;
  limits.work = std::max(more_work / static_cast<int64_t>(partitions.size()), least.work);
  effort_ = Effort::kFast;
  const NodePartition* best = nullptr;
  for (const NodePartition& partition : partitions) {
    if (answer.peak <= whole_.solver->bound() * (1 + limits.tolerance)) return;
    if (partition.node_of_group == first.node_of_group) continue;
    Answer other = {.peak = kInfinity, .slots = std::vector<int32_t>(answer.slots.size(), -1)};
    SolvePartition(load, problem, partition, 1, other);
    Soften(partition, limits, other);
    if (other.peak >= answer.peak) continue;
    answer = std::move(other);
    best = &partition;
  }
  if (best == nullptr) return;
  limits.work = more_work;
  Soften(*best, limits, answer);
}

// Lets replicas beyond an expert's last one at home go anywhere.
void LayerSolver::Soften(const NodePartition& partition, const SearchLimits& limits,
                         Answer& answer) {
  SetHomes(partition.node_of_group, whole_.domain);
  whole_.solver->Begin(limits);
  Arrangement start(whole_.domain);
  start.Assign(whole_.Read(answer.slots));
  // A node may have to hold experts twice that the layer need not.
  if (!options_.allow_duplicates) SpreadCopies(start);
  whole_.solver->Offer(start.experts());
  const Arrangement& found = whole_.solver->Solve();
  whole_.Write(found, answer.slots);
  answer.peak = found.MaxLoad();
}

}  // namespace eplb
