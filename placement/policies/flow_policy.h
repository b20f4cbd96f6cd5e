// Improves the current placement for jobs that split every batch exactly.
#pragma once

#include <memory>

#include "placement/policy.h"

namespace eplb {

// Idea: with an exact split (SplitMode::kBatch) a GPU is too full only by tokens that no other GPU
// may take. So every GPU gets an outlet: the heaviest expert that it owns has a replica on another
// GPU, along rings through all GPUs, and what the GPUs own is even (placement/search/outlets.h).
// From the incumbent that takes few transfers: exchanges of owned experts, and outlets that carry
// another expert. Candidates per layer are the incumbent, the layouts after each of those steps,
// and rings from scratch. They are scored on the recent windows, each as one batch (without any, on
// the load): mean of the least maximum / mean GPU load, plus a price per transfer where there is a
// current placement. Under `strict` each node is searched on its own.
// The candidates are the incumbent and the layer of `incremental` in these cases: fewer spare slots
// than GPUs, a GPU with one slot or with more slots than experts, a soft hierarchy, and layers that
// break `strict`. Without a current placement the layer is that of `balanced`. Where tokens are
// split in equal shares (SplitMode::kEqual) the answer is that of `incremental`. Several loads
// (PolicyInput::scenarios) are placed for equal shares, by the same two: exact splits of each load
// are then more even than with rings. Without max_moves_per_gpu a GPU gets any number of transfers
// that their price allows. Options pass on to `incremental`; duplicates help no exact split.
// Guarantees: what stays on a GPU keeps its slot; the mean over the windows of the exact least
// maximum / mean GPU load is never higher than with the incumbent, once experts of unusable GPUs
// are put elsewhere; at most max_moves_per_gpu transfers into a GPU of a layer, with the exceptions
// of `incremental`. Without a previous placement rings from scratch, unpriced. source: the ring is
// LPLB's; the rest is measured in docs/choosing-a-policy.md. errors: as `incremental`, and
// InvalidArgument for more than 1024 GPUs. cost: per layer a ring, O(n log n + n * m), and some
// dozen layouts times windows of exact splits; 58x256 in 288 slots on 32 GPUs with 10 windows takes
// about 1 s. threads: any.
std::unique_ptr<Policy> MakeFlowPolicy(const PolicyOptions& options);

}  // namespace eplb
