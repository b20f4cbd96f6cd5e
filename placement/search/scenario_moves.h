// Moves an incumbent layout to one that serves several loads better, by copies that pay.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/search/domain.h"
#include "placement/search/scenario_loads.h"

namespace eplb {

struct ScenarioMoves {
  std::span<const int32_t> incumbent;  // [S], valid on the domain
  std::span<const int32_t> other;      // [S], a candidate besides
  int32_t copies_per_gpu = 0;          // at most, into each GPU
  double price_of_all_slots = 0;       // in objective
  int64_t proposals = 0;               // length of the walk from the incumbent
  const std::atomic<bool>* abandoned = nullptr;
};

// Returns the layout with the least objective plus price of its copies, of the incumbent, what a
// walk from there leads to, and `other` where the copies are allowed. threads: safe. Deterministic.
// cost: that of the walk.
std::vector<int32_t> ChooseForScenarios(const Domain& domain, const ScenarioLoads& loads,
                                        const ScenarioMoves& moves);

}  // namespace eplb
