// The layout of a job without EPLB: one slot per expert, in order. Savings count against it.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"

namespace eplb {

// Returns the first expert of each GPU, and num_experts as the last element: [num_gpus + 1]. GPU g
// holds the experts [result[g], result[g + 1]). The first num_experts % num_gpus GPUs hold one
// expert more than the others; with fewer experts than GPUs the last GPUs hold none.
// REQUIRES: num_experts >= 0, num_gpus >= 1. threads: safe, no state.
std::vector<int32_t> ExpertRangesWithoutEplb(int32_t num_experts, int32_t num_gpus);

// Returns the figures of `load` under that layout. The experts are spread over the usable GPUs
// alone. speeds: null means that all GPUs are usable and equally fast.
// REQUIRES: num_gpus >= 1, and speeds, if given, are of num_gpus GPUs.
// cost: O(L * (E + G)). threads: safe, no state.
Evaluation EvaluateWithoutEplb(const Load& load, int32_t num_gpus,
                               const GpuSpeeds* speeds = nullptr);

}  // namespace eplb
