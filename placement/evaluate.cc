#include "placement/evaluate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace eplb {

absl::StatusOr<Evaluation> Evaluate(const Load& load, const Placement& placement) {
  const Topology& topology = placement.topology();
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the placement has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  const RealMatrix tokens = load.ToDouble();
  Evaluation result;
  result.gpu_loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  double sum = 0;
  int32_t layers_with_load = 0;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    auto gpu_loads = result.gpu_loads.row(layer);
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const int32_t expert = placement.physical_to_logical_map()(layer, slot);
      gpu_loads(topology.GpuOf(SlotId{slot}).value) +=
          tokens(layer, expert) / placement.logical_replica_count()(layer, expert);
    }
    const double peak = gpu_loads.maxCoeff();
    // Rounding can put the mean a last bit above the maximum; a balancedness is never above 1.
    const double balancedness = peak > 0 ? std::min(1.0, gpu_loads.mean() / peak) : 1.0;
    result.max_gpu_load.push_back(peak);
    result.balancedness.push_back(balancedness);
    result.peak_load += peak;
    if (peak > 0) {
      sum += balancedness;
      ++layers_with_load;
      result.min_balancedness = std::min(result.min_balancedness, balancedness);
    }
  }
  if (layers_with_load > 0) result.mean_balancedness = sum / layers_with_load;
  return result;
}

int64_t CountDuplicates(const Placement& placement) {
  const Topology& topology = placement.topology();
  int64_t duplicates = 0;
  std::vector<int32_t> held;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      const auto slots = placement.physical_to_logical_map().row(layer).segment(
          topology.FirstSlotOf(GpuId{gpu}).value, topology.SlotsOf(GpuId{gpu}));
      held.assign(slots.begin(), slots.end());
      std::sort(held.begin(), held.end());
      duplicates += held.end() - std::unique(held.begin(), held.end());
    }
  }
  return duplicates;
}

}  // namespace eplb
