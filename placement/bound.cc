#include "placement/bound.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

struct Replicated {
  double load_per_replica;
  double load;
  int64_t replicas;
};

bool Lighter(const Replicated& a, const Replicated& b) {
  return a.load_per_replica < b.load_per_replica;
}

// The least T for which `num_slots` slots are enough to keep every replica at or below T.
double LeastReplicaLoad(const Eigen::Ref<const Eigen::RowVectorXd>& loads, int32_t num_slots) {
  std::vector<Replicated> heap;
  heap.reserve(static_cast<size_t>(loads.size()));
  for (const double load : loads) heap.push_back({load, load, 1});
  std::make_heap(heap.begin(), heap.end(), Lighter);
  for (Eigen::Index spare = loads.size(); spare < num_slots; ++spare) {
    std::pop_heap(heap.begin(), heap.end(), Lighter);
    Replicated& heaviest = heap.back();
    if (heaviest.load == 0) return 0;
    ++heaviest.replicas;
    heaviest.load_per_replica = heaviest.load / static_cast<double>(heaviest.replicas);
    std::push_heap(heap.begin(), heap.end(), Lighter);
  }
  return heap.front().load_per_replica;
}

}  // namespace

absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  const RealMatrix tokens = load.ToDouble();
  std::vector<double> bounds;
  bounds.reserve(static_cast<size_t>(tokens.rows()));
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    const double mean = tokens.row(layer).sum() / topology.num_gpus();
    bounds.push_back(
        std::max(mean, LeastReplicaLoad(tokens.row(layer).matrix(), topology.num_slots())));
  }
  return bounds;
}

}  // namespace eplb
