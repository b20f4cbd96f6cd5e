// Which rows go where so that an expert's replicas stay one expert in training, in posts that fit
// into staging: computed alike on every rank of a lane.
#ifndef EPLB_CLIENT_MIGRATION_REPLICA_PLAN_H_
#define EPLB_CLIENT_MIGRATION_REPLICA_PLAN_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/migration/executor.h"
#include "cuda/kernels/element_body.h"
#include "placement/placement.h"

namespace eplb {

// Rows beside the registered tensors, one for each local slot: gradients, or weights.
struct ReplicaTensor {
  ExpertTensor rows;  // role is not looked at
  cuda::ElementType type = cuda::ElementType::kFloat32;
};

enum class ReplicaFlow { kToPrimary, kFromPrimary };

// A tensor's row on its way between an expert's primary and another replica.
struct ReplicaMove {
  const ReplicaTensor* tensor = nullptr;
  SlotId source;
  SlotId destination;
  int32_t replica = 0;  // which one, 1 or more: in this order rows are added to the primary's
  int32_t round = -1;   // -1: inside a GPU
  int32_t row = 0;      // its number for the transport
  int64_t offset = 0;   // in the staging of the destination's GPU
};

struct ReplicaPost {
  std::vector<ReplicaMove> moves;  // that `gpu` sends, receives or makes by itself
  bool has_links = false;          // some GPU's rows go to another GPU
};

inline constexpr int32_t kMaxReplicaRows = 4096;
// From where on the rows of a call are numbered: by what is called, and each tensor's name, layer,
// type and row_bytes. Where ranks call with something else (or a collision in 2^19) they expect
// other rows, and so refuse what comes instead of adding it to the wrong row.
int32_t FirstRowOf(std::string_view call, std::span<const ReplicaTensor> tensors);

// Posts in their order, by layer, expert, replica and then in the order of `tensors`; none where no
// expert of these layers has two replicas. A post holds what fits into every GPU's staging, at most
// kMaxReplicaRows rows a GPU; its rounds are an edge colouring. A GPU's rows are numbered from
// first_row on. errors: ResourceExhausted naming the tensor whose row is larger than staging.
// cost: O(layers * experts + moves), and the colouring.
absl::StatusOr<std::vector<ReplicaPost>> PlanReplicaPosts(const Placement& placement, GpuId gpu,
                                                          std::span<const ReplicaTensor> tensors,
                                                          ReplicaFlow flow, int64_t staging_bytes,
                                                          int32_t first_row);

// errors: as CheckTensor; InvalidArgument naming the tensor whose rows are no whole elements, or
// two whose rows share bytes.
absl::Status CheckReplicaTensors(const Topology& topology, GpuId gpu,
                                 std::span<const ReplicaTensor> tensors, ReplicaFlow flow);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_REPLICA_PLAN_H_
