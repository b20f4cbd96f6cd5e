// The loads of several windows as one: what is expected of the next.
#ifndef EPLB_PLACEMENT_LOAD_AVERAGE_H_
#define EPLB_PLACEMENT_LOAD_AVERAGE_H_

#include <optional>
#include <span>

#include "absl/status/statusor.h"

#include "placement/load.h"

namespace eplb {

// Without `decay` the sum of the windows, exact where all are counts; else an exponential average:
// estimate = decay * estimate + (1 - decay) * window, oldest first, decay in 0..1. A single window
// comes back as it is. windows: oldest first, not null.
// errors: InvalidArgument for no window, windows of different shapes, and a sum above 2^63-1,
// naming the cell. cost: O(windows * L * E). threads: safe, no state.
absl::StatusOr<Load> CombineLoads(std::span<const Load* const> windows,
                                  std::optional<double> decay);

// The number of steps that such a combination stands for. num_steps: of each window, at least one.
double CombineSteps(std::span<const double> num_steps, std::optional<double> decay);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_LOAD_AVERAGE_H_
