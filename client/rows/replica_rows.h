// Carries the rows of replicas: sums of gradients to the primaries, weights from them.
#ifndef EPLB_CLIENT_ROWS_REPLICA_ROWS_H_
#define EPLB_CLIENT_ROWS_REPLICA_ROWS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/expert_tensors.h"
#include "client/rows/row_carrier.h"
#include "cuda/kernels/element_body.h"
#include "cuda/row_queue.h"
#include "placement/placement.h"

namespace eplb {

// Which rows go where so that an expert's replicas stay one expert in training, in posts that fit
// into staging: computed alike on every rank of an EP group.

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

// One call of a rank, together with the other ranks of its EP group.
struct EpGroupCall {
  RowCarrier& carrier;
  const Placement& placement;
  GpuId gpu;                               // of this rank
  std::vector<RankId> ranks;               // [G], of the EP group, by GPU
  std::function<uint64_t()> next_post_id;  // equal on all ranks of the EP group, rising
  absl::Time deadline;
  int32_t first_row = 0;   // see FirstRowOf
  void* stream = nullptr;  // cudaStream_t of the rows: what it holds comes first
};

// Makes the moves of all posts. kToPrimary adds each row to the primary's, in the order of
// replicas; kFromPrimary overwrites the others. On a GPU call.stream gets to its next work after
// that; the call does not wait for it. errors: as RowCarrier's; rows are in no known state then, on
// no rank.
absl::Status CarryReplicaRows(std::span<const ReplicaPost> posts, ReplicaFlow flow,
                              const EpGroupCall& call);

// Sums of squares in which an expert counts once, however many replicas it has.

// Whether the sums of one rank fit into a staging of that many bytes, as Sum needs it: alike on all
// ranks of the EP group. errors: ResourceExhausted, with both.
absl::Status CheckSquaresFit(const Topology& topology, std::span<const ReplicaTensor> tensors,
                             int64_t staging_bytes);

// Keeps its buffers from one call to the next. Threads: one caller. It goes before the carrier.
class ExpertSquareSums {
 public:
  // Takes the memory that Sum needs for up to num_layers layers, so that no step does: to take
  // memory waits for the device. layers * slots of a GPU * 8 bytes on the device, as much pinned,
  // and pinned that of every other rank, at most the staging's size. errors: ResourceExhausted.
  absl::Status Reserve(const Topology& topology, int64_t num_layers, int64_t staging_bytes,
                       cuda::RowQueue& queue);
  // [L * E]: of each expert the sum of squares over its rows at the primary, tensor after tensor in
  // their order, in float64; 0 in layers without tensors. Equal to the bit on all ranks of the
  // EP group, which get each other's sums by the transport: layers * slots of a GPU * 8 bytes to
  // every other rank. Takes what was not reserved. errors: as RowCarrier's. REQUIRES:
  // CheckSquaresFit is OK.
  absl::StatusOr<std::vector<double>> Sum(std::span<const ReplicaTensor> tensors,
                                          const EpGroupCall& call);

 private:
  absl::Status Grow(int64_t leaving_bytes, int64_t arriving_bytes, cuda::RowQueue& queue);
  // What every rank has, from `mine`: [G][mine.size()].
  absl::StatusOr<std::vector<double>> Gather(std::span<const double> mine, const EpGroupCall& call);

  cuda::RowBuffer sent_;     // where the transport sends from
  cuda::RowBuffer leaving_;  // host memory, before it is there
  cuda::RowBuffer arrived_;  // host memory
};

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_REPLICA_ROWS_H_
