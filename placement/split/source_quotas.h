// The slots that a rank's own tokens go to, so that all ranks together meet the quotas of a batch.
// Each rank computes its part alone, from numbers that all ranks have.
#pragma once

#include <cstdint>
#include <span>

#include "placement/placement.h"

namespace eplb {

// One layer of a batch and its quotas, as BatchSplitter writes them.
struct SplitBatch {
  const Placement& placement;
  LayerId layer;
  std::span<const int64_t> quotas;  // [S]
};

// Computes the tokens of rank `source` that each slot takes; rank g of the EP group has GPU g.
// Tokens stay on their GPU as far as its own quotas allow, then on their node. The rest fills the
// quotas that are left, sources and slots in rising order. For given quotas no choice has fewer
// tokens leave their GPU, nor, among those choices, their node (distances form a tree). counts: [G,
// E], row by row, tokens of each source. own: [S], written; an expert's sum is the source's tokens.
// REQUIRES: counts are >= 0 and those of an expert sum to its quotas.
//
// cost: O(E * G + S), for each expert with several slots a pass over its column of `counts`.
// threads: safe, no state.
void OwnQuotas(const SplitBatch& batch, std::span<const int64_t> counts, GpuId source,
               std::span<int64_t> own);

// Computes the same for a rank that knows its own tokens and the sum of the tokens of lower ranks.
// An expert's tokens, ordered by source, fill its slots in the order of replica rank. before: [E],
// tokens of all lower ranks; mine: [E], of this rank. REQUIRES: both are >= 0, and their sum is at
// most the expert's quotas.
void OwnQuotasByPrefix(const SplitBatch& batch, std::span<const int64_t> before,
                       std::span<const int64_t> mine, std::span<int64_t> own);

}  // namespace eplb
