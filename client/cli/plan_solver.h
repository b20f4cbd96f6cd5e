// Computes the placement of a plan and, if tokens are split, its shares.
#pragma once

#include <optional>
#include <span>

#include "absl/status/statusor.h"

#include "client/cli/shape_options.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb::cli {

// Views; all of one shape.
struct PlanProblem {
  const Load& load;
  const Topology& topology;
  const GpuSpeeds& speeds;
  const Placement* previous = nullptr;  // may be null
  SplitMode split = SplitMode::kEqual;  // split of the planned job
  std::span<const Load> windows = {};   // windows of the load, oldest first, one batch each
};

struct PlanAnswer {
  Placement placement;
  std::optional<RealMatrix> shares;  // [L, S]; absent: equal parts
};

// Asks the policy. Slots of `balanced` are aligned to a previous placement. With
// --max-moves-per-gpu, `incremental` replaces each layer that would need more transfers into a GPU.
// `optimal_split`: `balanced` without a previous placement is replaced by the exactly even
// placement (PlaceEvenly) where that applies, also on some GPUs only and if duplicates are allowed.
// Otherwise, for example for GPUs of different speeds, the policy's placement gets the best shares.
// For a problem that is split by batch the policy aims at exact splits of the windows, and its
// placement gets the best shares for the load. errors: the policy's.
absl::StatusOr<PlanAnswer> SolvePlan(const ShapeOptions& frame, bool optimal_split,
                                     const PlanProblem& problem);

}  // namespace eplb::cli
