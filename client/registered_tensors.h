// What a trainer registers, taken apart by how it is treated and checked before ranks compare it.
#ifndef EPLB_CLIENT_REGISTERED_TENSORS_H_
#define EPLB_CLIENT_REGISTERED_TENSORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/migration/derived_tensors.h"
#include "client/migration/executor.h"
#include "client/migration/row_memory.h"
#include "client/start.h"

namespace eplb {

struct RegisteredTensors {
  std::vector<ExpertTensor> moved;
  std::vector<DerivedTensor> derived;
};

// errors: InvalidArgument naming the tensor: a derived one that has rows, or a moved one that has a
// rebuild.
absl::StatusOr<RegisteredTensors> SortByRole(std::span<const ExpertTensorView> views);

// What the tensors of one rank need, and what they are told to be. Weights and derived tensors are
// the same on all ranks. State is so inside a lane: an optimizer that is sharded within each expert
// over lanes registers each rank's piece, and rows move only inside a lane.
struct TensorNeeds {
  ExpertBytes bytes;
  int64_t staging_bytes = 0;
  RowMemory memory;
  StartFields compared;  // equal on all ranks
  StartFields of_lane;   // equal in a lane
};
// errors: as CheckTensors, CheckDerived, StagingBytes and FindMemory.
absl::StatusOr<TensorNeeds> NeedsOf(const RegisteredTensors& tensors,
                                    const ExecutorOptions& options);

// What a job needs, so that all ranks plan, price and allocate alike: the most of any lane.
struct JobNeeds {
  ExpertBytes bytes;
  int64_t staging_bytes = 0;
  RowMemory memory;  // of this rank
};
// of_lane: of all ranks, in rank order. errors: FailedPrecondition naming lane, field, ranks and
// both values, for the first difference inside a lane.
absl::StatusOr<JobNeeds> JoinLanes(const TensorNeeds& mine, std::span<const StartFields> of_lane,
                                   int32_t ranks_per_lane);

}  // namespace eplb

#endif  // EPLB_CLIENT_REGISTERED_TENSORS_H_
