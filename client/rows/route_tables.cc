#include "client/rows/route_tables.h"

#include <algorithm>
#include <utility>

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/row_message.h"
#include "cuda/route.h"

namespace eplb {
namespace {

constexpr int64_t kNumbersAligned = 16;  // each array begins at a multiple of 64 bytes

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
  for (Part& part : parts_) {
    part.begin = num_numbers_;
    const int64_t end = part.begin + part.row * topology.num_layers();
    num_numbers_ = (end + kNumbersAligned - 1) / kNumbersAligned * kNumbersAligned;
  }
}

RouteTables::~RouteTables() { (void)AwaitUpload(); }

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
  EPLB_RETURN_IF_ERROR(tables->Upload(layers));
  EPLB_RETURN_IF_ERROR(tables->AwaitUpload());
  return tables;
}

absl::Status RouteTables::Allocate() {
  const auto num_bytes = num_numbers_ * static_cast<int64_t>(sizeof(int32_t));
  EPLB_ASSIGN_OR_RETURN(device_, queue_->Allocate(num_bytes));
  EPLB_ASSIGN_OR_RETURN(pinned_, queue_->AllocatePinned(num_bytes));
  arrays_ = {.physical_to_logical = DeviceArray(kPhysicalToLogical),
             .replicas = DeviceArray(kReplicas),
             .first_replica = DeviceArray(kFirstReplica),
             .replica_count = DeviceArray(kReplicaCount),
             .candidates = DeviceArray(kCandidates),
             .first_candidate = DeviceArray(kFirstCandidate),
             .thresholds = reinterpret_cast<const uint32_t*>(DeviceArray(kThresholds))};
  return absl::OkStatus();
}

const int32_t* RouteTables::DeviceArray(PartName part) const {
  return reinterpret_cast<const int32_t*>(device_.bytes.data()) + parts_[part].begin;
}

std::span<int32_t> RouteTables::PinnedRow(PartName part, LayerId layer) {
  const auto& [begin, row] = parts_[part];
  return {reinterpret_cast<int32_t*>(pinned_.bytes.data()) + begin + layer.value * row,
          static_cast<size_t>(row)};
}

absl::Status RouteTables::AwaitUpload() {
  if (!upload_.has_value()) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(AwaitBatch(*queue_, *upload_, MonotonicNow() + kSettleTimeout));
  upload_.reset();
  return absl::OkStatus();
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
  return absl::OkStatus();
}

absl::Status RouteTables::Upload(std::span<const LayerId> layers) {
  std::vector<cuda::RowCopy> copies;
  for (size_t begin = 0; begin < layers.size();) {
    // Layers that follow each other lie side by side in each array.
    size_t end = begin + 1;
    while (end < layers.size() && layers[end].value == layers[end - 1].value + 1) ++end;
    for (const auto& [part_begin, row] : parts_) {
      const auto first_byte = static_cast<size_t>(part_begin + layers[begin].value * row) * 4;
      copies.push_back({.source = pinned_.bytes.data() + first_byte,
                        .destination = device_.bytes.data() + first_byte,
                        .num_bytes = static_cast<int64_t>(end - begin) * row * 4});
    }
    begin = end;
  }
  if (copies.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(upload_, queue_->Transfer(copies));
  return absl::OkStatus();
}

absl::Status RouteTables::Update(const Placement& placement, std::span<const LayerId> layers,
                                 void* stream) {
  EPLB_RETURN_IF_ERROR(AwaitUpload());
  for (const LayerId layer : layers) EPLB_RETURN_IF_ERROR(Write(placement, layer));
  if (UploadBetween(layers, stream).ok()) return absl::OkStatus();
  // After an error of one call: the rows are uploaded again.
  EPLB_RETURN_IF_ERROR(queue_->Drain(MonotonicNow() + kSettleTimeout));
  return UploadBetween(layers, stream);
}

absl::Status RouteTables::UploadBetween(std::span<const LayerId> layers, void* stream) {
  EPLB_RETURN_IF_ERROR(queue_->Follow(stream));
  EPLB_RETURN_IF_ERROR(Upload(layers));
  return queue_->LetFollow(stream);
}

}  // namespace eplb
