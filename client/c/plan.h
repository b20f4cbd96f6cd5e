// The state of an eplb_plan.
#pragma once

#include <optional>
#include <vector>

#include "placement/evaluate.h"
#include "placement/placement.h"
#include "placement/topology.h"

// The struct of the ABI is in no namespace. Threads: immutable.
// NOLINTNEXTLINE(readability-identifier-naming)
struct eplb_plan {
  eplb::Placement placement;
  std::optional<eplb::Evaluation> evaluation;  // absent if the input was no load
  std::vector<eplb::Evaluation> scenarios;     // [K]; empty if not made from scenarios
};

namespace eplb::c {

// Given: the options of a plan or a replay.
template <class Given>
TopologyOptions ShapeOf(const Given& given) {
  return {.num_layers = given.num_layers,
          .num_experts = given.num_experts,
          .num_slots = given.num_slots,
          .num_gpus = given.num_gpus,
          .num_nodes = given.num_nodes,
          .num_groups = given.num_groups};
}

}  // namespace eplb::c
