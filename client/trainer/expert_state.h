// Real expert memory of one rank: bf16 weights, fp32 master weights and two Adam moments for every
// local slot.
#ifndef EPLB_CLIENT_TRAINER_EXPERT_STATE_H_
#define EPLB_CLIENT_TRAINER_EXPERT_STATE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "client/client.h"

namespace eplb {

struct ExpertStateShape {
  int32_t num_layers = 0;
  int32_t num_local_slots = 0;
  int32_t num_parameters = 0;  // of one expert
};

// Every expert's state after step s is a fixed function of (layer, expert, s): gradients are drawn
// from a hash. So a stale, lost, swapped or torn byte is found by computing the state again from
// the beginning. Threads: one caller. memory: layers * slots * parameters * 14 bytes.
class ExpertState {
 public:
  explicit ExpertState(const ExpertStateShape& shape);

  // What the client migrates. The memory stays where it is for the life of this object.
  std::vector<ExpertTensorView> Tensors();

  // The state before step 0 of the experts that `placement` puts into the local slots.
  void Initialise(const PlacementView& placement);
  // One Adam step on every local slot.
  void Update(int64_t step, const PlacementView& placement);

  // Computes the state of every local slot after `last_step` again (-1: before step 0) and compares
  // every byte. returns: bytes compared. errors: DataLoss naming layer, slot, expert and tensor of
  // the first difference. cost: O(layers * slots * parameters * steps).
  absl::StatusOr<int64_t> Verify(int64_t last_step, const PlacementView& placement) const;

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
};

}  // namespace eplb

#endif  // EPLB_CLIENT_TRAINER_EXPERT_STATE_H_
