// Ranks with real expert memory. Each byte is a function of layer, expert, tensor and position, so
// that every slot can be checked against a placement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/rows/executor.h"
#include "placement/placement.h"
#include "tests/client/rows/queue_memory.h"
#include "tests/placement/random_placement.h"

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
