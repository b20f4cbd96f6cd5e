// Position of each rank of a job: its pipeline stage, its EP group and its GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/ids.h"

namespace eplb {

struct RankGridOptions {
  int32_t world_size = 1;
  int32_t num_gpus = 1;                // GPUs of an EP group
  int32_t pipeline_parallel_size = 1;  // each holds layers of its own
  int32_t expert_tensor_parallel = 1;  // EP groups that share every expert, and see the same tokens

  friend bool operator==(const RankGridOptions&, const RankGridOptions&) = default;
};

// Ranks are numbered as Megatron does (tp-ep-dp-pp): expert-tensor-parallel ranks fastest, then the
// GPUs of an EP group, then data-parallel copies, pipeline stages slowest. Without expert-tensor
// parallelism an EP group is num_gpus consecutive ranks; a pipeline stage always is a block of
// them. EpGroups are numbered through all pipeline stages; those that see the same tokens stand
// together.
class RankGrid {
 public:
  // errors: InvalidArgument beginning with the field at fault.
  static absl::StatusOr<RankGrid> Make(const RankGridOptions& options);

  const RankGridOptions& options() const { return options_; }
  int32_t world_size() const { return options_.world_size; }
  int32_t num_gpus() const { return options_.num_gpus; }
  int32_t pipeline_parallel_size() const { return options_.pipeline_parallel_size; }
  int32_t expert_tensor_parallel() const { return options_.expert_tensor_parallel; }
  // EP groups of all stages.
  int32_t num_ep_groups() const { return options_.world_size / options_.num_gpus; }
  int32_t ranks_per_pipeline_stage() const {
    return options_.world_size / options_.pipeline_parallel_size;
  }
  // EpGroups of a pipeline stage among which the tokens are split.
  int32_t num_token_groups() const {
    return ranks_per_pipeline_stage() / options_.num_gpus / options_.expert_tensor_parallel;
  }

  // REQUIRES of all that follow: a rank in 0..world_size-1, an EP group in 0..num_ep_groups-1.
  int32_t PipelineStageOf(RankId rank) const { return rank.value / ranks_per_pipeline_stage(); }
  int32_t EpGroupOf(RankId rank) const;
  GpuId GpuOf(RankId rank) const;
  RankId RankOf(int32_t ep_group, GpuId gpu) const;
  std::vector<RankId> RanksOf(int32_t ep_group) const;  // [num_gpus], rising
  // True if the counts of this rank are summed. Of the ranks that share tokens only one counts
  // them.
  bool CountsTokens(RankId rank) const { return rank.value % options_.expert_tensor_parallel == 0; }

  friend bool operator==(const RankGrid&, const RankGrid&) = default;

 private:
  explicit RankGrid(const RankGridOptions& options) : options_(options) {}

  RankGridOptions options_;
};

}  // namespace eplb
