// Ranks with real expert memory. Each byte is a function of layer, expert, tensor and position, so
// that every slot can be checked against a placement.
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

inline constexpr std::byte kPadding{0xDD};  // between rows, where no write is allowed

inline std::byte ExpertByte(int32_t layer, int32_t expert, size_t shape, int64_t position) {
  const uint64_t mixed =
      (uint64_t(layer) * 131 + uint64_t(expert) * 31 + shape * 7 + 1) * 0x9E3779B97F4A7C15ULL +
      uint64_t(position) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::byte>(mixed >> 32);
}

// Returns a valid placement: every expert at least once, other slots and the order of replicas
// random.
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
  // make_queue: makes the queue of the tensors' memory; null: the host's.
  ExpertMemory(const Topology& topology, GpuId gpu, std::vector<TensorShape> shapes,
               MakeQueue make_queue = nullptr);

  const std::vector<ExpertTensor>& tensors() const { return tensors_; }
  std::vector<std::vector<std::byte>> Read();

  // Writes the bytes of `placement`; state that no residency covers gets other bytes.
  void Fill(const Placement& placement, StateResidency residency);

  // Returns the number of bytes that differ from those of `placement`, including padding.
  int64_t CountWrong(const Placement& placement, StateResidency residency);

 private:
  // Calls visitor(buffer, position, expected byte, covered) for every byte of every row.
  template <class Visitor>
  void Visit(const Placement& placement, StateResidency residency, const Visitor& visitor) const;

  const Topology topology_;
  const GpuId gpu_;
  const std::vector<TensorShape> shapes_;
  QueueMemory memory_;
  std::vector<std::span<std::byte>> buffers_;
  std::vector<ExpertTensor> tensors_;
};

}  // namespace eplb

#endif  // EPLB_TESTS_CLIENT_ROWS_EXPERT_WORLD_H_
