// Sums of squares in which an expert counts once, however many replicas it has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/rows/replica_rows.h"
#include "cuda/row_queue.h"
#include "placement/topology.h"

namespace eplb {

// Checks that the sums of one rank fit into a staging of `staging_bytes`, which Sum needs. The
// result is equal on all ranks of the EP group. errors: ResourceExhausted, with both sizes.
absl::Status CheckSquaresFit(const Topology& topology, std::span<const ReplicaTensor> tensors,
                             int64_t staging_bytes);

// Keeps its buffers between calls. Threads: one caller. It must be destroyed before the carrier.
class ExpertSquareSums {
 public:
  // Allocates the memory that Sum needs for up to num_layers layers, because an allocation inside a
  // step would wait for the device. It takes layers * slots of a GPU * 8 bytes on the device and as
  // much pinned memory. Every other rank takes pinned memory too, at most the size of staging.
  // errors: ResourceExhausted.
  absl::Status Reserve(const Topology& topology, int64_t num_layers, int64_t staging_bytes,
                       cuda::RowQueue& queue);
  // Returns [L * E]: each expert's sum of squares over its rows at the primary, in the order of the
  // tensors, in float64; 0 in layers without tensors. The result is equal to the bit on all ranks
  // of the EP group, which exchange their sums: layers * slots of a GPU * 8 bytes to every other
  // rank. Allocates memory that was not reserved. errors: see RowCarrier. REQUIRES: CheckSquaresFit
  // is OK.
  absl::StatusOr<std::vector<double>> Sum(std::span<const ReplicaTensor> tensors,
                                          const EpGroupCall& call);

 private:
  absl::Status Grow(int64_t leaving_bytes, int64_t arriving_bytes, cuda::RowQueue& queue);
  // Returns `mine` of all ranks: [G][mine.size()].
  absl::StatusOr<std::vector<double>> Gather(std::span<const double> mine, const EpGroupCall& call);

  cuda::RowBuffer sent_;     // memory from which the transport sends
  cuda::RowBuffer leaving_;  // host memory that is copied to sent_
  cuda::RowBuffer arrived_;  // host memory
};

}  // namespace eplb
