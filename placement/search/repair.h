// Repair of an incumbent layout after GPUs left or joined.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Gives every expert without a slot one, in place of the replica that is missed least. Then fills
// the empty slots (-1) with replicas of the experts with the largest units. Homes are kept: an
// expert's only replica goes to its home, and no expert loses its last one there. layout: [S], by
// GPU. False if that is not possible without a duplicate; the layout is unusable then. cost:
// O((lost experts + empty slots) * (n log n + S)).
bool Repair(const Domain& domain, std::vector<int32_t>& layout);

}  // namespace eplb
