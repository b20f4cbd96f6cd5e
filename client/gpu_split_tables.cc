#include "client/gpu_split_tables.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/session/log_line.h"

namespace eplb {
namespace {

SplitShape ShapeOf(const Topology& topology, int32_t num_layers) {
  return {.num_layers = num_layers,
          .num_experts = topology.num_experts(),
          .num_slots = topology.num_slots(),
          .num_gpus = topology.num_gpus(),
          .max_slots_of_gpu = topology.SlotsOf(GpuId{0})};
}

std::vector<LayerId> AllLayers(const SplitShape& shape) {
  std::vector<LayerId> layers(static_cast<size_t>(shape.num_layers));
  for (size_t i = 0; i < layers.size(); ++i) layers[i] = LayerId{static_cast<int32_t>(i)};
  return layers;
}

}  // namespace

absl::Status CheckSplitOnGpu(const Topology& topology, int64_t most_choices) {
  EPLB_RETURN_IF_ERROR(cuda::CheckSplitShape(ShapeOf(topology, topology.num_layers())));
  if (most_choices <= kMaxNarrowTokens) return absl::OkStatus();
  return InvalidInput("batches of up to ", most_choices, " choices of ", topology.num_gpus(),
                      " ranks, the kernel splits at most ", kMaxNarrowTokens);
}

GpuSplitTables::GpuSplitTables(const BatchSplits& splits, const Topology& topology)
    : splits_(splits),
      shape_(ShapeOf(topology, topology.num_layers())),
      layer_bytes_(cuda::SplitTableBytes(ShapeOf(topology, 1))) {}

absl::StatusOr<std::unique_ptr<GpuSplitTables>> GpuSplitTables::Make(const BatchSplits& splits,
                                                                     cuda::RowQueue& queue) {
  const std::shared_ptr<const Placement> placement = splits.placement();
  std::unique_ptr<GpuSplitTables> tables(new GpuSplitTables(splits, placement->topology()));
  EPLB_ASSIGN_OR_RETURN(
      tables->memory_,
      UploadedMemory::Make(queue, kTablesBegin + tables->shape_.num_layers * tables->layer_bytes_));
  EPLB_RETURN_IF_ERROR(
      tables->memory_->Upload(tables->Write(*placement, AllLayers(tables->shape_))));
  EPLB_RETURN_IF_ERROR(tables->memory_->Await());
  return tables;
}

std::vector<UploadedMemory::Part> GpuSplitTables::Write(const Placement& placement,
                                                        std::span<const LayerId> layers) {
  options_ = splits_.options_version();
  const int64_t number = ++number_;
  std::memcpy(memory_->pinned(), &number, sizeof(number));
  std::vector<UploadedMemory::Part> parts = {{.begin = 0, .size = sizeof(number)}};
  for (const LayerId layer : layers) {
    parts.push_back({.begin = kTablesBegin + layer.value * layer_bytes_, .size = layer_bytes_});
    const std::span<std::byte> bytes(memory_->pinned() + parts.back().begin,
                                     static_cast<size_t>(layer_bytes_));
    const absl::StatusOr<SplitGraph> graph = splits_.GraphOf(placement, layer);
    const absl::Status packed =
        graph.ok() ? cuda::PackSplitTables(graph->Tables(), bytes) : graph.status();
    if (packed.ok()) continue;
    cuda::PackRefusal(ShapeOf(placement.topology(), 1), bytes);
    if (std::exchange(has_logged_, true)) continue;
    LogLine(absl::StrCat("route_from draws the slots of layer ", layer.value,
                         ", because it cannot be split: ", packed.message()));
  }
  return parts;
}

absl::Status GpuSplitTables::Update(const Placement& placement, std::span<const LayerId> layers,
                                    void* stream) {
  EPLB_RETURN_IF_ERROR(memory_->Await());
  const bool has_new_options = options_ != splits_.options_version();
  const std::vector<LayerId> all = AllLayers(shape_);
  return memory_->UploadBetween(Write(placement, has_new_options ? all : layers), stream);
}

absl::Status GpuSplitTables::Renew(void* stream) {
  if (options_ == splits_.options_version()) return absl::OkStatus();
  return Update(*splits_.placement(), {}, stream);
}

}  // namespace eplb
