// Repair of an incumbent layout after GPUs left or joined.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Gives every expert without a slot one, the hottest first, in place of the replica whose end
// leaves the lowest loads on the GPUs that change. Then fills the empty slots (-1) with replicas of
// the experts with the largest units. Homes are kept: an expert's only replica goes to its home,
// and no expert loses its last one there. layout: [S], by GPU. False if that is not possible
// without a duplicate; the layout is unusable then. cost: O((lost experts + empty slots) * (n log n
// + S * replicas)).
bool Repair(const Domain& domain, std::vector<int32_t>& layout);

}  // namespace eplb
