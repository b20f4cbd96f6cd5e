#include "placement/rank_grid.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {
namespace {

// Returns the given factors of world_size.
std::string FactorsText(const RankGridOptions& options) {
  std::string text;
  if (options.pipeline_parallel_size > 1) {
    absl::StrAppend(&text, "pipeline_parallel_size ", options.pipeline_parallel_size, " * ");
  }
  if (options.expert_tensor_parallel > 1) {
    absl::StrAppend(&text, "expert_tensor_parallel ", options.expert_tensor_parallel, " * ");
  }
  return absl::StrCat(text, "num_gpus ", options.num_gpus);
}

}  // namespace

absl::StatusOr<RankGrid> RankGrid::Make(const RankGridOptions& options) {
  int32_t rest = options.world_size;
  bool divides = rest > 0;
  for (const auto& [name, factor] :
       {std::pair{"pipeline_parallel_size", options.pipeline_parallel_size},
        {"expert_tensor_parallel", options.expert_tensor_parallel},
        {"num_gpus", options.num_gpus}}) {
    if (factor < 1) return InvalidInput(name, ": ", factor, ", expected >= 1");
    divides = divides && rest % factor == 0;
    rest /= factor;
  }
  if (divides) return RankGrid(options);
  return InvalidInput("world_size: ", options.world_size, ", expected a positive multiple of ",
                      FactorsText(options));
}

int32_t RankGrid::EpGroupOf(RankId rank) const {
  const int32_t copies = options_.expert_tensor_parallel;
  return rank.value / (copies * options_.num_gpus) * copies + rank.value % copies;
}

GpuId RankGrid::GpuOf(RankId rank) const {
  return GpuId{rank.value / options_.expert_tensor_parallel % options_.num_gpus};
}

RankId RankGrid::RankOf(int32_t ep_group, GpuId gpu) const {
  const int32_t copies = options_.expert_tensor_parallel;
  return RankId{(ep_group / copies * options_.num_gpus + gpu.value) * copies + ep_group % copies};
}

std::vector<RankId> RankGrid::RanksOf(int32_t ep_group) const {
  std::vector<RankId> ranks;
  ranks.reserve(static_cast<size_t>(options_.num_gpus));
  for (int32_t gpu = 0; gpu < options_.num_gpus; ++gpu)
    ranks.push_back(RankOf(ep_group, GpuId{gpu}));
  return ranks;
}

}  // namespace eplb
