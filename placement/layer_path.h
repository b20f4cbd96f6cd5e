// The way from one placement of a layer to another, in steps of a slot or two that leave no expert
// without a slot: what a boundary that must be short takes a part of.
#ifndef EPLB_PLACEMENT_LAYER_PATH_H_
#define EPLB_PLACEMENT_LAYER_PATH_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "placement/placement.h"

namespace eplb {

// Threads: immutable.
class LayerPath {
 public:
  // One layer of two placements of one topology. A slot whose expert has another replica is
  // overwritten by itself; where no such slot is left, two slots exchange until the first of them
  // holds what it should. An exchange may bring an expert to a slot that it only passes through.
  // With slots of unusable GPUs, -1, there is one step. cost: O(S).
  LayerPath(LayerPlacement before, LayerPlacement after, int32_t num_experts);

  size_t num_steps() const { return ends_.size(); }
  // Slots that step `step` writes. REQUIRES: step < num_steps().
  std::vector<int32_t> SlotsOf(size_t step) const;
  // The layer once the first `steps` are done: `before` at 0, `after` at num_steps(). Of an expert
  // that has moved, replicas where they stay come first, in the order of `after`. cost: O(S).
  LayerPlacement At(size_t steps) const;

 private:
  struct Change {
    int32_t slot = 0;
    int32_t expert = 0;  // that it holds from then on
  };
  void Write(int32_t slot, int32_t expert);
  void OverwriteReplicas();
  void Exchange();

  const LayerPlacement before_;
  const LayerPlacement after_;
  std::vector<int32_t> now_;                 // while the path is made: [S]
  std::vector<int32_t> count_;               // of it: [E]
  std::vector<std::vector<int32_t>> wrong_;  // by expert: slots that it has to leave
  std::vector<Change> changes_;
  std::vector<size_t> ends_;  // by step, into changes_
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_LAYER_PATH_H_
