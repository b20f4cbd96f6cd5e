// The tensors that move with a rank's experts, and the checks before they are registered.
#pragma once

#include <cstddef>
#include <cstdint>
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

  std::span<std::byte> Row(int32_t local_slot) const {
    return {static_cast<std::byte*>(base) + local_slot * row_stride,
            static_cast<size_t>(row_bytes)};
  }
};

// Describes the properties of the tensors on which the ranks must agree; the start compares the
// text.
std::string DescribeTensors(std::span<const ExpertTensor> tensors);

// kSome: the layers of a pipeline stage, perhaps none.
enum class LayersHeld { kAll, kSome };

// Bytes of one expert of one layer by role, the same in every layer.
struct ExpertBytes {
  int64_t weight = 0;
  int64_t state = 0;
};
// errors: InvalidArgument naming the tensor. Layers: outside the topology, without the tensors of
// the other layers, with other sizes. Rows: not as many as the GPU's slots, a stride of 0 or below
// the row's bytes, bytes shared with another tensor. Also a name given twice, and a null base.
absl::StatusOr<ExpertBytes> CheckTensors(const Topology& topology, GpuId gpu,
                                         std::span<const ExpertTensor> tensors,
                                         LayersHeld held = LayersHeld::kAll);
// Returns the layers that have tensors, rising.
std::vector<int32_t> LayersOf(std::span<const ExpertTensor> tensors);
// Checks one tensor by itself.
absl::Status CheckTensor(const Topology& topology, GpuId gpu, const ExpertTensor& tensor);
// Returns InvalidArgument: "tensor "NAME": why".
absl::Status TensorError(const std::string& name, const std::string& why);

// Checks that no byte is in two rows, because a row that is moved twice, or with another expert's
// bytes in it, corrupts an expert that stayed. Rows of several tensors may alternate in memory,
// like those of a fused buffer. errors: InvalidArgument naming both tensors and local slots, for
// the lowest shared byte. REQUIRES: CheckTensor of each tensor is OK. cost: O(n log n) for n rows.
absl::Status CheckRowsApart(std::span<const ExpertTensor> tensors);

}  // namespace eplb
