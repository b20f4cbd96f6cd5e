#include "placement/rank_grid.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

// What world_size has to be a multiple of, as far as it is said.
std::string FactorsText(const RankGridOptions& options) {
  std::string text;
  if (options.num_pipeline_ranks > 1) {
    absl::StrAppend(&text, "num_pipeline_ranks ", options.num_pipeline_ranks, " * ");
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
  for (const auto& [name, factor] : {std::pair{"num_pipeline_ranks", options.num_pipeline_ranks},
                                     {"expert_tensor_parallel", options.expert_tensor_parallel},
                                     {"num_gpus", options.num_gpus}}) {
    if (factor < 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", factor, ", expected >= 1"));
    }
    divides = divides && rest % factor == 0;
    rest /= factor;
  }
  if (divides) return RankGrid(options);
  return absl::InvalidArgumentError(absl::StrCat("world_size: ", options.world_size,
                                                 ", expected a positive multiple of ",
                                                 FactorsText(options)));
}

int32_t RankGrid::LaneOf(RankId rank) const {
  const int32_t copies = options_.expert_tensor_parallel;
  return rank.value / (copies * options_.num_gpus) * copies + rank.value % copies;
}

GpuId RankGrid::GpuOf(RankId rank) const {
  return GpuId{rank.value / options_.expert_tensor_parallel % options_.num_gpus};
}

RankId RankGrid::RankOf(int32_t lane, GpuId gpu) const {
  const int32_t copies = options_.expert_tensor_parallel;
  return RankId{(lane / copies * options_.num_gpus + gpu.value) * copies + lane % copies};
}

std::vector<RankId> RankGrid::RanksOf(int32_t lane) const {
  std::vector<RankId> ranks;
  ranks.reserve(static_cast<size_t>(options_.num_gpus));
  for (int32_t gpu = 0; gpu < options_.num_gpus; ++gpu) ranks.push_back(RankOf(lane, GpuId{gpu}));
  return ranks;
}

}  // namespace eplb
