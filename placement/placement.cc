#include "placement/placement.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

absl::Status CheckShape(const char* name, const Topology& topology, Eigen::Index rows,
                        Eigen::Index cols) {
  if (rows == topology.num_layers() && cols == topology.num_slots()) return absl::OkStatus();
  return InvalidInput(name, " is ", rows, " x ", cols, ", expected ", topology.num_layers(),
                      " layers x ", topology.num_slots(), " slots");
}

std::string Slot(Eigen::Index layer, Eigen::Index slot) {
  return absl::StrCat("layer ", layer, " slot ", slot);
}

}  // namespace

// Fills in what follows from slots and replica ranks.
class Placement::Maker {
 public:
  Maker(const Topology& topology, Maps maps) : topology_(topology), maps_(std::move(maps)) {
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) holds_.push_back(Holds(GpuId{gpu}));
  }

  absl::Status DeriveAll() {
    const Eigen::Index num_layers = topology_.num_layers();
    maps_.replica_count.resize(num_layers, topology_.num_experts());
    maps_.first_replica.resize(num_layers, topology_.num_experts());
    maps_.replica_slots.resize(num_layers, topology_.num_slots());
    for (Eigen::Index layer = 0; layer < num_layers; ++layer) {
      EPLB_RETURN_IF_ERROR(Derive(layer));
    }
    return absl::OkStatus();
  }

  // Derives again the maps of layers that were replaced.
  absl::Status DeriveAgain(std::span<const LayerPlacement> layers) {
    std::vector<bool> held = std::move(holds_);
    holds_.clear();
    for (int32_t gpu = 0; gpu < topology_.num_gpus(); ++gpu) holds_.push_back(Holds(GpuId{gpu}));
    if (holds_ != held) return DeriveAll();  // it decides what is right in the other layers
    for (const LayerPlacement& layer : layers) EPLB_RETURN_IF_ERROR(Derive(layer.layer.value));
    return absl::OkStatus();
  }

  absl::Status Replace(const LayerPlacement& layer) {
    const int32_t row = layer.layer.value;
    const auto num_slots = static_cast<size_t>(topology_.num_slots());
    if (row < 0 || row >= topology_.num_layers()) {
      return InvalidInput("layer ", row, " is outside 0..", topology_.num_layers() - 1);
    }
    if (layer.physical_to_logical.size() != num_slots || layer.replica_rank.size() != num_slots) {
      return InvalidInput("layer ", row, " has ", layer.physical_to_logical.size(), " slots and ",
                          layer.replica_rank.size(), " replica ranks, expected ", num_slots);
    }
    std::copy_n(layer.physical_to_logical.begin(), num_slots, &maps_.physical_to_logical(row, 0));
    std::copy_n(layer.replica_rank.begin(), num_slots, &maps_.replica_rank(row, 0));
    return absl::OkStatus();
  }

  absl::StatusOr<Placement> Finish() && {
    maps_.max_replicas = maps_.replica_count.maxCoeff();
    if (int64_t{maps_.replica_count.size()} * maps_.max_replicas > kMaxReplicaCells) {
      return InvalidInput("an expert has ", maps_.max_replicas, " replicas: the map of ",
                          topology_.num_layers(), " layers x ", topology_.num_experts(),
                          " experts x ", maps_.max_replicas, " replicas has more than ",
                          kMaxReplicaCells, " entries");
    }
    return Placement(topology_, std::make_shared<const Maps>(std::move(maps_)));
  }

 private:
  bool Holds(GpuId gpu) const {
    return (maps_.physical_to_logical.middleCols(topology_.FirstSlotOf(gpu).value,
                                                 topology_.SlotsOf(gpu)) != -1)
        .any();
  }

  absl::Status Derive(Eigen::Index layer) {
    EPLB_RETURN_IF_ERROR(CountReplicas(layer));
    int32_t first = 0;
    for (Eigen::Index expert = 0; expert < maps_.first_replica.cols(); ++expert) {
      maps_.first_replica(layer, expert) =
          std::exchange(first, first + maps_.replica_count(layer, expert));
    }
    return IndexReplicas(layer);
  }

  absl::Status CountReplicas(Eigen::Index layer) {
    const int32_t num_experts = topology_.num_experts();
    maps_.replica_count.row(layer).setZero();
    for (Eigen::Index slot = 0; slot < maps_.physical_to_logical.cols(); ++slot) {
      const int32_t expert = maps_.physical_to_logical(layer, slot);
      const GpuId gpu = topology_.GpuOf(SlotId{static_cast<int32_t>(slot)});
      if (expert == -1 && !holds_[static_cast<size_t>(gpu.value)]) continue;
      if (expert < 0 || expert >= num_experts) {
        return InvalidInput(Slot(layer, slot), " holds expert ", expert, ", expected 0..",
                            num_experts - 1);
      }
      ++maps_.replica_count(layer, expert);
    }
    for (int32_t expert = 0; expert < num_experts; ++expert) {
      if (maps_.replica_count(layer, expert) > 0) continue;
      return InvalidInput("layer ", layer, ": expert ", expert, " is in no slot");
    }
    return absl::OkStatus();
  }

  absl::Status IndexReplicas(Eigen::Index layer) {
    maps_.replica_slots.row(layer) = -1;
    for (Eigen::Index slot = 0; slot < maps_.physical_to_logical.cols(); ++slot) {
      const int32_t expert = maps_.physical_to_logical(layer, slot);
      if (expert < 0) continue;
      const int32_t rank = maps_.replica_rank(layer, slot);
      const int32_t count = maps_.replica_count(layer, expert);
      if (rank < 0 || rank >= count) {
        return InvalidInput(Slot(layer, slot), " has replica rank ", rank, ", expert ", expert,
                            " has ", count, " replicas");
      }
      int32_t& entry = maps_.replica_slots(layer, maps_.first_replica(layer, expert) + rank);
      if (entry != -1) {
        return InvalidInput("layer ", layer, ": slots ", entry, " and ", slot,
                            " both have replica rank ", rank, " of expert ", expert);
      }
      entry = static_cast<int32_t>(slot);
    }
    return absl::OkStatus();
  }

  const Topology topology_;
  Maps maps_;
  std::vector<bool> holds_;  // [num_gpus]
};

absl::StatusOr<Placement> Placement::FromSlots(
    const Topology& topology, const Eigen::Ref<const IndexMatrix>& physical_to_logical) {
  EPLB_RETURN_IF_ERROR(CheckShape("physical_to_logical_map", topology, physical_to_logical.rows(),
                                  physical_to_logical.cols()));
  IndexMatrix ranks(physical_to_logical.rows(), physical_to_logical.cols());
  std::vector<int32_t> seen(static_cast<size_t>(topology.num_experts()));
  for (Eigen::Index layer = 0; layer < ranks.rows(); ++layer) {
    std::ranges::fill(seen, 0);
    for (Eigen::Index slot = 0; slot < ranks.cols(); ++slot) {
      const int32_t expert = physical_to_logical(layer, slot);
      const bool in_range = expert >= 0 && expert < topology.num_experts();
      ranks(layer, slot) = in_range ? seen[static_cast<size_t>(expert)]++ : 0;
    }
  }
  return FromSlotsAndRanks(topology, physical_to_logical, ranks);
}

absl::StatusOr<Placement> Placement::FromSlotsAndRanks(
    const Topology& topology, const Eigen::Ref<const IndexMatrix>& physical_to_logical,
    const Eigen::Ref<const IndexMatrix>& replica_rank) {
  EPLB_RETURN_IF_ERROR(CheckShape("physical_to_logical_map", topology, physical_to_logical.rows(),
                                  physical_to_logical.cols()));
  EPLB_RETURN_IF_ERROR(
      CheckShape("replica_rank", topology, replica_rank.rows(), replica_rank.cols()));
  Maker maker(topology, {.physical_to_logical = physical_to_logical, .replica_rank = replica_rank});
  EPLB_RETURN_IF_ERROR(maker.DeriveAll());
  return std::move(maker).Finish();
}

IndexMatrix Placement::logical_to_physical_map() const {
  IndexMatrix map = IndexMatrix::Constant(
      topology_.num_layers(), Eigen::Index{topology_.num_experts()} * maps_->max_replicas, -1);
  for (int32_t layer = 0; layer < topology_.num_layers(); ++layer) {
    for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
      const std::span<const int32_t> slots = ReplicasOf(LayerId{layer}, ExpertId{expert});
      std::copy(slots.begin(), slots.end(),
                &map(layer, Eigen::Index{expert} * maps_->max_replicas));
    }
  }
  return map;
}

Placement Placement::Static(const Topology& topology) {
  IndexMatrix slots(topology.num_layers(), topology.num_slots());
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    slots.col(slot) = slot % topology.num_experts();
  }
  return *FromSlots(topology, slots);
}

absl::StatusOr<Placement> Placement::WithLayers(std::span<const LayerPlacement> layers) const {
  std::vector<bool> given(static_cast<size_t>(topology_.num_layers()));
  Maker maker(topology_, *maps_);
  for (const LayerPlacement& layer : layers) {
    EPLB_RETURN_IF_ERROR(maker.Replace(layer));
    const auto row = static_cast<size_t>(layer.layer.value);
    if (given[row]) return InvalidInput("layer ", row, " is given twice");
    given[row] = true;
  }
  EPLB_RETURN_IF_ERROR(maker.DeriveAgain(layers));
  return std::move(maker).Finish();
}

LayerPlacement Placement::Layer(LayerId layer) const {
  const auto slots = maps_->physical_to_logical.row(layer.value);
  const auto ranks = maps_->replica_rank.row(layer.value);
  return {layer, {slots.begin(), slots.end()}, {ranks.begin(), ranks.end()}};
}

ExpertId Placement::ExpertIn(LayerId layer, SlotId slot) const {
  return ExpertId{maps_->physical_to_logical(layer.value, slot.value)};
}

bool Placement::Holds(GpuId gpu) const {
  return (maps_->physical_to_logical.middleCols(topology_.FirstSlotOf(gpu).value,
                                                topology_.SlotsOf(gpu)) != -1)
      .any();
}

int32_t Placement::ReplicaCount(LayerId layer, ExpertId expert) const {
  return maps_->replica_count(layer.value, expert.value);
}

std::span<const int32_t> Placement::ReplicasOf(LayerId layer, ExpertId expert) const {
  const int32_t* first =
      &maps_->replica_slots(layer.value, maps_->first_replica(layer.value, expert.value));
  return {first, static_cast<size_t>(ReplicaCount(layer, expert))};
}

SlotId Placement::PrimaryOf(LayerId layer, ExpertId expert) const {
  return SlotId{ReplicasOf(layer, expert).front()};
}

bool operator==(const Placement& a, const Placement& b) {
  if (!(a.topology_ == b.topology_)) return false;
  return a.maps_ == b.maps_ ||
         ((a.maps_->physical_to_logical == b.maps_->physical_to_logical).all() &&
          (a.maps_->replica_rank == b.maps_->replica_rank).all());
}

}  // namespace eplb
