#include "placement/search/domain.h"

#include <algorithm>
#include <numeric>

namespace eplb {

int32_t Domain::num_slots() const { return std::accumulate(slots.begin(), slots.end(), 0); }

std::vector<int32_t> Domain::GpuOfSlot() const {
  std::vector<int32_t> gpus;
  for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) {
    gpus.insert(gpus.end(), AsIndex(slots[AsIndex(gpu)]), gpu);
  }
  return gpus;
}

bool Domain::equal_speeds() const {
  return std::ranges::all_of(speed, [&](double s) { return s == speed.front(); });
}

double Domain::total_load() const { return std::accumulate(load.begin(), load.end(), 0.0); }

double Domain::total_speed() const { return std::accumulate(speed.begin(), speed.end(), 0.0); }

int32_t Domain::MinCopies(int32_t gpu) const {
  return allow_duplicates ? 0 : slots[AsIndex(gpu)] / num_experts();
}

int32_t Domain::MaxCopies(int32_t gpu) const {
  const int32_t held = slots[AsIndex(gpu)];
  return allow_duplicates ? held : (held + num_experts() - 1) / num_experts();
}

int32_t Domain::ForcedReplicas() const {
  int32_t replicas = 0;
  for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) replicas += MinCopies(gpu);
  return replicas;
}

int32_t Domain::MinReplicas() const { return std::max(1, ForcedReplicas()); }

int32_t Domain::MaxReplicas() const {
  int32_t replicas = 0;
  for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) replicas += MaxCopies(gpu);
  return replicas;
}

Domain DomainOf(const Topology& topology, const GpuSpeeds& speeds, int32_t first, int32_t end) {
  Domain domain;
  for (int32_t gpu = first; gpu < end; ++gpu) {
    if (!speeds.Usable(GpuId{gpu})) continue;
    domain.slots.push_back(topology.SlotsOf(GpuId{gpu}));
    domain.speed.push_back(speeds.SpeedOf(GpuId{gpu}));
  }
  return domain;
}

std::vector<Domain> NodeDomains(const Topology& topology, const GpuSpeeds& speeds) {
  const int32_t gpus = topology.num_gpus() / topology.num_nodes();
  std::vector<Domain> nodes;
  nodes.reserve(AsIndex(topology.num_nodes()));
  for (int32_t node = 0; node < topology.num_nodes(); ++node) {
    nodes.push_back(DomainOf(topology, speeds, node * gpus, (node + 1) * gpus));
  }
  return nodes;
}

std::vector<int32_t> KindsOf(std::span<const Domain> nodes) {
  std::vector<int32_t> kinds;
  for (const Domain& node : nodes) {
    const auto same = std::ranges::find_if(nodes, [&](const Domain& other) {
      return other.slots == node.slots && other.speed == node.speed;
    });
    kinds.push_back(static_cast<int32_t>(same - nodes.begin()));
  }
  return kinds;
}

std::vector<int32_t> ByFallingLoad(std::span<const double> load) {
  std::vector<int32_t> experts(load.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::ranges::stable_sort(
      experts, [&](int32_t a, int32_t b) { return load[AsIndex(a)] > load[AsIndex(b)]; });
  return experts;
}

LayoutCopies CopiesBetween(const Domain& domain, std::span<const int32_t> from,
                           std::span<const int32_t> to) {
  LayoutCopies copies;
  size_t first = 0;
  for (const int32_t slots : domain.slots) {
    const auto had = from.subspan(first, AsIndex(slots));
    int32_t into = 0;
    for (const int32_t expert : to.subspan(first, AsIndex(slots))) {
      into += std::ranges::find(had, expert) == had.end() ? 1 : 0;
    }
    copies.sum += into;
    copies.most = std::max(copies.most, into);
    first += AsIndex(slots);
  }
  return copies;
}

}  // namespace eplb
