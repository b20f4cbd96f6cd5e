// Real expert memory of one rank: bf16 weights, fp32 master weights and two Adam moments for every
// local slot.
#ifndef EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_EXPERT_STATE_H_
#define EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_EXPERT_STATE_H_

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
  int32_t num_parameters = 0;  // of one expert
};

// Every expert's state after step s is a fixed function of (layer, expert, s): gradients are drawn
// from a hash. So a stale, lost, swapped or torn byte is found by computing the state again from
// the beginning. It is computed on the CPU; on a GPU the tensors are a copy of it. Threads: one
// caller. memory: layers * slots * parameters * 14 bytes, of the host and of the GPU.
class ExpertState {
 public:
  explicit ExpertState(const ExpertStateShape& shape);

  // From here on the tensors lie in memory of this device. errors: as DeviceMirror::Make.
  absl::Status PutOnDevice(int32_t device);

  // What the client migrates. The memory stays where it is for the life of this object.
  std::vector<ExpertTensorView> Tensors();

  // The state before step 0 of the experts that `placement` puts into the local slots.
  void Initialise(const PlacementView& placement);
  // One Adam step on every local slot.
  void Update(int64_t step, const PlacementView& placement);
  // What was initialised or updated goes into the tensors, in order with stream().
  absl::Status Publish();
  // What the client wrote into the tensors is what the next update starts from.
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
  Expert At(int32_t layer, int32_t local_slot);
  static void InitialiseExpert(int32_t layer, int32_t expert, const Expert& memory);
  static void UpdateExpert(int32_t layer, int32_t expert, int64_t step, const Expert& memory);

  ExpertStateShape shape_;
  std::vector<uint16_t> weight_;  // each [layers, slots, parameters]
  std::vector<float> master_;
  std::vector<float> first_moment_;
  std::vector<float> second_moment_;
  std::unique_ptr<DeviceMirror> mirror_;  // of these four, in this order; null in host memory
};

}  // namespace eplb

#endif  // EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_EXPERT_STATE_H_
