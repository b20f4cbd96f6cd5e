// Carries the rows of replicas: sums of gradients to the primaries, weights from them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/rows/replica_posts.h"
#include "client/rows/row_carrier.h"
#include "placement/placement.h"

namespace eplb {

// One call of a rank, together with the other ranks of its EP group.
struct EpGroupCall {
  RowCarrier& carrier;
  const Placement& placement;
  GpuId gpu;                               // GPU of this rank
  std::vector<RankId> ranks;               // [G], ranks of the EP group, by GPU
  std::function<uint64_t()> next_post_id;  // equal on all ranks of the EP group, rising
  absl::Time deadline;
  int32_t first_row = 0;   // see FirstRowOf
  void* stream = nullptr;  // cudaStream_t of the rows, whose present work comes first
};

// Makes the moves of all posts. kToPrimary adds each row to the primary's, in the order of
// replicas; kFromPrimary overwrites the others. On a GPU later work of call.stream follows the
// moves; the call does not wait for them. errors: see RowCarrier; the rows of all ranks are then in
// an unknown state.
absl::Status CarryReplicaRows(std::span<const ReplicaPost> posts, ReplicaFlow flow,
                              const EpGroupCall& call);

}  // namespace eplb
