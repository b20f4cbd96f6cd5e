// The best shares of an expert's tokens among its replicas, for a placement that is given.
#ifndef EPLB_PLACEMENT_TOKEN_SPLIT_H_
#define EPLB_PLACEMENT_TOKEN_SPLIT_H_

#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

struct TokenSplit {
  // [L, S]: the fraction of its expert's tokens that a slot takes. Each is in 0..1 and those of an
  // expert sum to 1; a slot without an expert has 0.
  RealMatrix shares;
  std::vector<double> max_gpu_load;  // [L], tokens / speed
};

// 1 / (replicas of its expert) for every slot: what engines do that cannot weight replicas.
RealMatrix EqualShares(const Placement& placement);

// Shares with the least possible max GPU load of every layer, exact but for rounding (about 1e-14).
// Of the many such shares: an expert keeps equal ones where its tokens need not move, and all do
// where the equal split is best already; those on one GPU are equal; an expert without load (or
// with less than 1e-280 of the layer's heaviest) has equal shares. Equal input gives equal bits.
// The light GPUs are not evened out among themselves: shares from a past window are rather kept
// near equal.
// speeds: null for GPUs that are all usable and equally fast.
// errors: InvalidArgument when load and placement differ in layers or experts, or placement and
// speeds in GPUs; for an expert on an unusable GPU, and a load / speed above double's range.
// source and cost: LayerFlow; threads: safe, no state.
absl::StatusOr<TokenSplit> SplitOptimally(const Load& load, const Placement& placement,
                                          const GpuSpeeds* speeds = nullptr);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_TOKEN_SPLIT_H_
