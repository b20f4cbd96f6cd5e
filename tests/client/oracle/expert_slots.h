// The memory of one rank: everything that belongs to the experts in its slots, and its description
// for the client.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/client.h"
#include "tests/client/oracle/tiny_moe.h"

namespace eplb {

// The fp32 tensors lie one beside the other, slot by slot, as a fused optimizer keeps them: their
// rows are strided. The weights and the numbers of updates are dense. The gains are derived.
class ExpertSlots {
 public:
  explicit ExpertSlots(int32_t num_local_slots);
  ExpertSlots(const ExpertSlots&) = delete;
  ExpertSlots& operator=(const ExpertSlots&) = delete;

  ExpertRow At(int32_t layer, int32_t local_slot);
  // Puts the experts of `placement` before step 0 into the slots.
  void Initialise(const PlacementView& placement);
  // All but the tensors called `forgotten`, e.g. "second_moment".
  std::vector<ExpertTensorView> Tensors(std::string_view forgotten);
  // Every byte of a slot.
  std::string Bytes(int32_t layer, int32_t local_slot);
  // A digest of what the expert makes of a fixed token, forward, backward and update. Its own bytes
  // stay as they are.
  uint64_t TrainACopy(int32_t layer, int32_t local_slot);

 private:
  struct Layer {
    std::vector<uint16_t> first_weight;   // [slots, matrix]
    std::vector<uint16_t> second_weight;  // [slots, matrix]
    std::vector<float> optimizer;         // [slots, 3, parameters]: master and both moments
    std::vector<int64_t> num_updates;     // [slots]
    std::vector<float> gain;              // [slots]
  };
  ExpertTensorView Gain(int32_t layer);

  int32_t num_local_slots_;
  std::vector<Layer> layers_;
};

// The expert in a local slot.
int32_t ExpertIn(const PlacementView& placement, int32_t layer, int32_t local_slot);

}  // namespace eplb
