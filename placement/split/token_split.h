// Shares of an expert's tokens among its replicas, for a load of any size and a given placement.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Returns the load as integers in the same proportions, rounded to whole tokens of a sum of about
// `total`. Loads of any magnitude are taken, also those whose sum is infinite. REQUIRES: total is
// at most 2^61, so that rounding cannot exceed the range of int64_t.
std::vector<int64_t> ScaledTokens(std::span<const double> load, int64_t total);

// 1 / (replicas of its expert) for every slot, as engines that cannot weight replicas split tokens.
RealMatrix EqualShares(const Placement& placement);

// Returns the shares [L, S] with the least possible maximum GPU load of every layer. Each share is
// in 0..1 and an expert's shares sum to 1; a slot without an expert has 0. Tokens are rounded to
// 2^-35 of the layer's load, and speeds to 2^-24 of the fastest GPU's. An expert whose tokens need
// not move has equal shares, and so has an expert without load. Equal input gives equal bits.
// speeds: null for GPUs that are all usable and equally fast.
//
// errors: InvalidArgument when load and placement differ in layers or experts; as SplitGraph::Make.
// source and cost: SplitBody. threads: safe, no state.
absl::StatusOr<RealMatrix> SplitOptimally(const Load& load, const Placement& placement,
                                          const GpuSpeeds* speeds = nullptr);

}  // namespace eplb
