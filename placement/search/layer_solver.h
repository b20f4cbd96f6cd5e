// Solves a layer on a whole topology: hierarchy, unusable GPUs and candidates from elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "placement/gpu_speeds.h"
#include "placement/policy.h"
#include "placement/search/arrangement.h"
#include "placement/search/domain.h"
#include "placement/search/domain_in_layer.h"
#include "placement/search/domain_solver.h"
#include "placement/search/node_partition.h"
#include "placement/topology.h"

namespace eplb {

struct LayerSolverOptions {
  Hierarchy hierarchy = Hierarchy::kNone;
  Effort effort = Effort::kDefault;
  bool allow_duplicates = false;
  const std::atomic<bool>* abandoned = nullptr;  // see PolicyInput; the answer is then any layout
};

// The largest GPU load of a layer [S]; none if the layer breaks a constraint. whole: the usable
// GPUs of the topology.
std::optional<double> PeakOf(const Topology& topology, const LayerSolverOptions& options,
                             const DomainInLayer& whole, std::span<const double> load,
                             std::span<const int32_t> slots);

// Layers of one topology, one after the other. Threads: one at a time.
class LayerSolver {
 public:
  // REQUIRES: Check is ok; `topology` and `speeds` outlive this.
  LayerSolver(const Topology& topology, const GpuSpeeds& speeds, const LayerSolverOptions& options);
  LayerSolver(const LayerSolver&) = delete;
  LayerSolver& operator=(const LayerSolver&) = delete;

  // errors: InvalidArgument, naming the numbers: the hierarchy does not fit the topology, or the
  // usable slots (of a node, under a hierarchy) are fewer than the experts they must hold.
  static absl::Status Check(const Topology& topology, const GpuSpeeds& speeds,
                            const LayerSolverOptions& options);

  // Writes the expert of each slot [S]; slots of unusable GPUs hold -1. load: [E]. candidates:
  // layers [S] from elsewhere; one that obeys the same constraints is taken if it is better.
  // Without a hierarchy the search also starts from them.
  void Solve(std::span<const double> load, std::span<const std::span<const int32_t>> candidates,
             std::span<int32_t> slots);

  // Solves under a strict hierarchy with this partition alone. REQUIRES: options are strict.
  void SolveOn(const NodePartition& partition, std::span<const double> load,
               std::span<int32_t> slots);

 private:
  // A domain's place in the layer, and its solver.
  struct SolvedDomain : DomainInLayer {
    std::unique_ptr<DomainSolver> solver;
  };
  struct Answer {
    double peak;
    std::vector<int32_t> slots;  // [S]
  };
  // LimitsOf, until the answer is abandoned.
  SearchLimits LimitsFor(Effort effort, const Domain& domain, int32_t num_layers) const;
  SearchLimits NodeLimits(const SolvedDomain& frame) const;
  // candidates: also starts, once copies that a GPU need not hold are spread.
  void SolveFlat(std::span<const std::span<const int32_t>> candidates, Answer& answer);
  void SolveStrict(std::span<const double> load, Answer& answer);
  void SolveSoft(std::span<const double> load, Answer& answer);
  // From a strict or soft answer under the partition to a soft one that is no worse.
  void Soften(const NodePartition& partition, const SearchLimits& limits, Answer& answer);
  // Keeps the partition if it is better. Returns its largest GPU load, or a lower bound of it. Does
  // a `share`-th of the layer's work.
  double SolvePartition(std::span<const double> load, const PartitionProblem& problem,
                        const NodePartition& partition, int64_t share, Answer& answer);
  // Writes the node's part of the answer and returns its largest GPU load.
  double SolveNode(std::span<const double> load, const NodePartition& partition, int32_t node,
                   double enough, std::span<int32_t> slots);
  PartitionProblem Partitions(std::span<const double> load) const;
  size_t per_group() const { return AsIndex(topology_.num_experts() / topology_.num_groups()); }

  const Topology& topology_;
  LayerSolverOptions options_;
  Effort effort_ = Effort::kDefault;  // effort of the pass over the partitions
  int64_t work_ = 0;                  // left for the partition
  std::vector<int32_t> slots_;        // [S], slots of the partition
  SolvedDomain whole_;
  std::vector<std::unique_ptr<SolvedDomain>> nodes_;  // [N]; solvers refer to their domains
  std::vector<Domain> node_domains_;                  // [N], without loads
  NodePartition partition_;                           // partition of the last strict or soft layer
};

}  // namespace eplb
