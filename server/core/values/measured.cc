#include "server/core/values/measured.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"

namespace eplb::core {

void RunPlacements::Add(int64_t version, std::shared_ptr<const Placement> placement) {
  const auto position = std::find_if(runs_.begin(), runs_.end(),
                                     [version](const Run& run) { return run.version >= version; });
  if (position != runs_.end() && position->version == version) return;
  runs_.insert(position, {version, std::move(placement)});
  if (runs_.size() > kMax) runs_.pop_front();
}

void RunPlacements::DropBelow(int64_t version) {
  while (!runs_.empty() && runs_.front().version < version) runs_.pop_front();
}

const Placement* RunPlacements::Find(int64_t version) const {
  const auto found = std::find_if(runs_.begin(), runs_.end(),
                                  [version](const Run& run) { return run.version == version; });
  return found == runs_.end() ? nullptr : found->placement.get();
}

std::optional<GpuTokens> TokensOnGpus(std::vector<TokensUnder> parts,
                                      const RunPlacements& placements) {
  GpuTokens tokens;
  for (TokensUnder& part : parts) {
    const Placement* placement = placements.Find(part.version);
    if (placement == nullptr) return std::nullopt;
    const absl::StatusOr<Load> load = Load::FromCounts(std::move(part.counts));
    if (!load.ok()) return std::nullopt;
    absl::StatusOr<Evaluation> evaluation = Evaluate(*load, *placement);
    if (!evaluation.ok()) return std::nullopt;
    if (tokens.versions.empty()) {
      tokens.loads = std::move(evaluation->gpu_loads);
    } else {
      tokens.loads += evaluation->gpu_loads;
    }
    tokens.versions.push_back(part.version);
  }
  return tokens;
}

namespace {

// Tokens / speed.
RealMatrix LoadsOf(const GpuTokens& tokens, const GpuSpeeds* speeds) {
  RealMatrix loads = tokens.loads;
  if (speeds == nullptr || speeds->num_gpus() != loads.cols()) return loads;
  for (int32_t gpu = 0; gpu < speeds->num_gpus(); ++gpu) {
    loads.col(gpu) /= speeds->SpeedOf(GpuId{gpu});
  }
  return loads;
}

Evaluation EvaluateRan(const GpuTokens& tokens, const SplitTokens* split, const GpuSpeeds* speeds) {
  const auto num_gpus = static_cast<int32_t>(tokens.loads.cols());
  if (split == nullptr) return EvaluateGpuLoads(LoadsOf(tokens, speeds), num_gpus);
  // Of the batches only each layer's sum is known, which is all that the mean is made of.
  RealMatrix loads(tokens.loads.rows(), num_gpus);
  for (Eigen::Index layer = 0; layer < loads.rows(); ++layer) {
    loads.row(layer) = static_cast<double>(split->tokens[static_cast<size_t>(layer)]) / num_gpus;
  }
  const std::vector<double> peaks(split->peaks.begin(), split->peaks.end());
  return EvaluateGpuLoads(std::move(loads), num_gpus, peaks);
}

}  // namespace

Measured Measure(const Load& load, const GpuTokens& tokens, const SplitTokens* split,
                 const Topology& topology, const GpuSpeeds* speeds) {
  if (split != nullptr) speeds = nullptr;
  Evaluation ran = EvaluateRan(tokens, split, speeds);
  Measured measured{.versions = tokens.versions,
                    .split = split == nullptr ? SplitMode::kEqual : SplitMode::kBatch,
                    .balancedness = ran.mean_balancedness,
                    .layer_balancedness = std::move(ran.balancedness),
                    .peak_load = ran.peak_load};
  const absl::StatusOr<Evaluation> initial =
      Evaluate(load, Placement::Static(topology), {.speeds = speeds});
  if (!initial.ok()) return measured;
  measured.balancedness_static = initial->mean_balancedness;
  measured.peak_load_static = initial->peak_load;
  return measured;
}

double BalancednessOf(const GpuTokens* tokens, const SplitTokens* split, const GpuSpeeds* speeds) {
  return tokens == nullptr ? 0 : EvaluateRan(*tokens, split, speeds).mean_balancedness;
}

}  // namespace eplb::core
