#include "placement/search/node_partition.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr int kMaxExchanges = 1000;

bool OneKind(const PartitionProblem& problem) {
  return std::ranges::all_of(problem.kind_of_node,
                             [&](int32_t kind) { return kind == problem.kind_of_node.front(); });
}

// Goes through the partitions node by node; with one kind of node the first free group always goes
// to the next node, so that no partition comes twice.
class Enumeration {
 public:
  Enumeration(const PartitionProblem& problem, int32_t most)
      : problem_(problem),
        per_node_(problem.num_groups / problem.num_nodes),
        ordered_(OneKind(problem)),
        most_(AsIndex(most)),
        node_of_group_(AsIndex(problem.num_groups), kFree) {
    if (problem.num_groups <= kMaxTableGroups) {
      table_.resize(AsIndex(problem.num_nodes) << problem.num_groups, kUnknown);
    }
  }

  std::vector<NodePartition> Run() && {
    Fill(0, 0, 0, 0);
    return std::move(best_);
  }

 private:
  static constexpr int32_t kFree = -1;
  static constexpr int32_t kMaxTableGroups = 12;
  static constexpr double kUnknown = -1;

  // Puts another group on `node`, searching from `first` on; `held` groups are on it already.
  void Fill(int32_t node, int32_t held, int32_t first, double cost) {
    if (held == per_node_) {
      cost = std::max(cost, CostOf(node));
      if (best_.size() == most_ && cost >= best_.back().cost) return;
      if (node + 1 == problem_.num_nodes) {
        Add(cost);
      } else {
        Fill(node + 1, 0, 0, cost);
      }
      return;
    }
    for (int32_t group = first; group < problem_.num_groups; ++group) {
      int32_t& place = node_of_group_[AsIndex(group)];
      if (place != kFree) continue;
      place = node;
      Fill(node, held + 1, group + 1, cost);
      place = kFree;
      if (ordered_ && held == 0) return;
    }
  }

  double CostOf(int32_t node) {
    groups_.clear();
    size_t mask = 0;
    for (int32_t group = 0; group < problem_.num_groups; ++group) {
      if (node_of_group_[AsIndex(group)] != node) continue;
      groups_.push_back(group);
      mask |= size_t{1} << (group % kMaxTableGroups);
    }
    const int32_t kind = problem_.kind_of_node[AsIndex(node)];
    if (table_.empty()) {
      const auto [known, added] = known_.try_emplace({kind, groups_}, 0.0);
      if (added) known->second = problem_.cost(kind, groups_);
      return known->second;
    }
    double& known = table_[(AsIndex(kind) << problem_.num_groups) + mask];
    if (known == kUnknown) known = problem_.cost(kind, groups_);
    return known;
  }

  void Add(double cost) {
    const auto after = std::upper_bound(
        best_.begin(), best_.end(), cost,
        [](double value, const NodePartition& partition) { return value < partition.cost; });
    best_.insert(after, {node_of_group_, cost});
    if (best_.size() > most_) best_.pop_back();
  }

  const PartitionProblem& problem_;
  int32_t per_node_;
  bool ordered_;
  size_t most_;
  std::vector<int32_t> node_of_group_;
  std::vector<int32_t> groups_;
  // Costs by kind and set of groups: a table by bit mask where there are few groups, else a map.
  std::vector<double> table_;
  std::map<std::pair<int32_t, std::vector<int32_t>>, double> known_;
  std::vector<NodePartition> best_;
};

// The answer where there are too many partitions.
class Heuristic {
 public:
  explicit Heuristic(const PartitionProblem& problem)
      : problem_(problem), groups_(AsIndex(problem.num_nodes)) {}

  NodePartition Run() && {
    Distribute();
    for (int i = 0; i < kMaxExchanges && Exchange(); ++i) {
    }
    NodePartition partition = {.node_of_group = std::vector<int32_t>(AsIndex(problem_.num_groups)),
                               .cost = 0};
    for (size_t node = 0; node < groups_.size(); ++node) {
      partition.cost = std::max(partition.cost, CostOf(node, groups_[node]));
      for (const int32_t group : groups_[node]) {
        partition.node_of_group[AsIndex(group)] = static_cast<int32_t>(node);
      }
    }
    return partition;
  }

 private:
  double CostOf(size_t node, const std::vector<int32_t>& groups) const {
    return groups.empty() ? 0 : problem_.cost(problem_.kind_of_node[node], groups);
  }

  void Distribute() {
    std::vector<std::pair<double, int32_t>> order;
    order.reserve(AsIndex(problem_.num_groups));
    for (int32_t group = 0; group < problem_.num_groups; ++group) {
      order.emplace_back(-CostOf(0, {group}), group);
    }
    std::ranges::sort(order);
    const auto room = AsIndex(problem_.num_groups / problem_.num_nodes);
    for (const auto& [cost, group] : order) {
      size_t best = groups_.size();
      double least = std::numeric_limits<double>::infinity();
      for (size_t node = 0; node < groups_.size(); ++node) {
        if (groups_[node].size() == room) continue;
        const double now = CostOf(node, groups_[node]);
        if (now < least) {
          least = now;
          best = node;
        }
      }
      groups_[best].push_back(group);
    }
  }

  // Exchanges a group of the dearest node with one of another; false when that lowers nothing.
  bool Exchange() {
    size_t dearest = 0;
    double most = 0;
    for (size_t node = 0; node < groups_.size(); ++node) {
      const double cost = CostOf(node, groups_[node]);
      if (cost > most) {
        most = cost;
        dearest = node;
      }
    }
    for (size_t node = 0; node < groups_.size(); ++node) {
      if (node == dearest) continue;
      for (int32_t& mine : groups_[dearest]) {
        for (int32_t& other : groups_[node]) {
          std::swap(mine, other);
          if (CostOf(dearest, groups_[dearest]) < most && CostOf(node, groups_[node]) < most) {
            return true;
          }
          std::swap(mine, other);
        }
      }
    }
    return false;
  }

  const PartitionProblem& problem_;
  std::vector<std::vector<int32_t>> groups_;  // groups of each node
};

}  // namespace

bool CanEnumerate(const PartitionProblem& problem) {
  const int32_t per_node = problem.num_groups / problem.num_nodes;
  const bool one_kind = OneKind(problem);
  double ways = 1;
  for (int32_t node = 0; node < problem.num_nodes; ++node) {
    // Groups still free; the first of them is given where nodes are interchangeable.
    int32_t free = problem.num_groups - node * per_node;
    int32_t chosen = per_node;
    if (one_kind) {
      --free;
      --chosen;
    }
    for (int32_t i = 1; i <= chosen; ++i) ways *= static_cast<double>(free - chosen + i) / i;
    if (ways > static_cast<double>(kMaxPartitions)) return false;
  }
  return true;
}

std::vector<NodePartition> CheapestPartitions(const PartitionProblem& problem, int32_t most) {
  if (CanEnumerate(problem)) return Enumeration(problem, most).Run();
  return {Heuristic(problem).Run()};
}

double CostOf(const PartitionProblem& problem, const NodePartition& partition) {
  double most = 0;
  for (int32_t node = 0; node < problem.num_nodes; ++node) {
    std::vector<int32_t> groups;
    for (int32_t group = 0; group < problem.num_groups; ++group) {
      if (partition.node_of_group[AsIndex(group)] == node) groups.push_back(group);
    }
    most = std::max(most, problem.cost(problem.kind_of_node[AsIndex(node)], groups));
  }
  return most;
}

PartitionProblem ByNodeLoad(std::span<const std::span<const double>> loads, int32_t num_groups,
                            std::span<const Domain> nodes) {
  std::vector<std::vector<double>> group_loads;  // [loads][K]
  for (const std::span<const double> load : loads) {
    const size_t per_group = load.size() / AsIndex(num_groups);
    std::vector<double>& group_load = group_loads.emplace_back();
    for (size_t first = 0; first < load.size(); first += per_group) {
      const auto experts = load.subspan(first, per_group);
      group_load.push_back(std::accumulate(experts.begin(), experts.end(), 0.0));
    }
  }
  std::vector<double> node_speed;
  for (const Domain& node : nodes) {
    node_speed.push_back(node.total_speed());
  }
  return {.num_groups = num_groups,
          .num_nodes = static_cast<int32_t>(nodes.size()),
          .kind_of_node = KindsOf(nodes),
          .cost = [group_loads = std::move(group_loads), node_speed = std::move(node_speed)](
                      int32_t kind, const std::vector<int32_t>& groups) {
            double most = 0;
            for (const std::vector<double>& group_load : group_loads) {
              double sum = 0;
              for (const int32_t group : groups) sum += group_load[AsIndex(group)];
              most = std::max(most, sum);
            }
            return most / node_speed[AsIndex(kind)];
          }};
}

absl::StatusOr<IndexMatrix> NodesOfGroups(const Load& load, const Topology& topology,
                                          const GpuSpeeds& speeds) {
  EPLB_RETURN_IF_ERROR(CheckLoadFits(load, topology));
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, Hierarchy::kStrict));
  const std::vector<Domain> nodes = NodeDomains(topology, speeds);
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (!nodes[node].slots.empty()) continue;
    return InvalidInput("node ", node, " has no usable GPU");
  }
  const RealMatrix tokens = load.ToDouble();
  IndexMatrix node_of_group(topology.num_layers(), topology.num_groups());
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    const std::span<const double> row[] = {{&tokens(layer, 0), AsIndex(tokens.cols())}};
    const NodePartition best =
        CheapestPartitions(ByNodeLoad(row, topology.num_groups(), nodes), 1).front();
    std::ranges::copy(best.node_of_group, &node_of_group(layer, 0));
  }
  return node_of_group;
}

}  // namespace eplb
