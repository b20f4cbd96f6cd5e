#include "client/session/split_sums.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "placement/without_eplb.h"

namespace eplb {
namespace {

// [E], the tokens of one layer that `quotas` [S] spread over its slots.
std::vector<int64_t> TokensOfExperts(const Placement& placement, LayerId layer,
                                     std::span<const int64_t> quotas) {
  std::vector<int64_t> tokens(static_cast<size_t>(placement.topology().num_experts()), 0);
  for (int32_t slot = 0; slot < placement.topology().num_slots(); ++slot) {
    const ExpertId expert = placement.ExpertIn(layer, SlotId{slot});
    if (expert.value < 0) continue;  // a slot of an unusable GPU
    tokens[static_cast<size_t>(expert.value)] += quotas[static_cast<size_t>(slot)];
  }
  return tokens;
}

// Returns the tokens of the fullest GPU under Placement::Static in equal shares of whole tokens,
// an expert's first slots taking one more where they do not divide. Slot j holds expert j mod E.
int64_t StaticPeak(const Topology& topology, std::span<const int64_t> tokens) {
  const int32_t num_experts = topology.num_experts();
  std::vector<int64_t> gpu_tokens(static_cast<size_t>(topology.num_gpus()), 0);
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const int32_t expert = slot % num_experts;
    const int64_t replicas = (topology.num_slots() - 1 - expert) / num_experts + 1;
    const int64_t of_expert = tokens[static_cast<size_t>(expert)];
    gpu_tokens[static_cast<size_t>(topology.GpuOf(SlotId{slot}).value)] +=
        of_expert / replicas + (slot / num_experts < of_expert % replicas ? 1 : 0);
  }
  return *std::ranges::max_element(gpu_tokens);
}

int64_t PeakWithoutEplb(const Topology& topology, std::span<const int64_t> tokens) {
  const std::vector<int32_t> first =
      ExpertRangesWithoutEplb(topology.num_experts(), topology.num_gpus());
  int64_t peak = 0;
  for (size_t gpu = 0; gpu + 1 < first.size(); ++gpu) {
    peak = std::max(peak, std::accumulate(tokens.begin() + first[gpu],
                                          tokens.begin() + first[gpu + 1], int64_t{0}));
  }
  return peak;
}

}  // namespace

absl::StatusOr<SplitSums> SumsOfSplit(int32_t layer, std::span<const int64_t> quotas,
                                      const Placement& placement) {
  const Topology& topology = placement.topology();
  if (layer < 0 || layer >= topology.num_layers()) {
    return InvalidInput("quotas of layer ", layer, ", expected 0..", topology.num_layers() - 1);
  }
  if (static_cast<int64_t>(quotas.size()) != topology.num_slots()) {
    return InvalidInput("layer ", layer, ": ", quotas.size(), " quotas, the model has ",
                        topology.num_slots(), " slots");
  }
  SplitSums sums;
  std::vector<int64_t> gpu_tokens(static_cast<size_t>(topology.num_gpus()), 0);
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const int64_t quota = quotas[static_cast<size_t>(slot)];
    if (quota < 0) {
      return InvalidInput("layer ", layer, " slot ", slot, ": quota ", quota, ", expected >= 0");
    }
    if (quota > std::numeric_limits<int64_t>::max() - sums.tokens) {
      return InvalidInput("layer ", layer, " slot ", slot, ": the batch's tokens exceed 2^63-1");
    }
    sums.tokens += quota;
    int64_t& on_gpu = gpu_tokens[static_cast<size_t>(topology.GpuOf(SlotId{slot}).value)];
    on_gpu += quota;
    sums.peak = std::max(sums.peak, on_gpu);
  }
  const std::vector<int64_t> of_experts = TokensOfExperts(placement, LayerId{layer}, quotas);
  sums.peak_static = StaticPeak(topology, of_experts);
  sums.peak_without_eplb = PeakWithoutEplb(topology, of_experts);
  return sums;
}

}  // namespace eplb
