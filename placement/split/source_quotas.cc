#include "placement/split/source_quotas.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "placement/split/own_quotas_body.h"

namespace eplb {

void OwnQuotas(const SplitBatch& batch, std::span<const int64_t> counts, GpuId source,
               std::span<int64_t> own) {
  const Topology& topology = batch.placement.topology();
  const int32_t num_experts = topology.num_experts();
  const SourcePlace place{.num_gpus = topology.num_gpus(),
                          .num_slots = topology.num_slots(),
                          .gpus_of_node = topology.num_gpus() / topology.num_nodes(),
                          .source = source.value};
  std::vector<int64_t> room(batch.quotas.begin(), batch.quotas.end());
  std::vector<int32_t> slots;
  std::ranges::fill(own, 0);
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    const auto replicas = batch.placement.ReplicasOf(batch.layer, ExpertId{expert});
    if (replicas.size() == 1) {  // most experts
      own[AsIndex(replicas.front())] =
          counts[AsIndex(int64_t{source.value} * num_experts + expert)];
      continue;
    }
    slots.assign(replicas.begin(), replicas.end());
    std::ranges::sort(slots);
    FillOwn(place, TokensByRank(&counts[AsIndex(expert)], num_experts, place.num_gpus),
            slots.data(), static_cast<int32_t>(slots.size()), room.data(), own.data());
  }
}

void OwnQuotasByPrefix(const SplitBatch& batch, std::span<const int64_t> before,
                       std::span<const int64_t> mine, std::span<int64_t> own) {
  std::ranges::fill(own, 0);
  for (size_t expert = 0; expert < mine.size(); ++expert) {
    int64_t begin = before[expert];
    int64_t left = mine[expert];
    for (const int32_t slot :
         batch.placement.ReplicasOf(batch.layer, ExpertId{static_cast<int32_t>(expert)})) {
      const int64_t quota = batch.quotas[AsIndex(slot)];
      const int64_t skipped = std::min(begin, quota);
      own[AsIndex(slot)] = std::min(left, quota - skipped);
      begin -= skipped;
      left -= own[AsIndex(slot)];
    }
  }
}

}  // namespace eplb
