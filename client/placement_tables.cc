#include "client/placement_tables.h"

#include <algorithm>

namespace eplb {

PlacementTables::PlacementTables(const RunningPlacement& running, GpuId gpu) {
  const Topology& topology = running.placement->topology();
  view_.num_layers = topology.num_layers();
  view_.num_experts = topology.num_experts();
  view_.num_slots = topology.num_slots();
  view_.first_local_slot = topology.FirstSlotOf(gpu).value;
  view_.num_local_slots = topology.SlotsOf(gpu);
  view_.max_replicas = topology.num_slots() - topology.num_experts() + 1;
  const auto layers = static_cast<size_t>(topology.num_layers());
  const auto experts = static_cast<size_t>(topology.num_experts());
  physical_to_logical_.resize(layers * static_cast<size_t>(topology.num_slots()));
  replica_count_.resize(layers * experts);
  logical_to_physical_.resize(layers * experts * static_cast<size_t>(view_.max_replicas));
  view_.physical_to_logical_map = physical_to_logical_;
  view_.logical_replica_count = replica_count_;
  view_.logical_to_physical_map = logical_to_physical_;
  Update(running);
}

void PlacementTables::Update(const RunningPlacement& running) {
  const Placement& placement = *running.placement;
  const IndexMatrix& slots = placement.physical_to_logical_map();
  const IndexMatrix& counts = placement.logical_replica_count();
  std::copy_n(slots.data(), slots.size(), physical_to_logical_.begin());
  std::copy_n(counts.data(), counts.size(), replica_count_.begin());
  std::fill(logical_to_physical_.begin(), logical_to_physical_.end(), -1);
  auto row = logical_to_physical_.begin();
  for (int32_t layer = 0; layer < view_.num_layers; ++layer) {
    for (int32_t expert = 0; expert < view_.num_experts; ++expert, row += view_.max_replicas) {
      const auto replicas = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      std::copy(replicas.begin(), replicas.end(), row);
    }
  }
  view_.version = running.version;
  view_.digest = running.digest.Hex();
}

}  // namespace eplb
