// Seeded random batches for tests of the split: tokens of several kinds of skew, GPUs of unequal
// speed, and GPUs out of use.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "tests/placement/random_placement.h"

namespace eplb {

// Counts of one layer: few tokens, even ones, many zeros, an exponential skew, nearly equal ones,
// one expert with 2^35, or none at all.
std::vector<int64_t> RandomCounts(Random& random, int32_t num_experts);

// A placement and GPUs that it may be on.
struct RandomGpus {
  Placement placement;
  GpuSpeeds speeds;
};

// One in two times equal speeds. One in four times, where all GPUs have as many slots, `placement`
// among further GPUs that are unusable.
RandomGpus WithRandomSpeeds(Random& random, const Placement& placement);

}  // namespace eplb
