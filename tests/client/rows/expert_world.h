// Ranks with real expert memory whose bytes say what they should be: value(layer, expert, tensor,
// position), so that every slot can be checked against a placement.
#ifndef EPLB_TESTS_CLIENT_ROWS_EXPERT_WORLD_H_
#define EPLB_TESTS_CLIENT_ROWS_EXPERT_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/rows/executor.h"
#include "placement/placement.h"
#include "tests/client/rows/queue_memory.h"

namespace eplb {

struct TensorShape {
  std::string name;
  TensorRole role = TensorRole::kWeight;
  int64_t row_bytes = 0;
  int64_t row_stride = 0;
};

inline constexpr std::byte kPadding{0xDD};  // between rows: nobody may write it

inline std::byte ExpertByte(int32_t layer, int32_t expert, size_t shape, int64_t position) {
  const uint64_t mixed =
      (uint64_t(layer) * 131 + uint64_t(expert) * 31 + shape * 7 + 1) * 0x9E3779B97F4A7C15ULL +
      uint64_t(position) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::byte>(mixed >> 32);
}

// Any valid placement: every expert at least once, the rest and the order of replicas at random.
inline Placement RandomPlacement(std::mt19937& random, const Topology& topology) {
  const int32_t slots = topology.num_slots();
  const int32_t experts = topology.num_experts();
  IndexMatrix map(topology.num_layers(), slots);
  IndexMatrix ranks(topology.num_layers(), slots);
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<int32_t> row(slots);
    for (int32_t s = 0; s < slots; ++s) {
      row[s] = s < experts ? s : static_cast<int32_t>(random() % experts);
    }
    std::shuffle(row.begin(), row.end(), random);
    std::vector<int32_t> order(slots);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int32_t> count(experts, 0);
    for (const int32_t s : order) {
      map(layer, s) = row[s];
      ranks(layer, s) = count[row[s]]++;
    }
  }
  return *Placement::FromSlotsAndRanks(topology, map, ranks);
}

// The memory of one GPU.
class ExpertMemory {
 public:
  // make_queue: of the memory that the tensors lie in; null: the host's.
  ExpertMemory(const Topology& topology, GpuId gpu, std::vector<TensorShape> shapes,
               MakeQueue make_queue = nullptr)
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

  const std::vector<ExpertTensor>& tensors() const { return tensors_; }
  std::vector<std::vector<std::byte>> Read() {
    std::vector<std::vector<std::byte>> all;
    for (const std::span<std::byte> buffer : buffers_) all.push_back(memory_.Read(buffer));
    return all;
  }

  // Writes what `placement` says; state that no residency vouches for gets other bytes.
  void Fill(const Placement& placement, StateResidency residency) {
    auto bytes = Read();
    Visit(placement, residency, [&](size_t buffer, int64_t at, std::byte expected, bool vouched) {
      bytes[buffer][at] = vouched ? expected : ~expected;
    });
    for (size_t b = 0; b < buffers_.size(); ++b) memory_.Write(buffers_[b], bytes[b]);
  }

  // Bytes that differ from what `placement` says, padding included.
  int64_t CountWrong(const Placement& placement, StateResidency residency) {
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

 private:
  template <class Visitor>
  void Visit(const Placement& placement, StateResidency residency, const Visitor& visitor) const {
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

  const Topology topology_;
  const GpuId gpu_;
  const std::vector<TensorShape> shapes_;
  QueueMemory memory_;
  std::vector<std::span<std::byte>> buffers_;
  std::vector<ExpertTensor> tensors_;
};

}  // namespace eplb

#endif  // EPLB_TESTS_CLIENT_ROWS_EXPERT_WORLD_H_
