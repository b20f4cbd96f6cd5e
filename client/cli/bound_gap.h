// How far found GPU loads are above their proved bounds.
#ifndef EPLB_CLIENT_CLI_BOUND_GAP_H_
#define EPLB_CLIENT_CLI_BOUND_GAP_H_

#include <vector>

#include "absl/status/statusor.h"

namespace eplb::cli {

struct BoundGaps {
  std::vector<double> bounds;  // [L], never above the peak
  std::vector<double> gaps;    // [L], peak / bound - 1; 0 for a layer without load
  double mean = 0;             // over layers with load
  double max = 0;
};

// peaks, bounds: [L], largest GPU load found and its proved lower bound, tokens / speed. A bound
// that is above its peak by rounding (1e-9 of it) is lowered to the peak: what was reached bounds
// nothing from below, so the smaller of the two is still proved. errors: Internal, naming the
// layer, for a bound further above: it is none, and that is our fault.
absl::StatusOr<BoundGaps> GapsToBounds(const std::vector<double>& peaks,
                                       const std::vector<double>& bounds);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_BOUND_GAP_H_
