// How even a placement is under a load.
#ifndef EPLB_PLACEMENT_EVALUATE_H_
#define EPLB_PLACEMENT_EVALUATE_H_

#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Balancedness of a layer = mean GPU load / max GPU load; 1 is best and the value of a layer
// without load.
struct Evaluation {
  RealMatrix gpu_loads;  // [L, G], tokens; an expert's tokens are shared equally among its replicas
  std::vector<double> max_gpu_load;  // [L]
  std::vector<double> balancedness;  // [L]
  double mean_balancedness = 1;      // over layers with load; 1 when all are idle
  double min_balancedness = 1;       // likewise
  double peak_load = 0;              // sum over layers of max_gpu_load: what a step waits for
};

// errors: InvalidArgument when load and placement differ in layers or experts. cost: O(L * S).
absl::StatusOr<Evaluation> Evaluate(const Load& load, const Placement& placement);

// Replicas of an expert beyond the first on one GPU, summed over layers.
int64_t CountDuplicates(const Placement& placement);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_EVALUATE_H_
