// A split of a random batch against the independent maximum flow.
#pragma once

#include <cstdint>

#include "placement/placement.h"
#include "placement/topology.h"
#include "tests/placement/random_placement.h"

namespace eplb {

// Draws counts, speeds, slack and unusable GPUs for each layer of `of_usable`. Checks that the
// quotas are whole and within the peak. The checker must accept the proof, and the tokens must fit
// the peak by the oracle's flow.
void CheckAgainstOracle(Random& random, const Placement& of_usable);

// CheckAgainstOracle, `repetitions` times on random placements of a shape, until a failure.
void CheckShape(Random& random, const TopologyOptions& shape, int32_t repetitions);

}  // namespace eplb
