#include "tests/client/session/proposals.h"

#include <memory>
#include <utility>

namespace eplb {

RunningPlacement Running(int64_t version, const Placement& placement) {
  return {.version = version,
          .digest = DigestOf(placement),
          .placement = std::make_shared<const Placement>(placement)};
}

Topology SmallTopology() {
  return Topology::Make({.num_layers = 3, .num_experts = 4, .num_slots = 4, .num_gpus = 2}).value();
}

Placement Swapped(const Placement& placement, int32_t layer, int32_t slot, int32_t other_slot) {
  LayerPlacement changed = placement.Layer(LayerId{layer});
  const auto a = static_cast<size_t>(slot);
  const auto b = static_cast<size_t>(other_slot);
  std::swap(changed.physical_to_logical[a], changed.physical_to_logical[b]);
  std::swap(changed.replica_rank[a], changed.replica_rank[b]);
  return placement.WithLayers({&changed, 1}).value();
}

wire::Propose ProposeTo(const RunningPlacement& running, const Placement& target, int64_t version,
                        int64_t term) {
  wire::Propose propose;
  propose.term = term;
  propose.version = version;
  propose.base_version = running.version;
  propose.base_digest = running.digest;
  propose.digest = DigestOf(target);
  for (int32_t layer = 0; layer < target.topology().num_layers(); ++layer) {
    LayerPlacement next = target.Layer(LayerId{layer});
    if (next == running.placement->Layer(LayerId{layer})) continue;
    propose.layers.push_back(std::move(next));
  }
  propose.reason = "peak load falls by 12 %";
  propose.decided_first_step = 100;
  propose.decided_last_step = 199;
  propose.decision = 5;
  propose.policy = "incremental";
  propose.asked_by = "uid 1000 (alice)";
  return propose;
}

}  // namespace eplb
