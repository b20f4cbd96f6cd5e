// Real expert memory of one rank: bf16 weights, fp32 master weights and two Adam moments for every
// local slot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/client.h"
#include "deploy/examples/replay_trainer/device_mirror.h"

namespace eplb {

struct ExpertStateShape {
  int32_t num_layers = 0;
  int32_t num_local_slots = 0;
  int32_t num_parameters = 0;  // parameters of one expert
};

// Every expert's state after step s is a fixed function of (layer, expert, s): gradients are drawn
// from a hash. So a stale, lost, swapped or torn byte is found by computing the state again from
// the beginning. It is computed on the CPU; on a GPU the tensors are a copy of it. Threads: one
// caller. memory: layers * slots * parameters * 14 bytes, of the host and of the GPU.
class ExpertState {
 public:
  explicit ExpertState(const ExpertStateShape& shape);

  // Moves the tensors to memory of a device. errors: as DeviceMirror::Make.
  absl::Status PutOnDevice(int32_t device);

  // Returns the tensors that the client migrates. Their memory stays in place while this object
  // lives.
  std::vector<ExpertTensorView> Tensors();

  // Sets the local slots to the state of their experts before step 0.
  void Initialise(const PlacementView& placement);
  // Makes one Adam step on every local slot.
  void Update(int64_t step, const PlacementView& placement);
  // Copies the computed state to the tensors, in order with stream().
  absl::Status Publish();
  // Copies the tensors back, so that the next update starts from what the client wrote.
  absl::Status Fetch();
  // The cudaStream_t that the tensors are written on; null in host memory.
  void* stream() const { return mirror_ == nullptr ? nullptr : mirror_->stream(); }

  // Fetches, computes the state of every local slot after `last_step` again (-1: before step 0) and
  // compares every byte. returns: bytes compared. errors: DataLoss naming layer, slot, expert and
  // tensor of the first difference. cost: O(layers * slots * parameters * steps).
  absl::StatusOr<int64_t> Verify(int64_t last_step, const PlacementView& placement);

 private:
  struct Expert {
    std::span<uint16_t> weight;  // bf16
    std::span<float> master;
    std::span<float> first_moment;
    std::span<float> second_moment;
  };
  size_t RowBytes(size_t block) const;
  // The bytes of one expert in a block.
  std::span<std::byte> Row(size_t block, int32_t layer, int32_t local_slot);
  Expert At(int32_t layer, int32_t local_slot);
  static void InitialiseExpert(int32_t layer, int32_t expert, const Expert& memory);
  static void UpdateExpert(int32_t layer, int32_t expert, int64_t step, const Expert& memory);

  ExpertStateShape shape_;
  // Weights, master weights, first and second moments, each [layers, slots, parameters].
  std::array<std::vector<std::byte>, 4> blocks_;
  std::unique_ptr<DeviceMirror> mirror_;  // mirror of the blocks; null in host memory
};

}  // namespace eplb
