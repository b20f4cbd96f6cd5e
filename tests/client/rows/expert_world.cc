// Fills and compares expert memory byte by byte.
#include "tests/client/rows/expert_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {

ExpertMemory::ExpertMemory(const Topology& topology, GpuId gpu, std::vector<TensorShape> shapes,
                           MakeQueue make_queue)
    : topology_(topology), gpu_(gpu), shapes_(std::move(shapes)), memory_(make_queue) {
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (const TensorShape& shape : shapes_) {
      const std::span<std::byte> buffer = buffers_.emplace_back(memory_.Put(
          std::vector(static_cast<size_t>(shape.row_stride * topology.SlotsOf(gpu)), kPadding)));
      tensors_.push_back({.name = absl::StrCat("layers.", layer, ".", shape.name),
                          .layer = LayerId{layer},
                          .role = shape.role,
                          .base = buffer.data(),
                          .num_rows = topology.SlotsOf(gpu),
                          .row_bytes = shape.row_bytes,
                          .row_stride = shape.row_stride});
    }
  }
}

std::vector<std::vector<std::byte>> ExpertMemory::Read() {
  std::vector<std::vector<std::byte>> all;
  for (const std::span<std::byte> buffer : buffers_) all.push_back(memory_.Read(buffer));
  return all;
}

template <class Visitor>
void ExpertMemory::Visit(const Placement& placement, StateResidency residency,
                         const Visitor& visitor) const {
  const int32_t first = topology_.FirstSlotOf(gpu_).value;
  for (int32_t layer = 0; layer < topology_.num_layers(); ++layer) {
    for (size_t shape = 0; shape < shapes_.size(); ++shape) {
      const size_t buffer = layer * shapes_.size() + shape;
      for (int32_t row = 0; row < topology_.SlotsOf(gpu_); ++row) {
        const SlotId slot{first + row};
        const ExpertId expert = placement.ExpertIn(LayerId{layer}, slot);
        const bool vouched = shapes_[shape].role == TensorRole::kWeight ||
                             residency == StateResidency::kEveryReplica ||
                             placement.PrimaryOf(LayerId{layer}, expert) == slot;
        for (int64_t i = 0; i < shapes_[shape].row_bytes; ++i) {
          visitor(buffer, row * shapes_[shape].row_stride + i,
                  ExpertByte(layer, expert.value, shape, i), vouched);
        }
      }
    }
  }
}

void ExpertMemory::Fill(const Placement& placement, StateResidency residency) {
  auto bytes = Read();
  Visit(placement, residency, [&](size_t buffer, int64_t at, std::byte expected, bool vouched) {
    bytes[buffer][at] = vouched ? expected : ~expected;
  });
  for (size_t b = 0; b < buffers_.size(); ++b) memory_.Write(buffers_[b], bytes[b]);
}

int64_t ExpertMemory::CountWrong(const Placement& placement, StateResidency residency) {
  const auto bytes = Read();
  int64_t wrong = 0;
  Visit(placement, residency, [&](size_t buffer, int64_t at, std::byte expected, bool vouched) {
    wrong += vouched && bytes[buffer][at] != expected ? 1 : 0;
  });
  for (size_t b = 0; b < bytes.size(); ++b) {
    const TensorShape& shape = shapes_[b % shapes_.size()];
    for (auto row = bytes[b].begin(); row != bytes[b].end(); row += shape.row_stride) {
      wrong += shape.row_stride - shape.row_bytes -
               std::count(row + shape.row_bytes, row + shape.row_stride, kPadding);
    }
  }
  return wrong;
}

}  // namespace eplb
