// The best placement for its slots that a bounded search finds; the past does not matter.
#pragma once

#include <memory>

#include "placement/policy.h"

namespace eplb {

// Idea: replica counts and packing are searched together. Greedy counts are packed longest unit
// first; then exchanges and changes of counts lower the hottest GPU. Other counts are tried for the
// hottest experts, or for all experts if they are few. A seeded walk perturbs the hottest GPU and
// descends again, until the largest GPU load meets a proved bound or the work is spent. Under
// `strict` the partitions of expert groups over nodes are taken in the order of their own bound;
// `soft` starts from the strict answer and looks at some other partitions (at all, where there are
// no more than 4 by default and 32 thorough; at none fast). Several loads (PolicyInput::scenarios):
// the objective over all of them decides instead (placement/search/scenario_solver.h), also for the
// candidates. Guarantees: never two replicas of an expert on one GPU while there is a choice; per
// layer never worse than `deepseek` or the previous placement where these obey the same
// constraints; a layer without load gets replica counts that differ by at most one (under `strict`
// on each node, whose slots only its own experts may fill; under `soft` unless affinities force
// more); an unusable GPU holds nothing; the work is counted, not timed, so equal input gives an
// equal placement on every machine. Solve takes every S >= E, also S % G != 0. errors:
// InvalidArgument for a load of another shape, a hierarchy that does not fit the topology, and
// slots of usable GPUs that cannot hold the experts. cost: per layer at most 1 (fast) or 15
// (default) times what the greedy algorithm looks at, R * E
// + S * G; thorough as much as default or more, 1.6e9 steps over all layers: some 5 s, and 10 s for
// 128 layers of 1024 experts on 512 GPUs; under `soft` some 8 s. With allow_duplicates twice that.
// threads: safe, no state.
std::unique_ptr<Policy> MakeBalancedPolicy(const PolicyOptions& options);

}  // namespace eplb
