// The float32 row sum of torch on CPU, addition by addition: expert group sums decide the packing
// of groups on nodes, so the last bit counts once sums exceed 2^24.
#ifndef EPLB_PLACEMENT_POLICIES_TORCH_SUM_H_
#define EPLB_PLACEMENT_POLICIES_TORCH_SUM_H_

#include <span>

namespace eplb {

// Sum of one contiguous row in the order torch 1.13 adds it (AVX2 build: 8 lanes, 4 accumulators,
// a cascade of 4 levels); 0 for an empty row. NaN and infinities propagate. cost: O(n).
float TorchSum(std::span<const float> row);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_POLICIES_TORCH_SUM_H_
