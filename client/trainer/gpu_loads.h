// What each GPU of the demonstration job computes in a step, and how balanced that is.
#ifndef EPLB_CLIENT_TRAINER_GPU_LOADS_H_
#define EPLB_CLIENT_TRAINER_GPU_LOADS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "client/client.h"
#include "placement/load.h"

namespace eplb {

// Tokens that this rank's GPU computes in each layer: the split among replicas is equal.
std::vector<double> OwnGpuLoads(const LoadMatrix& total, const PlacementView& placement);

// The loads of all GPUs in every layer, as the ranks measured them.
struct MeasuredLoads {
  double balancedness = 1;  // mean over layers with load
  double slowdown = 1;      // sum of peaks / sum of means: of the step against a balanced one
};

// gathered: [world_size, num_layers], doubles as bits.
MeasuredLoads MeasureLoads(std::span<const int64_t> gathered, int32_t num_layers,
                           int32_t world_size);

}  // namespace eplb

#endif  // EPLB_CLIENT_TRAINER_GPU_LOADS_H_
