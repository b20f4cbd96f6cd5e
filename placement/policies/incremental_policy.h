// From the placement in force, a few moves at a time, each of which must pay.
#ifndef EPLB_PLACEMENT_POLICIES_INCREMENTAL_POLICY_H_
#define EPLB_PLACEMENT_POLICIES_INCREMENTAL_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "placement/hierarchy.h"
#include "placement/policy.h"

namespace eplb {

struct IncrementalOptions {
  std::optional<Hierarchy> hierarchy;  // none given: DefaultHierarchy of the topology
  Effort effort = Effort::kDefault;    // of the search from scratch that is one of the candidates
  bool allow_duplicates = false;
  int32_t max_moves_per_gpu = 2;  // transfers into a GPU per layer
};

// Idea: a layer moves only when its GPUs are further above the bound than sampling noise explains;
// then the hottest GPU is relieved, again and again, by the step that wins most per copy (a new
// replica in place of one that is not missed: one copy; an exchange: two), until it is near the
// bound, no step pays, or a GPU's budget is spent. Candidates per layer: the incumbent, the
// incumbent after each of those steps, and `balanced` aligned to the incumbent where the budget
// allows it. They are scored on the recent windows: mean of the largest GPU load, plus a price per
// copy.
// Guarantees: what stays on a GPU keeps its slot; never worse than the incumbent on the scoring
// windows; at most max_moves_per_gpu transfers into any GPU in any layer, with two exceptions that
// nothing else can serve: an expert that only an unusable GPU held is put elsewhere and empty slots
// are filled first, by as many transfers as that takes; and a layer whose incumbent breaks the
// hierarchy becomes that of `balanced` whole. Duplicates of the incumbent may stay, none is added.
//
// Solve without a previous placement starts from the static one.
//
// errors: as `balanced`, and InvalidArgument when the previous placement or a recent window has
// another shape.
//
// cost: O(L * steps * S * slots per GPU), besides `balanced`.
std::unique_ptr<Policy> MakeIncrementalPolicy(const IncrementalOptions& options);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_POLICIES_INCREMENTAL_POLICY_H_
