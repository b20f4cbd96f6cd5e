// The way from one placement of a layer to another in parts, for boundaries that must be short.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

// Every part leaves each expert in a slot. A slot whose expert has another replica is overwritten.
// Other slots exchange their experts, so that an expert may pass through slots of others on its
// way. Threads: a value, not safe. Deterministic.
class LayerPath {
 public:
  // One layer of two placements of `topology`. With a slot of an unusable GPU there is one part.
  // cost: O(S + E).
  LayerPath(LayerPlacement before, LayerPlacement after, const Topology& topology);

  bool done() const { return num_wrong_ == 0 && reordered_.empty(); }
  // Goes on as far as `rows` writes per GPU allow, but at least one step, and returns the layer at
  // that point; `after` at the end. Of an expert that has moved, the replicas that stay come first,
  // in the order of `after`. REQUIRES: !done(). cost: O(S), times the passes that find a step.
  LayerPlacement Take(int64_t rows);

 private:
  bool HasRoom(int32_t slot) const;
  bool HaveRoom(int32_t slot, int32_t other) const;
  void Write(int32_t slot, int32_t expert);
  // Returns true if it took a step. force: also without room.
  bool Overwrite(int32_t slot, bool force);
  // With a slot that has to give up the expert wanted here. Returns that slot, or -1 if it took no
  // step: where no slot has to, the slot that wants the expert held here is written first.
  int32_t Exchange(int32_t slot, bool force);
  // Takes one step if `force`, else all for which there is room. Returns true if it took one.
  bool TakeSteps(bool force);
  void Reorder(bool force);
  void FindReordered();
  LayerPlacement Now() const;

  Topology topology_;
  LayerPlacement before_;
  LayerPlacement after_;
  std::vector<int32_t> now_;                 // [S]
  std::vector<int32_t> count_;               // [E], slots of each expert in `now_`
  std::vector<std::vector<int32_t>> wrong_;  // by expert: slots of it that it has to leave
  int64_t num_wrong_ = 0;
  std::vector<int32_t> reordered_;  // experts whose replicas stay, in another order
  std::vector<bool> moved_;         // [E]
  int64_t rows_ = 0;                // writes allowed per GPU in this part
  std::vector<int64_t> written_;    // by GPU, in this part
  std::vector<bool> is_written_;    // by slot, in this part
};

}  // namespace eplb
