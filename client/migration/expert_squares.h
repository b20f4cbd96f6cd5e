// Sums of squares in which an expert counts once, however many replicas it has.
#ifndef EPLB_CLIENT_MIGRATION_EXPERT_SQUARES_H_
#define EPLB_CLIENT_MIGRATION_EXPERT_SQUARES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/migration/replica_rows.h"
#include "cuda/row_queue.h"

namespace eplb {

// Whether the sums of one rank fit into a staging of that many bytes, as Sum needs it: alike on all
// ranks of the lane. errors: ResourceExhausted, with both.
absl::Status CheckSquaresFit(const Topology& topology, std::span<const ReplicaTensor> tensors,
                             int64_t staging_bytes);

// Keeps its buffers from one call to the next. Threads: one caller. It goes before the carrier.
class ExpertSquareSums {
 public:
  // [L * E]: of each expert the sum of squares over its rows at the primary, tensor after tensor in
  // their order, in float64; 0 in layers without tensors. Equal to the bit on all ranks of the
  // lane, which get each other's sums by the transport: layers * slots of a GPU * 8 bytes to every
  // other rank. errors: as RowCarrier's. REQUIRES: CheckSquaresFit is OK.
  absl::StatusOr<std::vector<double>> Sum(std::span<const ReplicaTensor> tensors,
                                          const LaneCall& call);

 private:
  absl::Status Reserve(size_t num_doubles, size_t num_arriving, cuda::RowQueue& queue);
  // What every rank has, from `mine`: [G][mine.size()].
  absl::StatusOr<std::vector<double>> Gather(std::span<const double> mine, const LaneCall& call);

  cuda::RowBuffer sent_;     // where the transport sends from
  cuda::RowBuffer leaving_;  // host memory, before it is there
  cuda::RowBuffer arrived_;  // host memory
};

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_EXPERT_SQUARES_H_
