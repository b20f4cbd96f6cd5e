// Improves the current placement by a few moves at a time, each of which must pay.
#pragma once

#include <cstdint>
#include <memory>

#include "placement/policy.h"

namespace eplb {

// Transfers into a GPU per layer without max_moves_per_gpu. A layer whose hottest GPU carries more
// than twice the bound, such as one that was never balanced, then gets any number, and wide layers
// get few steps before `balanced`.
inline constexpr int32_t kDefaultMovesPerGpu = 2;

// Idea: a layer moves only when its GPUs are further above the bound than the sampling noise of a
// window of counts explains (estimates are taken as they are). Then the steps that lower the soft
// peak most per copy are taken (a new replica in place of one that is not missed: one copy; an
// exchange: two), until no step pays, a GPU's budget is spent, or a tenth of the slots has moved; a
// layer that is far off may move more. The smooth maximum instead of the largest load, because the
// load of the next window differs on every GPU; for the same reason some copies go first to experts
// that grew and have too few replicas, although the steps alone would not ask for them yet.
// Candidates per layer: the incumbent, the incumbent after each of those steps, and `balanced`
// aligned to the incumbent where the budget allows it. They are scored on the recent windows: mean
// smooth maximum, plus a price per copy.
// Several loads (PolicyInput::scenarios): a layer moves if its objective is
// above 1.02. It takes a walk from the incumbent (placement/search/scenario_walk.h), in which each
// copy has a price, or the layer of `balanced` where the copies pay and are allowed. Guarantees:
// what stays on a GPU keeps its slot; the mean of the largest GPU loads of the scoring windows is
// never higher than with the incumbent; at most max_moves_per_gpu transfers into any GPU in any
// layer, with two exceptions that nothing else can serve: an expert that only an unusable GPU held
// is put elsewhere and empty slots are filled first, by as many transfers as that takes; and a
// layer whose incumbent breaks the hierarchy, or cannot be repaired within it, becomes that of
// `balanced` whole. Duplicates of the incumbent may stay, none is added.
//
// Measured on drifting loads (tests/data/workloads, E >= 128, no hierarchy, from a balanced start):
// experts that drift by 5 % a window cost 3-6 % of the slots for a balancedness of .98, by 20 %
// 8-10 % for .97-.99, and the next window loses less than 0.012 against planning from scratch. With
// three slots a GPU (128 GPUs) as much drift needs 9 % for .96 and 21 % for .95.
//
// Solve without a previous placement starts from the static one.
//
// errors: as `balanced`, and InvalidArgument when the previous placement or a recent window has
// another shape.
//
// cost: O(L * steps * S * slots per GPU), besides `balanced`; 60x384 on 64 GPUs takes up to 2 s.
// threads: any.
std::unique_ptr<Policy> MakeIncrementalPolicy(const PolicyOptions& options);

}  // namespace eplb
