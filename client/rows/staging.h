// Offsets of the rows of a migration plan in the staging of their destinations. Every rank computes
// the same, so that a sender has the offsets of its receivers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/expert_tensors.h"
#include "placement/migration_plan.h"

namespace eplb {

// Alignment of rows in staging, in bytes.
inline constexpr int64_t kStagingAlignment = 64;

int64_t RoundUpToStaging(int64_t bytes);

// The tensors of each layer, by name.
class TensorsByLayer {
 public:
  // REQUIRES: CheckTensors returned OK; `tensors` outlives this.
  TensorsByLayer(int32_t num_layers, std::span<const ExpertTensor> tensors);
  std::span<const ExpertTensor* const> Of(LayerId layer) const { return layers_[layer.value]; }
  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }

 private:
  std::vector<std::vector<const ExpertTensor*>> layers_;
};

// One tensor's row of one transfer.
struct StagedRow {
  const Transfer* transfer = nullptr;
  const ExpertTensor* tensor = nullptr;
  int64_t offset = 0;  // in the destination's staging
  int32_t row = 0;     // number of the row at its destination, for the transport
};

struct StagingLayout {
  std::vector<StagedRow> rows;      // rows of `gpu` (sent, received, copied), in the plan's order
  std::vector<int64_t> used_bytes;  // [G], staging that each GPU needs
};

// The rows of each destination follow plan.transfers, then plan.local; within a transfer the
// tensors follow their names: weights if it has weight slots, state if it has state slots.
// errors: InvalidArgument if the plan does not fit the topology: layer, GPU or slot.
// cost: O(transfers * tensors of a layer). The plan must outlive the result.
absl::StatusOr<StagingLayout> LayOutStaging(const MigrationPlan& plan, const Topology& topology,
                                            const TensorsByLayer& tensors, GpuId gpu);

}  // namespace eplb
