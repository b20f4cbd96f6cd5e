// Lays out the rows of a plan in the staging of their destinations.
#include "client/rows/staging.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

bool OnGpu(const Topology& topology, SlotId slot, GpuId gpu) {
  const int32_t first = topology.FirstSlotOf(gpu).value;
  return slot.value >= first && slot.value < first + topology.SlotsOf(gpu);
}

absl::Status CheckTransfer(const Transfer& transfer, const Topology& topology) {
  const auto valid_gpu = [&](GpuId gpu) {
    return gpu.value >= 0 && gpu.value < topology.num_gpus();
  };
  const std::string where =
      absl::StrCat("plan: layer ", transfer.layer.value, " expert ", transfer.expert.value);
  if (transfer.layer.value < 0 || transfer.layer.value >= topology.num_layers() ||
      !valid_gpu(transfer.source) || !valid_gpu(transfer.destination)) {
    return InvalidInput(where, " from GPU ", transfer.source.value, " to GPU ",
                        transfer.destination.value, " is outside ", topology.num_layers(),
                        " layers and ", topology.num_gpus(), " GPUs");
  }
  bool fits = OnGpu(topology, transfer.source_slot, transfer.source);
  for (const std::vector<SlotId>* slots : {&transfer.weight_slots, &transfer.state_slots}) {
    for (const SlotId slot : *slots) fits = fits && OnGpu(topology, slot, transfer.destination);
  }
  if (fits) return absl::OkStatus();
  return InvalidInput(where, ": a slot is not on GPU ", transfer.source.value, " or ",
                      transfer.destination.value);
}

}  // namespace

int64_t RoundUpToStaging(int64_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

TensorsByLayer::TensorsByLayer(int32_t num_layers, std::span<const ExpertTensor> tensors)
    : layers_(num_layers) {
  for (const ExpertTensor& tensor : tensors) layers_[tensor.layer.value].push_back(&tensor);
  for (auto& layer : layers_) {
    std::ranges::sort(
        layer, [](const ExpertTensor* a, const ExpertTensor* b) { return a->name < b->name; });
  }
}

absl::StatusOr<StagingLayout> LayOutStaging(const MigrationPlan& plan, const Topology& topology,
                                            const TensorsByLayer& tensors, GpuId gpu) {
  StagingLayout layout;
  layout.used_bytes.assign(topology.num_gpus(), 0);
  std::vector<int32_t> next_row(topology.num_gpus(), 0);
  for (const std::vector<Transfer>* part : {&plan.transfers, &plan.local}) {
    for (const Transfer& transfer : *part) {
      EPLB_RETURN_IF_ERROR(CheckTransfer(transfer, topology));
      const int32_t destination = transfer.destination.value;
      const bool ours = transfer.source == gpu || transfer.destination == gpu;
      for (const ExpertTensor* tensor : tensors.Of(transfer.layer)) {
        const bool needed = tensor->role == TensorRole::kWeight ? !transfer.weight_slots.empty()
                                                                : !transfer.state_slots.empty();
        if (!needed) continue;
        if (ours) {
          layout.rows.push_back({.transfer = &transfer,
                                 .tensor = tensor,
                                 .offset = layout.used_bytes[destination],
                                 .row = next_row[destination]});
        }
        layout.used_bytes[destination] += RoundUpToStaging(tensor->row_bytes);
        ++next_row[destination];
      }
    }
  }
  return layout;
}

}  // namespace eplb
