// Per-expert tensors that are computed from others, such as cached scales. Their rows do not move;
// a callback of the trainer computes them again where rows arrived.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "client/rows/expert_tensors.h"
#include "placement/migration_plan.h"

namespace eplb {

struct DerivedTensor {
  std::string name;  // unique among all tensors
  LayerId layer;
  std::function<absl::Status(int32_t layer, std::span<const int32_t> local_slots)> rebuild;
};

// errors: InvalidArgument naming the tensor: a name that another tensor has, a layer outside the
// topology or without other tensors, no rebuild.
absl::Status CheckDerived(const Topology& topology, std::span<const ExpertTensor> tensors,
                          std::span<const DerivedTensor> derived);

// Describes derived tensors for the comparison at the start; see DescribeTensors.
std::string DescribeDerived(std::span<const DerivedTensor> derived);

// Returns the local slots of a GPU into which a plan writes, by layer, rising. Their expert
// changes, or they become the primary and receive its state.
std::map<LayerId, std::vector<int32_t>> WrittenSlots(const MigrationPlan& plan,
                                                     const Topology& topology, GpuId gpu);

// Calls each `rebuild` whose layer has such slots, by rising layer, within a layer as registered.
// errors: DataLoss naming the first tensor that fails; the others are not called.
absl::Status RebuildDerived(std::span<const DerivedTensor> derived, const MigrationPlan& plan,
                            const Topology& topology, GpuId gpu);

}  // namespace eplb
