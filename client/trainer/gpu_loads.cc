#include "client/trainer/gpu_loads.h"

#include <algorithm>
#include <bit>

namespace eplb {

std::vector<double> OwnGpuLoads(const LoadMatrix& total, const PlacementView& placement) {
  std::vector<double> loads;
  for (int32_t layer = 0; layer < placement.num_layers; ++layer) {
    double tokens = 0;
    for (int32_t slot = 0; slot < placement.num_local_slots; ++slot) {
      const int64_t cell = int64_t{layer} * placement.num_slots + placement.first_local_slot + slot;
      const int32_t expert = placement.physical_to_logical_map[static_cast<size_t>(cell)];
      const int64_t count_cell = int64_t{layer} * placement.num_experts + expert;
      tokens += static_cast<double>(total(layer, expert)) /
                placement.logical_replica_count[static_cast<size_t>(count_cell)];
    }
    loads.push_back(tokens);
  }
  return loads;
}

MeasuredLoads MeasureLoads(std::span<const int64_t> gathered, int32_t num_layers,
                           int32_t world_size) {
  double sum = 0, peaks = 0, means = 0;
  int32_t layers_with_load = 0;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    double peak = 0, total = 0;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const int64_t cell = int64_t{rank} * num_layers + layer;
      const auto tokens = std::bit_cast<double>(gathered[static_cast<size_t>(cell)]);
      peak = std::max(peak, tokens);
      total += tokens;
    }
    if (peak <= 0) continue;
    sum += std::min(1.0, total / world_size / peak);
    peaks += peak;
    means += total / world_size;
    ++layers_with_load;
  }
  if (layers_with_load == 0) return {};
  return {sum / layers_with_load, peaks / means};
}

}  // namespace eplb
