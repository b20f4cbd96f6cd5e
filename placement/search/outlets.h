// Placements for exact splits: every GPU can pass on tokens of its heaviest expert.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Theory: under an exact split a set Q of GPUs is too full only because of experts that Q alone
// holds. So for a load that is not known yet, it matters little whether equal shares are balanced.
// Each set of GPUs needs a path along which it can hand on tokens. An expert has one owner GPU. A
// slot beyond one per expert is an outlet: a second replica on another GPU, to which the owner can
// hand on tokens.
//
// Outlets are the edges of a graph of GPUs. Here they form rings through all GPUs, one for every
// GPUs' worth of spare slots, so that the graph is connected. Each outlet carries the heaviest
// expert of its owner, and the owners' loads are even. Then every arc of a ring can hand on its
// last owner's heaviest expert and take in the heaviest one of the next owner. Measured:
// docs/choosing-a-policy.md.
//
// All functions: layouts are experts by slot of the domain, GPU by GPU. Deterministic. Threads:
// safe, no state.

// True if a domain has as many spare slots as GPUs, and no GPU has to hold an expert twice.
bool AllowsOutletRing(const Domain& domain);

// Makes a layout from scratch: owners by longest processing time first, the outlets of each ring
// `stride` further. Experts with more than `most_of_mean` of a GPU's mean load get further outlets
// before the rings do; 0: no expert does. No value if no such layout was found.
// cost: O(n log n + n * m).
std::optional<std::vector<int32_t>> MakeOutletRing(const Domain& domain, double most_of_mean);

// Improves a layout with outlets step by step. A step exchanges owned experts between the fullest
// or the emptiest GPU and another one, the best exchange first. Then outlets may carry another
// expert of the same owner. The graph of the outlets does not change. Threads: one at a time.
class OutletSteps {
 public:
  // REQUIRES: `domain` outlives this.
  explicit OutletSteps(const Domain& domain);
  ~OutletSteps();

  // False if the layout has no owners, because a GPU would own more experts than its slots without
  // outlets. cost: O(S * slots per GPU), in the worst case O(n * S).
  bool Start(std::span<const int32_t> layout);
  // Makes one exchange; false if none takes enough. cost: O(S * slots per GPU).
  bool Swap();
  // Returns the layout after the exchanges so far, with outlets for it. cost: O(S * slots per GPU).
  std::vector<int32_t> WithOutlets() const;

 private:
  class State;

  std::unique_ptr<State> state_;
};

}  // namespace eplb
