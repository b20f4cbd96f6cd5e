// The tensors of a rank's experts: what moves with an expert, and what is computed again after it.
#ifndef EPLB_CLIENT_ROWS_EXPERT_TENSORS_H_
#define EPLB_CLIENT_ROWS_EXPERT_TENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/migration_plan.h"

namespace eplb {

enum class TensorRole { kWeight, kState };

// One tensor of one layer: local slot i of this GPU is the `row_bytes` bytes at base + i *
// row_stride.
struct ExpertTensor {
  std::string name;  // e.g. "layers.3.w1"; unique
  LayerId layer;
  TensorRole role = TensorRole::kWeight;
  void* base = nullptr;
  int32_t num_rows = 0;  // local slots of this GPU
  int64_t row_bytes = 0;
  int64_t row_stride = 0;  // >= row_bytes
};

// What the ranks must agree on about their tensors, as text: compared in the start vote.
std::string DescribeTensors(std::span<const ExpertTensor> tensors);

// kSome: a pipeline stage's layers, perhaps none.
enum class LayersHeld { kAll, kSome };

// Bytes of one expert of one layer by role, the same in every layer. errors: InvalidArgument naming
// the tensor: a name twice, a layer outside the topology or without the tensors other layers have,
// rows other than the GPU's slots, stride 0 or below row bytes, null base, sizes that differ
// between layers, rows that share bytes with another tensor's.
struct ExpertBytes {
  int64_t weight = 0;
  int64_t state = 0;
};
absl::StatusOr<ExpertBytes> CheckTensors(const Topology& topology, GpuId gpu,
                                         std::span<const ExpertTensor> tensors,
                                         LayersHeld held = LayersHeld::kAll);
// The layers that have tensors, rising.
std::vector<int32_t> LayersOf(std::span<const ExpertTensor> tensors);
// Of one tensor by itself.
absl::Status CheckTensor(const Topology& topology, GpuId gpu, const ExpertTensor& tensor);

// Registered tensors must not share memory: a row that is moved twice, or moved with another
// expert's bytes in it, corrupts an expert that stayed.
//
// Rows of several tensors may lie between each other, as those of a fused buffer do; no byte may be
// in two of them.
// errors: InvalidArgument naming both tensors and local slots, for the lowest shared byte.
// REQUIRES: each tensor for itself is right. cost: O(n log n) for n rows.
absl::Status CheckRowsApart(std::span<const ExpertTensor> tensors);

// Per-expert tensors that are computed from others, such as cached scales: no row of theirs moves,
// a callback of the trainer computes them again where rows arrived.

struct DerivedTensor {
  std::string name;  // unique among all tensors
  LayerId layer;
  std::function<absl::Status(int32_t layer, std::span<const int32_t> local_slots)> rebuild;
};

// errors: InvalidArgument naming the tensor: a name that another one has, a layer outside the
// topology or without other tensors, no rebuild.
absl::Status CheckDerived(const Topology& topology, std::span<const ExpertTensor> tensors,
                          std::span<const DerivedTensor> derived);

// What the ranks must agree on, as DescribeTensors.
std::string DescribeDerived(std::span<const DerivedTensor> derived);

// The local slots of a GPU into which a plan writes, by layer, rising: their expert changes, or
// they become the primary and receive its state.
std::map<LayerId, std::vector<int32_t>> WrittenSlots(const MigrationPlan& plan,
                                                     const Topology& topology, GpuId gpu);

// Calls each `rebuild` whose layer has such slots: layers rising, within a layer as registered.
// errors: DataLoss naming the tensor, for the first one that fails; the others are not called.
absl::Status RebuildDerived(std::span<const DerivedTensor> derived, const MigrationPlan& plan,
                            const Topology& topology, GpuId gpu);

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_EXPERT_TENSORS_H_
