#include "placement/search/domain_in_layer.h"

#include <algorithm>
#include <tuple>

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

void DomainInLayer::Write(const Arrangement& arrangement, std::span<int32_t> slots) const {
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    auto slot = AsIndex(first_slot[AsIndex(gpu)]);
    for (int32_t from = arrangement.first_slot(gpu); from < arrangement.end_slot(gpu); ++from) {
      slots[slot++] = experts[AsIndex(arrangement.expert_in(from))];
    }
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
