// Which expert each slot holds: the value everything else is about.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/ids.h"
#include "placement/topology.h"

#include <Eigen/Core>

namespace eplb {

using IndexMatrix = Eigen::Array<int32_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// One layer of a placement, as it travels in a proposal.
struct LayerPlacement {
  LayerId layer;
  std::vector<int32_t> physical_to_logical;  // [S]
  std::vector<int32_t>
      replica_rank;  // [S], rank of each slot among its expert's replicas; 0 is the primary

  friend bool operator==(const LayerPlacement&, const LayerPlacement&) = default;
};

// The three maps, derived once from the slots and always consistent. The slots of an unusable GPU
// stay numbered and hold -1 in every layer. Copies share the maps. Threads: immutable.
class Placement {
 public:
  // Most cells of logical_to_physical_map(): L * E * X.
  static constexpr int64_t kMaxReplicaCells = 200'000'000;

  // Orders an expert's replicas by rising slot; the lowest slot is the primary.
  // physical_to_logical: [L, S].
  // errors: InvalidArgument, naming layer and slot: wrong shape, id outside 0..E-1 (-1 is right
  // where all slots of a GPU hold it in every layer), expert without a slot.
  static absl::StatusOr<Placement> FromSlots(
      const Topology& topology, const Eigen::Ref<const IndexMatrix>& physical_to_logical);

  // Overload with a given order of an expert's replicas: replica_rank [L, S] is, for each expert, a
  // permutation of 0..count-1 over its slots. errors: also InvalidArgument for ranks that
  // are not such a permutation, or when the map below would have more than kMaxReplicaCells.
  static absl::StatusOr<Placement> FromSlotsAndRanks(
      const Topology& topology, const Eigen::Ref<const IndexMatrix>& physical_to_logical,
      const Eigen::Ref<const IndexMatrix>& replica_rank);

  // The layout before any decision: slot j holds expert j for j < E, spare slot E + i holds expert
  // i mod E.
  static Placement Static(const Topology& topology);

  // This placement with some layers replaced. errors: as FromSlotsAndRanks, or a layer given twice
  // or out of range. cost: a copy of the maps, and what the layers given need.
  absl::StatusOr<Placement> WithLayers(std::span<const LayerPlacement> layers) const;
  LayerPlacement Layer(LayerId layer) const;

  const Topology& topology() const { return topology_; }
  const IndexMatrix& physical_to_logical_map() const {
    return maps_->physical_to_logical;
  }                                                                                  // [L, S]
  const IndexMatrix& replica_rank() const { return maps_->replica_rank; }            // [L, S]
  const IndexMatrix& logical_replica_count() const { return maps_->replica_count; }  // [L, E]
  // [L, E * X] with X = max_replicas(); entry e * X + r is the slot of replica r, -1 at the tail.
  // cost: built by every call; ReplicasOf needs no more than what is there.
  IndexMatrix logical_to_physical_map() const;
  // X: the largest replica count of any layer and expert.
  int32_t max_replicas() const { return maps_->max_replicas; }

  // -1 in a slot of an unusable GPU.
  ExpertId ExpertIn(LayerId layer, SlotId slot) const;
  // False for an unusable GPU.
  bool Holds(GpuId gpu) const;
  int32_t ReplicaCount(LayerId layer, ExpertId expert) const;
  // Slots of an expert in the order of replica rank; [0] is the primary.
  std::span<const int32_t> ReplicasOf(LayerId layer, ExpertId expert) const;
  SlotId PrimaryOf(LayerId layer, ExpertId expert) const;

  friend bool operator==(const Placement& a, const Placement& b);

 private:
  struct Maps {
    IndexMatrix physical_to_logical;
    IndexMatrix replica_rank;
    IndexMatrix replica_count;
    IndexMatrix first_replica;  // [L, E], start of an expert's slots in the row below
    IndexMatrix replica_slots;  // [L, S], expert by expert in the order of replica rank
    int32_t max_replicas = 0;
  };
  class Maker;  // derives the maps
  Placement(const Topology& topology, std::shared_ptr<const Maps> maps)
      : topology_(topology), maps_(std::move(maps)) {}

  Topology topology_;
  std::shared_ptr<const Maps> maps_;
};

}  // namespace eplb
