// Placements for exact splits: every GPU can pass on tokens of its heaviest expert.
#ifndef EPLB_PLACEMENT_SEARCH_OUTLETS_H_
#define EPLB_PLACEMENT_SEARCH_OUTLETS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Theory: with an exact split a set Q of GPUs is too full only by the tokens of experts that Q
// alone holds. So what counts under a load that is not known yet is not that equal shares are even,
// but that every set has a way out. An expert has one owner GPU; a slot beyond one per expert is an
// outlet: a second replica, on another GPU, of an expert that its owner can then pass on. Outlets
// are the edges of a graph of GPUs. Here they form rings through all GPUs, one for every GPUs'
// worth of slots to spare, so that the graph is connected; each carries the heaviest expert of its
// owner; and the owners' loads are even. Then every set of GPUs that is an arc of the ring can pass
// on its last owner's heaviest expert, and take in the heaviest of the next one. Measured:
// docs/choosing-a-policy.md.
//
// All functions: layouts are experts by slot of the domain, GPU by GPU. Deterministic. Threads:
// safe, no state.

// A domain has as many slots to spare as GPUs, and no GPU has to hold an expert twice.
bool AllowsOutletRing(const Domain& domain);

// From scratch: owners by longest processing time first, the outlets of each ring `stride` further.
// Experts with more than `most_of_mean` of a GPU's mean load get further outlets before the rings
// do; 0: none does. None when no such layout was found. cost: O(n log n + n * m).
std::optional<std::vector<int32_t>> MakeOutletRing(const Domain& domain, double most_of_mean);

struct FollowOptions {
  // What an exchange of two owned experts must take from the sum of squared owner loads, each in
  // parts of the GPU's mean; an expert with an outlet costs this once more.
  double least_gain = 0.005;
  // An outlet changes when another expert of its owner is heavier by this part.
  double least_rise = 0.25;
};

// Layouts step by step from one with outlets: exchanges of owned experts between the fullest or the
// emptiest GPU and another, the best first; then outlets that carry another expert of the same
// owner. The graph of the outlets stays as it is. Threads: one at a time.
class OutletSteps {
 public:
  // REQUIRES: `domain` outlives this.
  explicit OutletSteps(const Domain& domain, const FollowOptions& options = {});
  ~OutletSteps();

  // False when the layout has no owners: a GPU would own more experts than its slots without
  // outlets. cost: O(S * slots per GPU), in the worst case O(n * S).
  bool Start(std::span<const int32_t> layout);
  // False when no exchange takes enough. cost: O(S * slots per GPU).
  bool Swap();
  // The layout after the exchanges so far, with outlets for it. cost: O(S * slots per GPU).
  std::vector<int32_t> WithOutlets() const;

 private:
  class State;

  FollowOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_OUTLETS_H_
