// Carries the rows of replicas: sums of gradients to the primaries, weights from them.
#ifndef EPLB_CLIENT_MIGRATION_REPLICA_ROWS_H_
#define EPLB_CLIENT_MIGRATION_REPLICA_ROWS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/migration/replica_plan.h"
#include "client/migration/row_carrier.h"

namespace eplb {

// One call of a rank, together with the other ranks of its lane.
struct LaneCall {
  RowCarrier& carrier;
  const Placement& placement;
  GpuId gpu;                               // of this rank
  std::vector<RankId> ranks;               // [G], of the lane, by GPU
  std::function<uint64_t()> next_post_id;  // equal on all ranks of the lane, rising
  absl::Time deadline;
  int32_t first_row = 0;   // see FirstRowOf
  void* stream = nullptr;  // cudaStream_t of the rows: what it holds comes first
};

// Makes the moves of all posts. kToPrimary adds each row to the primary's, in the order of
// replicas; kFromPrimary overwrites the others. On a GPU call.stream gets to its next work after
// that; the call does not wait for it. errors: as RowCarrier's; rows are in no known state then, on
// no rank.
absl::Status CarryReplicaRows(std::span<const ReplicaPost> posts, ReplicaFlow flow,
                              const LaneCall& call);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_REPLICA_ROWS_H_
