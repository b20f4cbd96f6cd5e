#include "placement/without_eplb.h"

#include <algorithm>
#include <utility>

#include "placement/ids.h"

namespace eplb {

std::vector<int32_t> ExpertRangesWithoutEplb(int32_t num_experts, int32_t num_gpus) {
  std::vector<int32_t> first;
  first.reserve(static_cast<size_t>(num_gpus) + 1);
  for (int32_t gpu = 0; gpu <= num_gpus; ++gpu) {
    first.push_back(num_experts / num_gpus * gpu + std::min(gpu, num_experts % num_gpus));
  }
  return first;
}

Evaluation EvaluateWithoutEplb(const Load& load, int32_t num_gpus, const GpuSpeeds* speeds) {
  const GpuSpeeds equal = GpuSpeeds::Equal(num_gpus);
  if (speeds == nullptr) speeds = &equal;
  const RealMatrix tokens = load.ToDouble();
  const std::vector<int32_t> first =
      ExpertRangesWithoutEplb(load.num_experts(), speeds->num_usable());
  RealMatrix gpu_loads = RealMatrix::Zero(load.num_layers(), num_gpus);
  size_t range = 0;
  for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
    if (!speeds->Usable(GpuId{gpu})) continue;
    const int32_t size = first[range + 1] - first[range];
    gpu_loads.col(gpu) =
        tokens.middleCols(first[range], size).rowwise().sum() / speeds->SpeedOf(GpuId{gpu});
    ++range;
  }
  return EvaluateGpuLoads(std::move(gpu_loads), speeds->num_usable());
}

}  // namespace eplb
