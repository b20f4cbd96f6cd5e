#include "placement/search/domain.h"

#include <algorithm>
#include <numeric>

namespace eplb {

int32_t Domain::num_slots() const { return std::accumulate(slots.begin(), slots.end(), 0); }

bool Domain::equal_speeds() const {
  return std::all_of(speed.begin(), speed.end(), [&](double s) { return s == speed.front(); });
}

double Domain::total_load() const { return std::accumulate(load.begin(), load.end(), 0.0); }

int32_t Domain::MinCopies(int32_t gpu) const {
  return allow_duplicates ? 0 : slots[static_cast<size_t>(gpu)] / num_experts();
}

int32_t Domain::MaxCopies(int32_t gpu) const {
  const int32_t held = slots[static_cast<size_t>(gpu)];
  return allow_duplicates ? held : (held + num_experts() - 1) / num_experts();
}

int32_t Domain::MinReplicas() const {
  int32_t replicas = 0;
  for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) replicas += MinCopies(gpu);
  return std::max(1, replicas);
}

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

LayoutCopies CopiesBetween(const Domain& domain, std::span<const int32_t> from,
                           std::span<const int32_t> to) {
  LayoutCopies copies;
  size_t first = 0;
  for (const int32_t slots : domain.slots) {
    const auto had = from.subspan(first, static_cast<size_t>(slots));
    int32_t into = 0;
    for (const int32_t expert : to.subspan(first, static_cast<size_t>(slots))) {
      into += std::find(had.begin(), had.end(), expert) == had.end() ? 1 : 0;
    }
    copies.sum += into;
    copies.most = std::max(copies.most, into);
    first += static_cast<size_t>(slots);
  }
  return copies;
}

}  // namespace eplb
