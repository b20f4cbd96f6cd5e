// Proved lower bounds on the largest GPU load of any placement: the certificate beside each answer.
#ifndef EPLB_PLACEMENT_BOUND_H_
#define EPLB_PLACEMENT_BOUND_H_

#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/topology.h"

namespace eplb {

// For each layer, a load that no placement on this topology can go below when an expert's tokens
// are split equally among its replicas: the larger of the mean GPU load and the least T with sum
// over experts of max(1, ceil(w / T)) <= S. Proof of the second: a slot of expert e carries w_e /
// r_e, so a maximum of T needs r_e >= ceil(w_e / T) slots. Giving each spare slot to the expert
// with most load per replica finds that T: an expert that already has ceil(w_e / T) replicas gets
// another only when every expert has. 0 for a layer without load. Rounded as doubles are: a
// placement that meets its bound may evaluate some last bits below it.
// errors: InvalidArgument when load and topology differ in layers or experts.
// cost: O(L * (E + (S - E) * log E)).
absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_BOUND_H_
