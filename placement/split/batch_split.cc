#include "placement/split/batch_split.h"

#include <iterator>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/split/token_split.h"

namespace eplb {

BatchSplitter::BatchSplitter(const SplitGraph& graph) : graph_(graph) {
  const auto scratch = std::make_shared<SplitSolver::Scratch>();
  for (int32_t layer = 0; layer < graph.num_layers(); ++layer) {
    solvers_.push_back(SplitSolver::Make(graph.num_gpus(), scratch));
    solvers_.back()->Prepare(graph.Layer(LayerId{layer}));
  }
}

absl::Status BatchSplitter::Check(LayerId layer, std::span<const int64_t> counts,
                                  std::span<int64_t> quotas) const {
  if (layer.value < 0 || layer.value >= graph_.num_layers()) {
    return InvalidInput("layer ", layer.value, " is not in 0..", graph_.num_layers() - 1);
  }
  if (std::ssize(counts) != graph_.num_experts() || std::ssize(quotas) != graph_.num_slots()) {
    return InvalidInput("layer ", layer.value, ": ", counts.size(), " counts and ", quotas.size(),
                        " quotas, expected ", graph_.num_experts(), " and ", graph_.num_slots());
  }
  int64_t sum = 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] < 0 || counts[expert] > kMaxSplitTokens - sum) {
      return InvalidInput("layer ", layer.value, ": expert ", expert, " has ", counts[expert],
                          " tokens, expected 0 or more and a sum of at most ", kMaxSplitTokens);
    }
    sum += counts[expert];
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitBound> BatchSplitter::Split(LayerId layer, std::span<const int64_t> counts,
                                                std::span<int64_t> quotas) {
  EPLB_RETURN_IF_ERROR(Check(layer, counts, quotas));
  SplitBound bound;
  bound.peak = solvers_[AsIndex(layer.value)]->Solve(
      counts.data(), graph_.margins(), {.quotas = quotas.data(), .tight_gpus = &bound.tight_gpus});
  return bound;
}

absl::StatusOr<Evaluation> EvaluateBatch(const Load& batch, const Placement& placement,
                                         const GpuSpeeds* speeds) {
  const Topology& topology = placement.topology();
  if (batch.num_layers() != topology.num_layers() ||
      batch.num_experts() != topology.num_experts() || !batch.is_counts()) {
    EPLB_ASSIGN_OR_RETURN(const RealMatrix shares, SplitOptimally(batch, placement, speeds));
    return Evaluate(batch, placement, {.speeds = speeds, .shares = &shares});
  }
  EPLB_ASSIGN_OR_RETURN(const SplitGraph graph, SplitGraph::Make(placement, {.speeds = speeds}));
  BatchSplitter splitter(graph);
  std::vector<int64_t> quotas(AsIndex(topology.num_slots()));
  RealMatrix gpu_loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const std::span<const int64_t> counts(&batch.counts()(layer, 0),
                                          AsIndex(topology.num_experts()));
    EPLB_RETURN_IF_ERROR(splitter.Split(LayerId{layer}, counts, quotas).status());
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      gpu_loads(layer, topology.GpuOf(SlotId{slot}).value) +=
          static_cast<double>(quotas[AsIndex(slot)]);
    }
  }
  if (speeds == nullptr) return EvaluateGpuLoads(std::move(gpu_loads), topology.num_gpus());
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (speeds->Usable(GpuId{gpu})) gpu_loads.col(gpu) /= speeds->SpeedOf(GpuId{gpu});
  }
  return EvaluateGpuLoads(std::move(gpu_loads), speeds->num_usable());
}

absl::StatusOr<Evaluation> EvaluateWindows(std::span<const Load> windows,
                                           const Placement& placement, SplitMode split,
                                           const EvaluateOptions& options) {
  if (windows.empty()) return InvalidInput("there is no window to evaluate");
  const auto evaluate = [&](const Load& window) {
    return split == SplitMode::kBatch ? EvaluateBatch(window, placement, options.speeds)
                                      : Evaluate(window, placement, options);
  };
  EPLB_ASSIGN_OR_RETURN(Evaluation first, evaluate(windows.front()));
  if (windows.size() == 1) return first;
  std::vector<double> peaks = std::move(first.max_gpu_load);
  RealMatrix gpu_loads = std::move(first.gpu_loads);
  for (const Load& window : windows.subspan(1)) {
    EPLB_ASSIGN_OR_RETURN(const Evaluation next, evaluate(window));
    gpu_loads += next.gpu_loads;
    for (size_t layer = 0; layer < peaks.size(); ++layer) peaks[layer] += next.max_gpu_load[layer];
  }
  const int32_t num_usable =
      options.speeds == nullptr ? placement.topology().num_gpus() : options.speeds->num_usable();
  return EvaluateGpuLoads(std::move(gpu_loads), num_usable, peaks);
}

absl::StatusOr<Evaluation> EvaluateBatches(std::span<const Load> batches,
                                           const Placement& placement, const GpuSpeeds* speeds) {
  return EvaluateWindows(batches, placement, SplitMode::kBatch, {.speeds = speeds});
}

absl::StatusOr<Evaluation> EvaluateSplit(const Load& load, const Placement& placement,
                                         SplitMode split, const GpuSpeeds* speeds) {
  if (split == SplitMode::kBatch) return EvaluateBatch(load, placement, speeds);
  return Evaluate(load, placement, {.speeds = speeds});
}

}  // namespace eplb
