// Repair of an incumbent layout after GPUs left or joined.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Gives a slot to every expert without one, the hottest first: an empty slot (-1), or that of the
// replica whose end leaves the lowest loads on the GPUs that change. Then fills the other empty
// slots with replicas of the experts with the largest units. An expert without a replica at its
// home gets one there in the same way, even if it has replicas elsewhere. No expert loses its last
// replica at home. layout: [S], by GPU. False if that is not possible without a duplicate; the
// layout is unusable then. cost: O((lost experts + empty slots) * (n log n + S * replicas)).
bool Repair(const Domain& domain, std::vector<int32_t>& layout);

}  // namespace eplb
