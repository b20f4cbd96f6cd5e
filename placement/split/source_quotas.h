// Which slots a rank's own tokens go to, so that all ranks together meet the quotas of a batch.
// Each rank computes its part alone, from numbers that all ranks have.
#ifndef EPLB_PLACEMENT_SPLIT_SOURCE_QUOTAS_H_
#define EPLB_PLACEMENT_SPLIT_SOURCE_QUOTAS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "placement/placement.h"

namespace eplb {

// One layer of a batch and its quotas, as BatchSplitter writes them.
struct SplitBatch {
  const Placement& placement;
  LayerId layer;
  std::span<const int64_t> quotas;  // [S]
};

// The tokens of rank `source` that each slot takes; rank g of the EP group has GPU g. Tokens stay
// on their GPU as far as its own quotas go, then on their node, and the rest fills the quotas that
// are left: sources and slots in rising order at each step. For given quotas no choice has fewer
// tokens leave their GPU, nor, among those, their node (distances form a tree). counts: [G, E], row
// by row, tokens of each source. own: [S], written on success; those of an expert sum to the
// source's tokens. errors: InvalidArgument naming the expert: another number of counts or quotas, a
// negative count, counts that do not sum to the expert's quotas. cost: O(E * G + S), and
// for each expert with several slots a pass over its column of `counts`. threads: safe,
// no state.
absl::Status OwnQuotas(const SplitBatch& batch, std::span<const int64_t> counts, GpuId source,
                       std::span<int64_t> own);

// As above where a rank knows its own tokens and how many those of lower ranks have, but not whose
// they are: an expert's tokens, ordered by source, fill its slots in the order of replica rank.
// before: [E], tokens of all lower ranks; mine: [E], of this rank.
// errors: InvalidArgument naming the expert: as above, or before + mine above the expert's quotas.
absl::Status OwnQuotasByPrefix(const SplitBatch& batch, std::span<const int64_t> before,
                               std::span<const int64_t> mine, std::span<int64_t> own);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_SOURCE_QUOTAS_H_
