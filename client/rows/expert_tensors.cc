// Checks and describes the tensors that a trainer registers.
#include "client/rows/expert_tensors.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

struct RowSpan {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  const ExpertTensor* tensor = nullptr;
  int32_t local_slot = 0;
};

constexpr char kPage[] = " (docs/registering-tensors.md)";

const char* RoleName(TensorRole role) { return role == TensorRole::kWeight ? "weight" : "state"; }

// Tensors of a layer without their names, which must be equal in all layers.
using Shape = std::multiset<std::pair<TensorRole, int64_t>>;

absl::Status CheckEveryLayer(const std::map<int32_t, Shape>& shapes, const Topology& topology) {
  const Shape& first = shapes.begin()->second;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const auto found = shapes.find(layer);
    if (found == shapes.end()) {
      return InvalidInput("layer ", layer, " has no expert tensors, layer ", shapes.begin()->first,
                          " has ", first.size());
    }
  }
  return absl::OkStatus();
}

// Each tensor must have a counterpart of its role and size in every other layer.
absl::Status CheckCounterparts(const std::map<int32_t, Shape>& shapes,
                               std::span<const ExpertTensor> tensors) {
  for (const ExpertTensor& tensor : tensors) {
    const std::pair<TensorRole, int64_t> kind = {tensor.role, tensor.row_bytes};
    const size_t here = shapes.at(tensor.layer.value).count(kind);
    for (const auto& [layer, shape] : shapes) {
      if (shape.count(kind) >= here) continue;
      return TensorError(tensor.name,
                         absl::StrCat("a ", RoleName(tensor.role), " of ", tensor.row_bytes,
                                      " bytes a row in layer ", tensor.layer.value,
                                      " has no counterpart in layer ", layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TensorError(const std::string& name, const std::string& why) {
  return InvalidInput("tensor \"", name, "\": ", why);
}

absl::Status CheckRowsApart(std::span<const ExpertTensor> tensors) {
  std::vector<RowSpan> rows;
  for (const ExpertTensor& tensor : tensors) {
    const auto base = reinterpret_cast<uintptr_t>(tensor.base);
    for (int32_t slot = 0; slot < tensor.num_rows; ++slot) {
      const uintptr_t begin = base + static_cast<uintptr_t>(slot * tensor.row_stride);
      rows.push_back({.begin = begin,
                      .end = begin + static_cast<uintptr_t>(tensor.row_bytes),
                      .tensor = &tensor,
                      .local_slot = slot});
    }
  }
  std::ranges::sort(rows, [](const RowSpan& a, const RowSpan& b) {
    return std::tie(a.begin, a.tensor->name) < std::tie(b.begin, b.tensor->name);
  });
  // Rows before the first shared byte end in the order in which they begin.
  for (size_t i = 1; i < rows.size(); ++i) {
    const RowSpan& first = rows[i - 1];
    const RowSpan& second = rows[i];
    if (second.begin >= first.end) continue;
    return InvalidInput(
        "tensor \"", second.tensor->name, "\": local slot ", second.local_slot, " shares ",
        std::min(first.end, second.end) - second.begin, " bytes with local slot ", first.local_slot,
        " of \"", first.tensor->name,
        "\"; each byte of an expert is registered once (docs/registering-tensors.md)");
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const Topology& topology, GpuId gpu, const ExpertTensor& tensor) {
  if (tensor.layer.value < 0 || tensor.layer.value >= topology.num_layers()) {
    return TensorError(tensor.name, absl::StrCat("layer ", tensor.layer.value, " is not in 0..",
                                                 topology.num_layers() - 1));
  }
  if (tensor.num_rows != topology.SlotsOf(gpu)) {
    return TensorError(tensor.name, absl::StrCat("has ", tensor.num_rows, " rows, GPU ", gpu.value,
                                                 " has ", topology.SlotsOf(gpu), " slots"));
  }
  if (tensor.row_bytes < 1) {
    return TensorError(tensor.name,
                       absl::StrCat("row_bytes is ", tensor.row_bytes, ", expected at least 1"));
  }
  if (tensor.row_stride == 0) {
    return TensorError(
        tensor.name,
        absl::StrCat(
            "row_stride is 0: a tensor that all experts share has nothing to move; leave it out",
            kPage));
  }
  if (tensor.row_stride < 0) {
    return TensorError(tensor.name, absl::StrCat("row_stride is ", tensor.row_stride));
  }
  if (tensor.row_stride < tensor.row_bytes) {
    return TensorError(tensor.name, absl::StrCat("row_stride ", tensor.row_stride,
                                                 " is below row_bytes ", tensor.row_bytes,
                                                 ": a row reaches into the next expert's, as in a "
                                                 "flat buffer that crosses their borders",
                                                 kPage));
  }
  if (tensor.row_stride > std::numeric_limits<int64_t>::max() / tensor.num_rows) {
    return TensorError(tensor.name, absl::StrCat(tensor.num_rows, " rows of row_stride ",
                                                 tensor.row_stride, " exceed 2^63 bytes"));
  }
  if (tensor.base == nullptr) return TensorError(tensor.name, "base is null");
  return absl::OkStatus();
}

std::string DescribeTensors(std::span<const ExpertTensor> tensors) {
  std::string text;
  std::vector<const ExpertTensor*> sorted;
  for (const ExpertTensor& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, [](const ExpertTensor* a, const ExpertTensor* b) {
    return std::tie(a->layer, a->name) < std::tie(b->layer, b->name);
  });
  for (const ExpertTensor* tensor : sorted) {
    absl::StrAppend(&text, "layer ", tensor->layer.value, " ", RoleName(tensor->role), " ",
                    tensor->name, " row_bytes ", tensor->row_bytes, "\n");
  }
  return text;
}

absl::StatusOr<ExpertBytes> CheckTensors(const Topology& topology, GpuId gpu,
                                         std::span<const ExpertTensor> tensors, LayersHeld held) {
  if (gpu.value < 0 || gpu.value >= topology.num_gpus()) {
    return InvalidInput("GPU ", gpu.value, " is not in 0..", topology.num_gpus() - 1);
  }
  if (tensors.empty()) {
    if (held == LayersHeld::kSome) return ExpertBytes{};
    return InvalidInput("no expert tensors are registered");
  }
  std::set<std::string> names;
  std::map<int32_t, Shape> shapes;
  for (const ExpertTensor& tensor : tensors) {
    EPLB_RETURN_IF_ERROR(CheckTensor(topology, gpu, tensor));
    if (!names.insert(tensor.name).second) return TensorError(tensor.name, "registered twice");
    shapes[tensor.layer.value].insert({tensor.role, tensor.row_bytes});
  }
  if (held == LayersHeld::kAll) EPLB_RETURN_IF_ERROR(CheckEveryLayer(shapes, topology));
  EPLB_RETURN_IF_ERROR(CheckCounterparts(shapes, tensors));
  EPLB_RETURN_IF_ERROR(CheckRowsApart(tensors));
  ExpertBytes bytes;
  for (const auto& [role, row_bytes] : shapes.begin()->second) {
    int64_t& sum = role == TensorRole::kWeight ? bytes.weight : bytes.state;
    if (row_bytes > std::numeric_limits<int64_t>::max() / 4 - sum) {
      return InvalidInput("an expert's tensors exceed 2^61 bytes");
    }
    sum += row_bytes;
  }
  return bytes;
}

std::vector<int32_t> LayersOf(std::span<const ExpertTensor> tensors) {
  std::set<int32_t> layers;
  for (const ExpertTensor& tensor : tensors) layers.insert(tensor.layer.value);
  return {layers.begin(), layers.end()};
}

}  // namespace eplb
