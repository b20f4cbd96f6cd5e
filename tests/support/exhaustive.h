// Every placement of a world so small that all can be tried.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eplb {

struct SmallWorld {
  int32_t num_experts = 4;
  int32_t num_gpus = 2;
  int32_t slots_per_gpu = 3;
};

// Every placement of one layer, as the expert of each slot: every expert holds a slot, one expert
// may hold two slots of a GPU. 4 experts on 2 x 3 slots: 1560. cost: E^S.
std::vector<std::vector<int32_t>> AllPlacements(const SmallWorld& world);

// max GPU load of one placement, an expert's load shared equally among its replicas.
double MaxGpuLoad(const SmallWorld& world, std::span<const int32_t> physical_to_logical,
                  std::span<const int64_t> load);

// The least max GPU load over `placements`.
double BestMaxGpuLoad(const SmallWorld& world, const std::vector<std::vector<int32_t>>& placements,
                      std::span<const int64_t> load);

// Every load [num_experts] with cells out of `values`: 4 experts, 4 values: 256.
std::vector<std::vector<int64_t>> AllLoads(const SmallWorld& world,
                                           std::span<const int64_t> values);

}  // namespace eplb
