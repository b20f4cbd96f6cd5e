// A placement as the bytes that stores keep.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "placement/placement.h"

namespace eplb {

// "EPLBPLC1", then little-endian int32: L, E, S, G, N, K, physical_to_logical_map [L, S],
// replica_rank [L, S]. 58 layers x 288 slots are 134 KB.
std::string PlacementToBytes(const Placement& placement);

// errors: DataLoss for bytes that PlacementToBytes did not write: wrong magic or length, a shape or
// a map that is not valid.
absl::StatusOr<Placement> PlacementFromBytes(std::string_view bytes);

}  // namespace eplb
