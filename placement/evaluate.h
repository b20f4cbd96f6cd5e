// How even a placement is under a load. threads: safe, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// How a job splits an expert's tokens among its replicas: in equal shares, or exactly, batch by
// batch (placement/split/batch_split.h).
enum class SplitMode { kEqual, kBatch };

// Balancedness of a layer = mean GPU load / max GPU load, GPU load = tokens / speed; 1 is best. A
// layer without load has none. Unusable GPUs are in neither mean nor max.
struct Evaluation {
  RealMatrix gpu_loads;                             // [L, G]; 0 for an unusable GPU
  std::vector<double> max_gpu_load;                 // [L]
  std::vector<std::optional<double>> balancedness;  // [L]; absent for a layer without load
  std::optional<double> mean_balancedness;          // over layers with load; absent if all are idle
  std::optional<double> min_balancedness;           // over layers with load; absent if all are idle
  double peak_load = 0;  // sum over layers of max_gpu_load: what a step waits for
};

// Orders the balancedness of layers, worst first; layers without load are last.
inline bool LessBalanced(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() && (!b.has_value() || *a < *b);
}

struct EvaluateOptions {
  const GpuSpeeds* speeds = nullptr;  // null: all usable and equally fast
  // [L, S], the part of its expert's tokens that a slot takes; null: equal parts. For a given split
  // the shares of an expert sum to 1.
  const RealMatrix* shares = nullptr;
};

// errors: InvalidArgument when load and placement differ in layers or experts, speeds or shares in
// shape, or an unusable GPU holds an expert. cost: O(L * S).
absl::StatusOr<Evaluation> Evaluate(const Load& load, const Placement& placement,
                                    const EvaluateOptions& options = {});

// The figures of GPU loads that are known already, e.g. of steps that ran under several placements.
// num_usable: GPUs that the mean is over, >= 1; the others' loads are 0. peaks: [L], the layers'
// fullest GPUs summed over the steps, where each step has its own; none: those of `gpu_loads`.
// cost: O(L * G).
Evaluation EvaluateGpuLoads(RealMatrix gpu_loads, int32_t num_usable,
                            std::span<const double> peaks = {});

// Replicas of an expert beyond the first on one GPU, summed over layers.
int64_t CountDuplicates(const Placement& placement);

}  // namespace eplb
