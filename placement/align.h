// Relabels slots inside GPUs so that as little as possible moves.
#pragma once

#include "absl/status/statusor.h"

#include "placement/placement.h"

namespace eplb {

// Gives each GPU of each layer the same multiset of experts as `next` does, but an expert that the
// GPU already holds in `previous` keeps its slot there; of several, the previous primary's slot
// first, then the lowest. Arrivals take the freed slots in rising order of slot and of their slot
// in `next`. An expert whose previous primary slot still holds it keeps that primary. A new primary
// is the lowest slot among the replicas that survive, else the slot that `next`'s primary went to.
// The other replicas follow in rising slots. GPU loads do not change, no relabelling changes fewer
// slots, and aligning twice changes nothing. What an unusable GPU held is gone, as if it had held
// nothing.
// errors: InvalidArgument when topologies differ. cost: O(L * S * log(slots per GPU)).
// threads: safe, no state.
absl::StatusOr<Placement> Align(const Placement& previous, const Placement& next);

}  // namespace eplb
