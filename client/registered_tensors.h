// Registered tensors, divided by how they are treated, and checked before ranks compare them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/rows/derived_tensors.h"
#include "client/rows/executor.h"
#include "client/rows/row_memory.h"
#include "client/start.h"
#include "placement/rank_grid.h"

namespace eplb {

struct RegisteredTensors {
  std::vector<ExpertTensor> moved;
  std::vector<DerivedTensor> derived;
};

// errors: InvalidArgument naming the tensor: a derived one that has rows, or a moved one that has a
// rebuild.
absl::StatusOr<RegisteredTensors> SortByRole(std::span<const ExpertTensorView> views);

// Needs and description of one rank's tensors. Weights and derived tensors are the same on all
// ranks of a pipeline stage. State is the same inside an EP group: an optimizer that is sharded
// within each expert over EP groups registers each rank's piece, and rows move only inside an EP
// group.
struct TensorNeeds {
  ExpertBytes bytes;
  int32_t staging_layers = 0;
  int64_t staging_bytes = 0;
  RowMemory memory;
  StartFields compared;     // equal in a pipeline stage
  StartFields of_ep_group;  // equal in an EP group
};
// errors: as CheckTensors, CheckDerived, StagingBytes and FindMemory.
absl::StatusOr<TensorNeeds> NeedsOf(const RegisteredTensors& tensors,
                                    const ExecutorOptions& options);

// Needs of a job, the largest of any EP group and the fewest layers, so that all ranks plan, price
// and allocate alike.
struct JobNeeds {
  ExpertBytes bytes;
  int32_t staging_layers = 0;  // layers that fit into the staging of each rank
  int64_t staging_bytes = 0;
  RowMemory memory;                              // memory of this rank's rows
  std::vector<int32_t> pipeline_stage_of_layer;  // [num_layers], the one that registered it
};
// of_ep_group: of all ranks, in rank order, whose `compared` were equal. errors: FailedPrecondition
// naming field, ranks and both values, for the first difference inside an EP group; naming the
// layer and ranks when no pipeline stage registered it, or two did.
absl::StatusOr<JobNeeds> JoinEpGroups(const TensorNeeds& mine,
                                      std::span<const StartFields> of_ep_group,
                                      const RankGrid& grid, int32_t num_layers);

}  // namespace eplb
