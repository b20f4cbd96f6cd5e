// Tokens of the fullest GPU in batches that were split exactly, which the daemon measures by.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

#include "placement/placement.h"

namespace eplb {

// Sums of batches of a layer that were split exactly, in tokens of the EP group.
struct SplitSums {
  int64_t tokens = 0;
  int64_t peak = 0;  // tokens of the fullest GPU of each batch
  // `peak` if the batches had run under the static layout in equal shares, or with one slot per
  // expert.
  int64_t peak_static = 0;
  int64_t peak_without_eplb = 0;
};

// Returns the sums of one batch by the tokens of each slot [S]. placement: the one that the batch
// ran under. errors: InvalidArgument naming layer and slot: layer out of range, wrong length, a
// negative number, a sum above 2^63-1. cost: O(S + E).
absl::StatusOr<SplitSums> SumsOfSplit(int32_t layer, std::span<const int64_t> quotas,
                                      const Placement& placement);

}  // namespace eplb
