#include "placement/topology.h"

#include <utility>

#include "base/errors.h"

namespace eplb {

namespace {

constexpr int32_t kMaxCount = 1 << 20;
constexpr int64_t kMaxCells = int64_t{1} << 28;

absl::Status CheckRange(const char* name, int32_t value) {
  if (value >= 1 && value <= kMaxCount) return absl::OkStatus();
  return InvalidInput(name, " is ", value, ", it must be in 1..", kMaxCount);
}

}  // namespace

absl::StatusOr<Topology> Topology::Make(const TopologyOptions& options) {
  const std::pair<const char*, int32_t> numbers[] = {
      {"num_layers", options.num_layers}, {"num_experts", options.num_experts},
      {"num_slots", options.num_slots},   {"num_gpus", options.num_gpus},
      {"num_nodes", options.num_nodes},   {"num_groups", options.num_groups}};
  for (const auto& [name, value] : numbers) {
    if (absl::Status status = CheckRange(name, value); !status.ok()) return status;
  }
  if (int64_t{options.num_layers} * options.num_slots > kMaxCells) {
    return InvalidInput("num_layers x num_slots is ", options.num_layers, " x ", options.num_slots,
                        ", above ", kMaxCells);
  }
  if (options.num_slots < options.num_experts) {
    return InvalidInput("num_slots is ", options.num_slots, ", fewer than the ",
                        options.num_experts, " experts");
  }
  if (options.num_slots < options.num_gpus) {
    return InvalidInput("num_slots is ", options.num_slots, ", fewer than the ", options.num_gpus,
                        " GPUs");
  }
  if (options.num_gpus % options.num_nodes != 0) {
    return InvalidInput("num_gpus is ", options.num_gpus, ", not a multiple of the ",
                        options.num_nodes, " nodes");
  }
  return Topology(options);
}

int32_t Topology::max_slots_per_gpu() const {
  return (options_.num_slots + options_.num_gpus - 1) / options_.num_gpus;
}

int32_t Topology::SlotsOf(GpuId gpu) const {
  return options_.num_slots / options_.num_gpus +
         (gpu.value < options_.num_slots % options_.num_gpus ? 1 : 0);
}

SlotId Topology::FirstSlotOf(GpuId gpu) const {
  const int32_t base = options_.num_slots / options_.num_gpus;
  const int32_t larger = options_.num_slots % options_.num_gpus;
  return SlotId{gpu.value * base + (gpu.value < larger ? gpu.value : larger)};
}

GpuId Topology::GpuOf(SlotId slot) const {
  const int32_t base = options_.num_slots / options_.num_gpus;
  const int32_t larger = options_.num_slots % options_.num_gpus;
  const int32_t border = larger * (base + 1);
  if (slot.value < border) return GpuId{slot.value / (base + 1)};
  return GpuId{larger + (slot.value - border) / base};
}

NodeId Topology::NodeOf(GpuId gpu) const {
  return NodeId{gpu.value / (options_.num_gpus / options_.num_nodes)};
}

bool operator==(const Topology& a, const Topology& b) {
  return a.num_layers() == b.num_layers() && a.num_experts() == b.num_experts() &&
         a.num_slots() == b.num_slots() && a.num_gpus() == b.num_gpus() &&
         a.num_nodes() == b.num_nodes() && a.num_groups() == b.num_groups();
}

absl::Status CheckSameTopology(const char* first, const Topology& a, const char* second,
                               const Topology& b) {
  const struct {
    const char* name;
    int32_t in_a;
    int32_t in_b;
  } numbers[] = {
      {"layers", a.num_layers(), b.num_layers()}, {"experts", a.num_experts(), b.num_experts()},
      {"slots", a.num_slots(), b.num_slots()},    {"GPUs", a.num_gpus(), b.num_gpus()},
      {"nodes", a.num_nodes(), b.num_nodes()},    {"groups", a.num_groups(), b.num_groups()}};
  for (const auto& number : numbers) {
    if (number.in_a == number.in_b) continue;
    return InvalidInput("the ", first, " placement has ", number.in_a, " ", number.name, ", the ",
                        second, " placement has ", number.in_b);
  }
  return absl::OkStatus();
}

Hierarchy DefaultHierarchy(const Topology& topology) {
  const bool groups_fit = topology.num_groups() > 1 && topology.num_nodes() > 1 &&
                          topology.num_groups() % topology.num_nodes() == 0;
  return groups_fit ? Hierarchy::kStrict : Hierarchy::kNone;
}

absl::Status CheckHierarchy(const Topology& topology, Hierarchy hierarchy) {
  if (hierarchy == Hierarchy::kNone) return absl::OkStatus();
  const char* name = hierarchy == Hierarchy::kStrict ? "strict" : "soft";
  if (topology.num_groups() % topology.num_nodes() != 0) {
    return InvalidInput("hierarchy ", name, " needs expert groups in multiples of the ",
                        topology.num_nodes(), " nodes, got ", topology.num_groups(),
                        " expert groups");
  }
  if (topology.num_experts() % topology.num_groups() != 0) {
    return InvalidInput("hierarchy ", name, " needs experts in multiples of the ",
                        topology.num_groups(), " expert groups, got ", topology.num_experts(),
                        " experts");
  }
  return absl::OkStatus();
}

}  // namespace eplb
