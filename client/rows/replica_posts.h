// Plans the transfers that keep an expert's replicas alike in training, in posts that fit into
// staging. Every rank of an EP group computes the same.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/rows/expert_tensors.h"
#include "cuda/kernels/element_body.h"
#include "placement/placement.h"

namespace eplb {

// Rows beside the registered tensors, one for each local slot: gradients, or weights.
struct ReplicaTensor {
  ExpertTensor rows;  // role is ignored
  cuda::ElementType type = cuda::ElementType::kFloat32;
};

enum class ReplicaFlow { kToPrimary, kFromPrimary };

// A tensor's row on its way between an expert's primary and another replica.
struct ReplicaMove {
  const ReplicaTensor* tensor = nullptr;
  SlotId source;
  SlotId destination;
  int32_t replica = 0;  // number of the replica [1, ..), the order of additions to the primary
  int32_t round = -1;   // -1: inside a GPU
  int32_t row = 0;      // number of the row for the transport
  int64_t offset = 0;   // in the staging of the destination's GPU
};

struct ReplicaPost {
  std::vector<ReplicaMove> moves;  // moves that `gpu` sends, receives or makes by itself
  bool has_links = false;          // true if any GPU sends rows to another GPU
};

inline constexpr int32_t kMaxReplicaRows = 4096;
// Returns the first row number of a call, by its name and each tensor's name, layer, type and
// row_bytes. If ranks differ in these (except for a collision, 1 in 2^19), they expect other row
// numbers and reject the rows instead of adding them to wrong ones.
int32_t FirstRowOf(std::string_view call, std::span<const ReplicaTensor> tensors);

// Plans posts in the order of layer, expert, replica and `tensors`; none if no expert of these
// layers has two replicas. The rows of a post fit into every GPU's staging, at most kMaxReplicaRows
// rows a GPU; its rounds are an edge colouring. A GPU's rows are numbered from first_row on.
// errors: ResourceExhausted naming the tensor whose row is larger than staging. cost: O(layers *
// experts + moves), and the colouring.
absl::StatusOr<std::vector<ReplicaPost>> PlanReplicaPosts(const Placement& placement, GpuId gpu,
                                                          std::span<const ReplicaTensor> tensors,
                                                          ReplicaFlow flow, int64_t staging_bytes,
                                                          int32_t first_row);

// errors: see CheckTensor; InvalidArgument naming the tensor whose rows are not whole elements, or
// two tensors whose rows share bytes.
absl::Status CheckReplicaTensors(const Topology& topology, GpuId gpu,
                                 std::span<const ReplicaTensor> tensors, ReplicaFlow flow);

}  // namespace eplb
