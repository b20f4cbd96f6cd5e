// Checks derived tensors, and rebuilds those whose slots a plan has written.
#include "client/rows/derived_tensors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"

namespace eplb {

absl::Status CheckDerived(const Topology& topology, std::span<const ExpertTensor> tensors,
                          std::span<const DerivedTensor> derived) {
  std::set<std::string> names;
  std::set<LayerId> layers;
  for (const ExpertTensor& tensor : tensors) {
    names.insert(tensor.name);
    layers.insert(tensor.layer);
  }
  for (const DerivedTensor& tensor : derived) {
    if (!names.insert(tensor.name).second) return TensorError(tensor.name, "registered twice");
    if (tensor.layer.value < 0 || tensor.layer.value >= topology.num_layers()) {
      return TensorError(tensor.name, absl::StrCat("layer ", tensor.layer.value, " is not in 0..",
                                                   topology.num_layers() - 1));
    }
    if (!layers.contains(tensor.layer)) {
      return TensorError(tensor.name,
                         absl::StrCat("layer ", tensor.layer.value,
                                      " has no tensor on this rank that it could be derived from"));
    }
    if (!tensor.rebuild) return TensorError(tensor.name, "is derived and has no rebuild");
  }
  return absl::OkStatus();
}

std::string DescribeDerived(std::span<const DerivedTensor> derived) {
  std::vector<std::pair<LayerId, std::string>> sorted;
  for (const DerivedTensor& tensor : derived) sorted.emplace_back(tensor.layer, tensor.name);
  std::ranges::sort(sorted);
  std::string text;
  for (const auto& [layer, name] : sorted) {
    absl::StrAppend(&text, "layer ", layer.value, " derived ", name, "\n");
  }
  return text;
}

std::map<LayerId, std::vector<int32_t>> WrittenSlots(const MigrationPlan& plan,
                                                     const Topology& topology, GpuId gpu) {
  std::map<LayerId, std::set<int32_t>> written;
  for (const std::vector<Transfer>* part : {&plan.transfers, &plan.local}) {
    for (const Transfer& transfer : *part) {
      if (transfer.destination != gpu) continue;
      for (const std::vector<SlotId>* slots : {&transfer.weight_slots, &transfer.state_slots}) {
        for (const SlotId slot : *slots) {
          written[transfer.layer].insert(slot.value - topology.FirstSlotOf(gpu).value);
        }
      }
    }
  }
  std::map<LayerId, std::vector<int32_t>> by_layer;
  for (const auto& [layer, slots] : written) by_layer[layer].assign(slots.begin(), slots.end());
  return by_layer;
}

absl::Status RebuildDerived(std::span<const DerivedTensor> derived, const MigrationPlan& plan,
                            const Topology& topology, GpuId gpu) {
  for (const auto& [layer, slots] : WrittenSlots(plan, topology, gpu)) {
    for (const DerivedTensor& tensor : derived) {
      if (tensor.layer != layer) continue;
      const absl::Status status = tensor.rebuild(layer.value, slots);
      if (status.ok()) continue;
      return DataLoss("tensor \"", tensor.name, "\": its rebuild failed for local slots ",
                      absl::StrJoin(slots, ", "), ": ", status.message());
    }
  }
  return absl::OkStatus();
}

}  // namespace eplb
