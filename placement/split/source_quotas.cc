#include "placement/split/source_quotas.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace eplb {
namespace {

// Gives the tokens that the sources have of one expert to its slots, and adds those of `source` to
// `own`.
void Distribute(const SplitBatch& batch, int32_t expert, std::span<const int64_t> counts,
                GpuId source, std::span<int64_t> own) {
  const Topology& topology = batch.placement.topology();
  const auto replicas = batch.placement.ReplicasOf(batch.layer, ExpertId{expert});
  std::vector<int32_t> slots(replicas.begin(), replicas.end());
  std::ranges::sort(slots);
  std::vector<int64_t> quotas;  // still to be filled, by index in `slots`
  for (const int32_t slot : slots) quotas.push_back(batch.quotas[AsIndex(slot)]);
  std::vector<int64_t> tokens;  // still without a slot, [G]
  for (int64_t row = 0; row < topology.num_gpus(); ++row) {
    tokens.push_back(counts[AsIndex(row * topology.num_experts() + expert)]);
  }
  const auto gpu_of = [&](size_t i) { return topology.GpuOf(SlotId{slots[i]}).value; };
  // First on the source's GPU, then on its node, then anywhere.
  for (const int32_t width : {1, topology.num_gpus() / topology.num_nodes(), topology.num_gpus()}) {
    size_t end = 0;
    for (size_t i = 0; i < slots.size(); i = end) {
      const int32_t group = gpu_of(i) / width;
      while (end < slots.size() && gpu_of(end) / width == group) ++end;
      // The north-west corner rule over the GPUs and the slots of the group.
      for (int32_t gpu = group * width; gpu < (group + 1) * width; ++gpu) {
        while (i < end && tokens[AsIndex(gpu)] > 0) {
          const int64_t moved = std::min(tokens[AsIndex(gpu)], quotas[i]);
          tokens[AsIndex(gpu)] -= moved;
          quotas[i] -= moved;
          if (gpu == source.value) own[AsIndex(slots[i])] += moved;
          if (quotas[i] == 0) ++i;
        }
      }
    }
  }
}

}  // namespace

void OwnQuotas(const SplitBatch& batch, std::span<const int64_t> counts, GpuId source,
               std::span<int64_t> own) {
  const Topology& topology = batch.placement.topology();
  std::ranges::fill(own, 0);
  for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
    const auto slots = batch.placement.ReplicasOf(batch.layer, ExpertId{expert});
    if (slots.size() > 1) {
      Distribute(batch, expert, counts, source, own);
    } else {  // most experts
      own[AsIndex(slots.front())] =
          counts[AsIndex(int64_t{source.value} * topology.num_experts() + expert)];
    }
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
