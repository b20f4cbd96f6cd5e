#include "server/core/values/measured.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/status/statusor.h"

#include "placement/without_eplb.h"

namespace eplb::core {

void RunPlacements::Add(int64_t version, std::shared_ptr<const Placement> placement) {
  const auto position =
      std::ranges::find_if(runs_, [version](const Run& run) { return run.version >= version; });
  if (position != runs_.end() && position->version == version) return;
  runs_.insert(position, {version, std::move(placement)});
  if (runs_.size() > kMax) runs_.pop_front();
}

void RunPlacements::DropBelow(int64_t version) {
  while (!runs_.empty() && runs_.front().version < version) runs_.pop_front();
}

const Placement* RunPlacements::Find(int64_t version) const {
  const auto found =
      std::ranges::find_if(runs_, [version](const Run& run) { return run.version == version; });
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
RealMatrix LoadsOf(RealMatrix loads, const GpuSpeeds* speeds) {
  if (speeds == nullptr || speeds->num_gpus() != loads.cols()) return loads;
  for (int32_t gpu = 0; gpu < speeds->num_gpus(); ++gpu) {
    loads.col(gpu) /= speeds->SpeedOf(GpuId{gpu});
  }
  return loads;
}

// Returns the figures of batches by their fullest GPUs: [L], `split.peaks` or those of another
// layout. Only the sum of a layer's tokens is known, and the mean needs no more.
Evaluation EvaluateSplitTokens(const SplitTokens& split, std::span<const int64_t> peaks,
                               int32_t num_gpus) {
  RealMatrix loads(static_cast<Eigen::Index>(split.tokens.size()), num_gpus);
  for (Eigen::Index layer = 0; layer < loads.rows(); ++layer) {
    loads.row(layer) = static_cast<double>(split.tokens[static_cast<size_t>(layer)]) / num_gpus;
  }
  return EvaluateGpuLoads(std::move(loads), num_gpus,
                          std::vector<double>(peaks.begin(), peaks.end()));
}

Evaluation EvaluateRan(const GpuTokens& tokens, const SplitTokens* split, const GpuSpeeds* speeds) {
  const auto num_gpus = static_cast<int32_t>(tokens.loads.cols());
  if (split == nullptr) return EvaluateGpuLoads(LoadsOf(tokens.loads, speeds), num_gpus);
  return EvaluateSplitTokens(*split, split->peaks, num_gpus);
}

// Returns the tokens of each GPU under the static layout: slot s holds expert s % E. Equal to those
// of Placement::Static, whose tables take longer to fill than a window takes to evaluate.
RealMatrix StaticLoads(const Load& load, const Topology& topology) {
  const RealMatrix tokens = load.ToDouble();
  const int32_t least = topology.num_slots() / topology.num_experts();  // replicas of an expert
  const int32_t with_one_more = topology.num_slots() % topology.num_experts();
  RealMatrix loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    int32_t expert = 0;
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      double sum = 0;
      for (int32_t slot = 0; slot < topology.SlotsOf(GpuId{gpu}); ++slot) {
        sum += tokens(layer, expert) / (expert < with_one_more ? least + 1 : least);
        if (++expert == topology.num_experts()) expert = 0;
      }
      loads(layer, gpu) = sum;
    }
  }
  return loads;
}

void SetWithoutEplb(const Evaluation& without, Measured& measured) {
  measured.balancedness_without_eplb = without.mean_balancedness;
  measured.peak_load_without_eplb = without.peak_load;
}

}  // namespace

std::optional<Measured> Measure(const Load& load, const GpuTokens& tokens, const SplitTokens* split,
                                const Topology& topology, const GpuSpeeds* speeds) {
  if (split != nullptr) speeds = nullptr;
  Evaluation ran = EvaluateRan(tokens, split, speeds);
  if (!ran.mean_balancedness) return std::nullopt;
  Measured measured{.versions = tokens.versions,
                    .split = split == nullptr ? SplitMode::kEqual : SplitMode::kBatch,
                    .balancedness = *ran.mean_balancedness,
                    .layer_balancedness = std::move(ran.balancedness),
                    .peak_load = ran.peak_load};
  const int32_t num_gpus = topology.num_gpus();
  if (split != nullptr) {
    if (split->peaks_without_eplb.empty()) return measured;
    measured.balancedness_static =
        EvaluateSplitTokens(*split, split->peaks_static, num_gpus).mean_balancedness;
    SetWithoutEplb(EvaluateSplitTokens(*split, split->peaks_without_eplb, num_gpus), measured);
    return measured;
  }
  if (speeds != nullptr && speeds->num_usable() < num_gpus) return measured;
  measured.balancedness_static =
      EvaluateGpuLoads(LoadsOf(StaticLoads(load, topology), speeds), num_gpus).mean_balancedness;
  SetWithoutEplb(EvaluateWithoutEplb(load, num_gpus, speeds), measured);
  return measured;
}

std::optional<double> BalancednessOf(const GpuTokens* tokens, const SplitTokens* split,
                                     const GpuSpeeds* speeds) {
  if (tokens == nullptr) return std::nullopt;
  return EvaluateRan(*tokens, split, speeds).mean_balancedness;
}

}  // namespace eplb::core
