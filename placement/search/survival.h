// Placements that survive a loss: hot experts get a replica on a second GPU or node.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eplb {

// The part of a job that is lost as a whole.
enum class Site { kGpu, kNode };

struct SurvivalOptions {
  Hierarchy hierarchy = Hierarchy::kNone;  // obeyed by the placement
  Effort effort = Effort::kDefault;
  bool allow_duplicates = false;
  Site site = Site::kGpu;
  double most_cost = 1;  // balancedness that a layer may lose [0, 1]
};

// Gives experts of a placement a replica on a second site, in each layer the hottest first, as far
// as slots allow and the cost permits. A new replica takes the place of one that is missed least;
// then exchanges and other replica counts restore the balance, and every expert covered stays on
// two sites. Bisection finds the number of experts. For several loads the hottest experts are those
// of their mean, and balancedness is 1 / objective. If input.previous is given, a search ends once
// the cost is permitted, so that little moves. `planned` stays as it is in layers where nothing is
// permitted. Equal input gives an equal placement on every machine.
//
// errors: InvalidArgument for sites that are nodes under a strict hierarchy or on a single node,
// and as CheckShapes; Cancelled as Policy::Solve. cost: in each layer at most log2(experts) + 2
// searches by DomainSolver, and O(experts * slots^2) in front of each of them. threads: safe, no
// state.
absl::StatusOr<Placement> CoverLosses(const PolicyInput& input, const Placement& planned,
                                      const SurvivalOptions& options);

// Returns the experts of each layer that one site alone holds, the hottest first. [L]
// REQUIRES: the load fits the placement.
std::vector<std::vector<int32_t>> ExpertsOnOneSite(const Load& load, const Placement& placement,
                                                   Site site);

}  // namespace eplb
