#include "placement/placement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

absl::Status CheckShape(const char* name, const Topology& topology, Eigen::Index rows,
                        Eigen::Index cols) {
  if (rows == topology.num_layers() && cols == topology.num_slots()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", rows, " x ", cols, ", expected ",
                                                 topology.num_layers(), " layers x ",
                                                 topology.num_slots(), " slots"));
}

std::string Slot(Eigen::Index layer, Eigen::Index slot) {
  return absl::StrCat("layer ", layer, " slot ", slot);
}

}  // namespace

absl::StatusOr<Placement> Placement::FromSlots(
    const Topology& topology, const Eigen::Ref<const IndexMatrix>& physical_to_logical) {
  EPLB_RETURN_IF_ERROR(CheckShape("physical_to_logical_map", topology, physical_to_logical.rows(),
                                  physical_to_logical.cols()));
  IndexMatrix ranks(physical_to_logical.rows(), physical_to_logical.cols());
  std::vector<int32_t> seen(static_cast<size_t>(topology.num_experts()));
  for (Eigen::Index layer = 0; layer < ranks.rows(); ++layer) {
    std::fill(seen.begin(), seen.end(), 0);
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
  Placement placement(topology);
  placement.physical_to_logical_ = physical_to_logical;
  placement.replica_rank_ = replica_rank;
  EPLB_RETURN_IF_ERROR(placement.Derive());
  return placement;
}

absl::Status Placement::Derive() {
  EPLB_RETURN_IF_ERROR(CountReplicas());
  max_replicas_ = replica_count_.maxCoeff();
  if (int64_t{replica_count_.size()} * max_replicas_ > kMaxReplicaCells) {
    return absl::InvalidArgumentError(
        absl::StrCat("an expert has ", max_replicas_, " replicas: the map of ",
                     topology_.num_layers(), " layers x ", topology_.num_experts(), " experts x ",
                     max_replicas_, " replicas has more than ", kMaxReplicaCells, " entries"));
  }
  return IndexReplicas();
}

absl::Status Placement::CountReplicas() {
  const int32_t num_experts = topology_.num_experts();
  replica_count_ = IndexMatrix::Zero(topology_.num_layers(), num_experts);
  for (Eigen::Index layer = 0; layer < physical_to_logical_.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < physical_to_logical_.cols(); ++slot) {
      const int32_t expert = physical_to_logical_(layer, slot);
      if (expert == -1 && !Holds(topology_.GpuOf(SlotId{static_cast<int32_t>(slot)}))) continue;
      if (expert < 0 || expert >= num_experts) {
        return absl::InvalidArgumentError(absl::StrCat(Slot(layer, slot), " holds expert ", expert,
                                                       ", expected 0..", num_experts - 1));
      }
      ++replica_count_(layer, expert);
    }
    for (int32_t expert = 0; expert < num_experts; ++expert) {
      if (replica_count_(layer, expert) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("layer ", layer, ": expert ", expert, " is in no slot"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Placement::IndexReplicas() {
  first_replica_.resize(topology_.num_layers(), topology_.num_experts());
  replica_slots_ = IndexMatrix::Constant(topology_.num_layers(), topology_.num_slots(), -1);
  for (Eigen::Index layer = 0; layer < physical_to_logical_.rows(); ++layer) {
    int32_t first = 0;
    for (Eigen::Index expert = 0; expert < first_replica_.cols(); ++expert) {
      first_replica_(layer, expert) = std::exchange(first, first + replica_count_(layer, expert));
    }
    for (Eigen::Index slot = 0; slot < physical_to_logical_.cols(); ++slot) {
      const int32_t expert = physical_to_logical_(layer, slot);
      if (expert < 0) continue;
      const int32_t rank = replica_rank_(layer, slot);
      if (rank < 0 || rank >= replica_count_(layer, expert)) {
        return absl::InvalidArgumentError(absl::StrCat(Slot(layer, slot), " has replica rank ",
                                                       rank, ", expert ", expert, " has ",
                                                       replica_count_(layer, expert), " replicas"));
      }
      int32_t& entry = replica_slots_(layer, first_replica_(layer, expert) + rank);
      if (entry != -1) {
        return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": slots ", entry, " and ",
                                                       slot, " both have replica rank ", rank,
                                                       " of expert ", expert));
      }
      entry = static_cast<int32_t>(slot);
    }
  }
  return absl::OkStatus();
}

IndexMatrix Placement::logical_to_physical_map() const {
  IndexMatrix map = IndexMatrix::Constant(
      topology_.num_layers(), Eigen::Index{topology_.num_experts()} * max_replicas_, -1);
  for (int32_t layer = 0; layer < topology_.num_layers(); ++layer) {
    for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
      const std::span<const int32_t> slots = ReplicasOf(LayerId{layer}, ExpertId{expert});
      std::copy(slots.begin(), slots.end(), &map(layer, Eigen::Index{expert} * max_replicas_));
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
  IndexMatrix slots = physical_to_logical_;
  IndexMatrix ranks = replica_rank_;
  std::vector<bool> given(static_cast<size_t>(topology_.num_layers()));
  const auto num_slots = static_cast<size_t>(topology_.num_slots());
  for (const LayerPlacement& layer : layers) {
    const int32_t row = layer.layer.value;
    if (row < 0 || row >= topology_.num_layers()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", row, " is outside 0..", topology_.num_layers() - 1));
    }
    if (given[static_cast<size_t>(row)]) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", row, " is given twice"));
    }
    given[static_cast<size_t>(row)] = true;
    if (layer.physical_to_logical.size() != num_slots || layer.replica_rank.size() != num_slots) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", row, " has ", layer.physical_to_logical.size(), " slots and ",
                       layer.replica_rank.size(), " replica ranks, expected ", num_slots));
    }
    for (size_t slot = 0; slot < num_slots; ++slot) {
      slots(row, static_cast<Eigen::Index>(slot)) = layer.physical_to_logical[slot];
      ranks(row, static_cast<Eigen::Index>(slot)) = layer.replica_rank[slot];
    }
  }
  return FromSlotsAndRanks(topology_, slots, ranks);
}

LayerPlacement Placement::Layer(LayerId layer) const {
  const auto slots = physical_to_logical_.row(layer.value);
  const auto ranks = replica_rank_.row(layer.value);
  return {layer, {slots.begin(), slots.end()}, {ranks.begin(), ranks.end()}};
}

ExpertId Placement::ExpertIn(LayerId layer, SlotId slot) const {
  return ExpertId{physical_to_logical_(layer.value, slot.value)};
}

bool Placement::Holds(GpuId gpu) const {
  return (physical_to_logical_.middleCols(topology_.FirstSlotOf(gpu).value,
                                          topology_.SlotsOf(gpu)) != -1)
      .any();
}

int32_t Placement::ReplicaCount(LayerId layer, ExpertId expert) const {
  return replica_count_(layer.value, expert.value);
}

std::span<const int32_t> Placement::ReplicasOf(LayerId layer, ExpertId expert) const {
  const int32_t* first = &replica_slots_(layer.value, first_replica_(layer.value, expert.value));
  return {first, static_cast<size_t>(ReplicaCount(layer, expert))};
}

SlotId Placement::PrimaryOf(LayerId layer, ExpertId expert) const {
  return SlotId{ReplicasOf(layer, expert).front()};
}

bool operator==(const Placement& a, const Placement& b) {
  return a.topology_ == b.topology_ && (a.physical_to_logical_ == b.physical_to_logical_).all() &&
         (a.replica_rank_ == b.replica_rank_).all();
}

}  // namespace eplb
