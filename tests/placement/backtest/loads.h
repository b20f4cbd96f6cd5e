// Windows of a small job for the tests of the back-test: 2 layers of 16 experts in 20 slots on 4
// GPUs.
#pragma once

#include <cstdint>
#include <memory>

#include "placement/backtest/candidate.h"
#include "placement/decision/cost.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

inline Placement StartOfJob() {
  return Placement::Static(
      Topology::Make({.num_layers = 2, .num_experts = 16, .num_slots = 20, .num_gpus = 4}).value());
}

// Ten steps in which the expert `hot` and the three after it get most tokens.
inline SeenWindow HotWindow(int32_t hot, int32_t num_layers = 2, int32_t num_experts = 16) {
  LoadMatrix counts = LoadMatrix::Constant(num_layers, num_experts, 100);
  for (int32_t i = 0; i < 4; ++i) counts.col((hot + i) % num_experts) = 1500 + 100 * i;
  return {std::make_shared<const Load>(Load::FromCounts(counts).value()), 10};
}

// Moving one expert into a GPU of each layer takes `seconds`. A token takes 0.1 ms.
inline Costs PricedAt(double seconds) {
  Costs costs{.token_seconds = 1e-4};
  costs.expert.weight_bytes = 1'000'000;
  costs.intra_bytes_per_s = 2e6 / seconds;
  return costs;
}

}  // namespace eplb
