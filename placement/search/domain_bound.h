// A proved lower bound on the largest GPU load of a domain.
#pragma once

#include "placement/search/domain.h"

namespace eplb {

// Returns a load that the fullest GPU reaches in every arrangement of the domain, with or without
// duplicates, if an expert's tokens are split equally among its replicas. It is the largest of
//   total load / total speed, and
//   for k = 1 .. most slots of a GPU: the least T that k does not refute. Let v be the fastest
//   speed. A unit must be at most T * v, so an expert of load w needs ceil(w / (T v)) replicas. A
//   unit above T * v / k is long. A GPU has room for at most k - 1 long ones, so all GPUs together
//   for m (k - 1). An expert with ceil(k w / (T v)) replicas has no long unit. The cheapest mix of
//   the two, relaxed to fractions, must fit into the slots, or T is refuted. (k = 1 is the least T
//   with sum of ceil(w / T) <= S; k = 2 and more bind if few slots are to spare.)
//
// With `any_split` an expert's tokens may be split unequally: k = 1 still holds, larger k do not.
// cost: O(k * n * log(1 / precision)); 0 for a domain without load. threads: safe, no state.
double DomainBound(const Domain& domain, bool any_split = false);

}  // namespace eplb
