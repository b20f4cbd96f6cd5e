#include "client/rows/route_tables.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "cuda/route.h"

namespace eplb {
namespace {

constexpr int64_t kNumbersAligned = 16;  // each array begins at a multiple of 64 bytes
constexpr int64_t kNumberBytes = sizeof(int32_t);

}  // namespace

RouteTables::RouteTables(std::unique_ptr<cuda::RowQueue> queue, const Topology& topology, GpuId gpu)
    : queue_(std::move(queue)), topology_(topology), gpu_(gpu), parts_(kNumParts) {
  const int64_t num_slots = topology.num_slots();
  const int64_t num_experts = topology.num_experts();
  parts_[kPhysicalToLogical].row = num_slots;
  parts_[kReplicas].row = num_slots;
  parts_[kFirstReplica].row = num_experts + 1;
  parts_[kReplicaCount].row = num_experts;
  parts_[kCandidates].row = num_slots;
  parts_[kFirstCandidate].row = num_experts + 1;
  parts_[kThresholds].row = num_slots;
  parts_[kNumber].row = 1;
  for (Part& part : parts_) {
    part.begin = num_numbers_;
    const int64_t end = part.begin + part.row * topology.num_layers();
    num_numbers_ = (end + kNumbersAligned - 1) / kNumbersAligned * kNumbersAligned;
  }
}

absl::StatusOr<std::unique_ptr<RouteTables>> RouteTables::Make(
    std::unique_ptr<cuda::RowQueue> queue, const Placement& placement, GpuId gpu) {
  const Topology& topology = placement.topology();
  std::unique_ptr<RouteTables> tables(new RouteTables(std::move(queue), topology, gpu));
  EPLB_RETURN_IF_ERROR(tables->Allocate());
  std::vector<LayerId> layers;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    layers.push_back(LayerId{layer});
    EPLB_RETURN_IF_ERROR(tables->Write(placement, layers.back()));
  }
  EPLB_RETURN_IF_ERROR(tables->memory_->Upload(tables->PartsOf(layers)));
  EPLB_RETURN_IF_ERROR(tables->memory_->Await());
  return tables;
}

absl::Status RouteTables::Allocate() {
  EPLB_ASSIGN_OR_RETURN(memory_, UploadedMemory::Make(*queue_, num_numbers_ * kNumberBytes));
  arrays_ = {.physical_to_logical = DeviceArray(kPhysicalToLogical),
             .replicas = DeviceArray(kReplicas),
             .first_replica = DeviceArray(kFirstReplica),
             .replica_count = DeviceArray(kReplicaCount),
             .candidates = DeviceArray(kCandidates),
             .first_candidate = DeviceArray(kFirstCandidate),
             .thresholds = reinterpret_cast<const uint32_t*>(DeviceArray(kThresholds)),
             .number = DeviceArray(kNumber)};
  return absl::OkStatus();
}

const int32_t* RouteTables::DeviceArray(PartName part) const {
  return reinterpret_cast<const int32_t*>(memory_->device()) + parts_[part].begin;
}

std::span<int32_t> RouteTables::PinnedRow(PartName part, LayerId layer) const {
  const auto& [begin, row] = parts_[part];
  return {reinterpret_cast<int32_t*>(memory_->pinned()) + begin + layer.value * row,
          static_cast<size_t>(row)};
}

absl::Status RouteTables::Write(const Placement& placement, LayerId layer) {
  const auto experts = placement.physical_to_logical_map().row(layer.value);
  const std::span<int32_t> slots = PinnedRow(kPhysicalToLogical, layer);
  std::copy_n(experts.data(), slots.size(), slots.begin());

  const std::span<int32_t> replicas = PinnedRow(kReplicas, layer);
  const std::span<int32_t> first_replica = PinnedRow(kFirstReplica, layer);
  const std::span<int32_t> replica_count = PinnedRow(kReplicaCount, layer);
  std::ranges::fill(replicas, cuda::kNoSlot);  // slots that are not in use
  auto end = replicas.begin();
  first_replica[0] = 0;
  for (size_t expert = 0; expert < replica_count.size(); ++expert) {
    const std::span<const int32_t> of_expert =
        placement.ReplicasOf(layer, ExpertId{static_cast<int32_t>(expert)});
    end = std::copy(of_expert.begin(), of_expert.end(), end);
    first_replica[expert + 1] = static_cast<int32_t>(end - replicas.begin());
    replica_count[expert] = static_cast<int32_t>(of_expert.size());
  }

  EPLB_ASSIGN_OR_RETURN(const cuda::HostRouteTable table,
                        cuda::MakeRouteTable({.physical_to_logical = slots,
                                              .num_experts = topology_.num_experts(),
                                              .first_local_slot = topology_.FirstSlotOf(gpu_).value,
                                              .num_local_slots = topology_.SlotsOf(gpu_),
                                              .replica_share = {}}));
  std::copy(table.candidates.begin(), table.candidates.end(),
            PinnedRow(kCandidates, layer).begin());
  std::copy(table.first_candidate.begin(), table.first_candidate.end(),
            PinnedRow(kFirstCandidate, layer).begin());
  const std::span<int32_t> thresholds = PinnedRow(kThresholds, layer);
  std::copy(table.thresholds.begin(), table.thresholds.end(),
            reinterpret_cast<uint32_t*>(thresholds.data()));
  __atomic_store_n(PinnedRow(kNumber, layer).data(), num_updates_, __ATOMIC_RELEASE);
  return absl::OkStatus();
}

std::vector<UploadedMemory::Part> RouteTables::PartsOf(std::span<const LayerId> layers) const {
  std::vector<UploadedMemory::Part> parts;
  for (size_t begin = 0; begin < layers.size();) {
    // Layers that follow each other lie side by side in each array.
    size_t end = begin + 1;
    while (end < layers.size() && layers[end].value == layers[end - 1].value + 1) ++end;
    for (const auto& [part_begin, row] : parts_) {
      parts.push_back({.begin = (part_begin + layers[begin].value * row) * kNumberBytes,
                       .size = static_cast<int64_t>(end - begin) * row * kNumberBytes});
    }
    begin = end;
  }
  return parts;
}

absl::Status RouteTables::Update(const Placement& placement, std::span<const LayerId> layers,
                                 void* stream) {
  EPLB_RETURN_IF_ERROR(memory_->Await());
  ++num_updates_;
  for (const LayerId layer : layers) EPLB_RETURN_IF_ERROR(Write(placement, layer));
  return memory_->UploadBetween(PartsOf(layers), stream);
}

}  // namespace eplb
