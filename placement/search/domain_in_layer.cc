#include "placement/search/domain_in_layer.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "placement/search/node_affinity.h"

namespace eplb {
namespace {

// The expert with the fewest copies on a GPU, then the largest unit, then the fewest replicas.
int32_t MostWanted(const Arrangement& arrangement, std::span<const int32_t> copies) {
  const auto rank = [&](int32_t expert) {
    return std::tuple(copies[AsIndex(expert)], -arrangement.unit(expert),
                      arrangement.count(expert));
  };
  int32_t best = 0;
  for (int32_t expert = 1; expert < arrangement.domain().num_experts(); ++expert) {
    if (rank(expert) < rank(best)) best = expert;
  }
  return best;
}

}  // namespace

void SpreadCopies(Arrangement& arrangement) {
  std::vector<int32_t> copies(arrangement.counts().size());
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    std::ranges::fill(copies, 0);
    for (int32_t slot = arrangement.first_slot(gpu); slot < arrangement.end_slot(gpu); ++slot) {
      ++copies[AsIndex(arrangement.expert_in(slot))];
    }
    for (int32_t slot = arrangement.first_slot(gpu); slot < arrangement.end_slot(gpu); ++slot) {
      int32_t& held = copies[AsIndex(arrangement.expert_in(slot))];
      if (held == 1) continue;
      const int32_t wanted = MostWanted(arrangement, copies);
      int32_t& lacking = copies[AsIndex(wanted)];
      if (held - lacking <= 1) continue;
      --held;
      ++lacking;
      arrangement.Replace(slot, wanted);
    }
  }
}

DomainInLayer PlaceInLayer(const Topology& topology, const GpuSpeeds& speeds, int32_t first,
                           int32_t end) {
  DomainInLayer place{.domain = DomainOf(topology, speeds, first, end)};
  for (int32_t gpu = first; gpu < end; ++gpu) {
    if (!speeds.Usable(GpuId{gpu})) continue;
    place.first_slot.push_back(topology.FirstSlotOf(GpuId{gpu}).value);
  }
  return place;
}

DomainInLayer WholeLayer(const Topology& topology, const GpuSpeeds& speeds, Hierarchy hierarchy,
                         bool allow_duplicates) {
  DomainInLayer whole = PlaceInLayer(topology, speeds, 0, topology.num_gpus());
  whole.domain.allow_duplicates = allow_duplicates;
  whole.domain.load.resize(AsIndex(topology.num_experts()));
  whole.experts.resize(whole.domain.load.size());
  std::iota(whole.experts.begin(), whole.experts.end(), 0);
  if (hierarchy == Hierarchy::kNone) return whole;
  whole.domain.only_on_affine_node = hierarchy == Hierarchy::kStrict;
  for (const int32_t slot : whole.first_slot) {
    const GpuId gpu = topology.GpuOf(SlotId{slot});
    whole.domain.affine_node_of_gpu.push_back(topology.NodeOf(gpu).value);
  }
  return whole;
}

void SetHomes(std::span<const int32_t> node_of_group, Domain& domain) {
  const size_t per_group = domain.load.size() / node_of_group.size();
  domain.affine_node_of_expert.clear();
  for (const int32_t node : node_of_group) {
    domain.affine_node_of_expert.insert(domain.affine_node_of_expert.end(), per_group, node);
  }
}

bool ReadHomes(const Topology& topology, Hierarchy hierarchy, std::span<const int32_t> slots,
               Domain& domain) {
  domain.affine_node_of_expert.clear();
  if (hierarchy == Hierarchy::kNone) return true;
  const auto homes = NodeAffinityOf(topology, hierarchy, slots);
  if (homes.has_value()) SetHomes(*homes, domain);
  return homes.has_value();
}

void DomainInLayer::Write(std::span<const int32_t> layout, std::span<int32_t> slots) const {
  auto from = layout.begin();
  for (size_t gpu = 0; gpu < first_slot.size(); ++gpu) {
    auto slot = AsIndex(first_slot[gpu]);
    for (int32_t i = 0; i < domain.slots[gpu]; ++i) slots[slot++] = experts[AsIndex(*from++)];
  }
}

std::vector<int32_t> DomainInLayer::Read(std::span<const int32_t> slots) const {
  std::vector<int32_t> held;
  for (size_t gpu = 0; gpu < first_slot.size(); ++gpu) {
    const auto first = slots.begin() + first_slot[gpu];
    held.insert(held.end(), first, first + domain.slots[gpu]);
  }
  return held;
}

}  // namespace eplb
