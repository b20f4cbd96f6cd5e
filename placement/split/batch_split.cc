#include "placement/split/batch_split.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/split/token_split.h"

namespace eplb {

class BatchSplitter::Solver {
 public:
  virtual ~Solver() = default;
  // bound: may be null.
  virtual void Solve(LayerId layer, const int64_t* counts, int64_t* quotas, SplitBound* bound) = 0;
  virtual SplitPeak FindPeak(LayerId layer, const int64_t* counts) = 0;
};

// For EP groups of up to 64 * kWords GPUs.
template <int kWords>
class BatchSplitter::SolverOf final : public BatchSplitter::Solver {
 public:
  explicit SolverOf(const SplitGraph& graph)
      : graph_(graph),
        part_tokens_(static_cast<size_t>(graph.max_parts())),
        equal_(part_tokens_.size()),
        each_(static_cast<size_t>(graph.max_replicated())),
        rest_(each_.size()),
        above_(each_.size()),
        fixed_(static_cast<size_t>(graph.num_gpus())),
        room_(fixed_.size()),
        limit_(fixed_.size() + 1),
        pushed_before_(fixed_.size() + 1),
        holders_(static_cast<size_t>(graph.max_replicated()) *
                 static_cast<size_t>(graph.num_layers())),
        neighbours_(fixed_.size() * static_cast<size_t>(graph.num_layers())),
        steps_(fixed_.size()),
        levels_(fixed_.size() + 1),
        path_(fixed_.size() + 1),
        path_out_(fixed_.size() + 1),
        path_in_(fixed_.size() + 1) {
    for (int32_t i = 0; i < graph.num_layers(); ++i) {
      const SplitLayer layer = graph.Layer(LayerId{i});
      Body(layer, ScratchOf(LayerId{i}), OneThread()).FindHolders();
    }
  }

  void Solve(LayerId layer, const int64_t* counts, int64_t* quotas, SplitBound* bound) override {
    const SplitLayer tables = graph_.Layer(layer);
    Body body(tables, ScratchOf(layer), OneThread());
    const eplb::LeastPeak<kWords> least = body.Solve(counts, graph_.slack());
    body.WriteQuotas(quotas);
    if (bound == nullptr) return;
    bound->peak = least.peak;
    bound->tight_gpus.clear();
    for (int32_t gpu = 0; gpu < graph_.num_gpus(); ++gpu) {
      if (least.tight.Has(gpu)) bound->tight_gpus.push_back(gpu);
    }
  }

  SplitPeak FindPeak(LayerId layer, const int64_t* counts) override {
    const SplitLayer tables = graph_.Layer(layer);
    return Body(tables, ScratchOf(layer), OneThread()).FindPeak(counts).peak;
  }

 private:
  using Body = SplitBody<kWords, OneThread>;

  SplitScratch<kWords> ScratchOf(LayerId layer) {
    const auto index = static_cast<size_t>(layer.value);
    return {.part_tokens = part_tokens_.data(),
            .equal = equal_.data(),
            .each = each_.data(),
            .rest = rest_.data(),
            .above = above_.data(),
            .fixed = fixed_.data(),
            .room = room_.data(),
            .limit = limit_.data(),
            .pushed_before = pushed_before_.data(),
            .holders = holders_.data() + index * static_cast<size_t>(graph_.max_replicated()),
            .neighbours = neighbours_.data() + index * steps_.size(),
            .steps = steps_.data(),
            .levels = levels_.data(),
            .path = path_.data(),
            .path_out = path_out_.data(),
            .path_in = path_in_.data()};
  }

  const SplitGraph& graph_;
  std::vector<int64_t> part_tokens_, equal_, each_, rest_, above_, fixed_, room_, limit_,
      pushed_before_;
  std::vector<GpuSet<kWords>> holders_, neighbours_;  // layer by layer
  std::vector<GpuSet<kWords>> steps_, levels_;
  std::vector<int32_t> path_, path_out_, path_in_;
};

BatchSplitter::BatchSplitter(const SplitGraph& graph) : graph_(graph) {
  if (graph.num_gpus() <= GpuSet<1>::kMaxGpus) {
    solver_ = std::make_unique<SolverOf<1>>(graph);
  } else if (graph.num_gpus() <= GpuSet<4>::kMaxGpus) {
    solver_ = std::make_unique<SolverOf<4>>(graph);
  } else {
    solver_ = std::make_unique<SolverOf<16>>(graph);
  }
  static_assert(GpuSet<16>::kMaxGpus == SplitGraph::kMaxGpus);
}

BatchSplitter::~BatchSplitter() = default;

absl::Status BatchSplitter::Check(LayerId layer, std::span<const int64_t> counts,
                                  std::span<int64_t> quotas) const {
  if (std::ssize(quotas) == graph_.num_slots()) return Check(layer, counts);
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer.value, ": ", counts.size(), " counts and ", quotas.size(),
                   " quotas, expected ", graph_.num_experts(), " and ", graph_.num_slots()));
}

absl::Status BatchSplitter::Check(LayerId layer, std::span<const int64_t> counts) const {
  if (layer.value < 0 || layer.value >= graph_.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value, " is not in 0..", graph_.num_layers() - 1));
  }
  if (std::ssize(counts) != graph_.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer.value, ": ", counts.size(),
                                                   " counts, expected ", graph_.num_experts()));
  }
  int64_t sum = 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] < 0 || counts[expert] > kMaxSplitTokens - sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer.value, ": expert ", expert, " has ", counts[expert],
                       " tokens, expected 0 or more and a sum of at most ", kMaxSplitTokens));
    }
    sum += counts[expert];
  }
  return absl::OkStatus();
}

absl::Status BatchSplitter::Split(LayerId layer, std::span<const int64_t> counts,
                                  std::span<int64_t> quotas) {
  EPLB_RETURN_IF_ERROR(Check(layer, counts, quotas));
  solver_->Solve(layer, counts.data(), quotas.data(), nullptr);
  return absl::OkStatus();
}

absl::StatusOr<SplitBound> BatchSplitter::SplitWithBound(LayerId layer,
                                                         std::span<const int64_t> counts,
                                                         std::span<int64_t> quotas) {
  EPLB_RETURN_IF_ERROR(Check(layer, counts, quotas));
  SplitBound bound;
  solver_->Solve(layer, counts.data(), quotas.data(), &bound);
  return bound;
}

absl::StatusOr<SplitPeak> BatchSplitter::LeastPeak(LayerId layer, std::span<const int64_t> counts) {
  EPLB_RETURN_IF_ERROR(Check(layer, counts));
  return solver_->FindPeak(layer, counts.data());
}

absl::StatusOr<Evaluation> EvaluateBatch(const Load& batch, const Placement& placement,
                                         const GpuSpeeds* speeds) {
  const Topology& topology = placement.topology();
  if (batch.num_layers() != topology.num_layers() ||
      batch.num_experts() != topology.num_experts() || !batch.is_counts()) {
    EPLB_ASSIGN_OR_RETURN(const TokenSplit split, SplitOptimally(batch, placement, speeds));
    return Evaluate(batch, placement, {.speeds = speeds, .shares = &split.shares});
  }
  EPLB_ASSIGN_OR_RETURN(const SplitGraph graph, SplitGraph::Make(placement, {.speeds = speeds}));
  BatchSplitter splitter(graph);
  std::vector<int64_t> quotas(static_cast<size_t>(topology.num_slots()));
  RealMatrix gpu_loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const std::span<const int64_t> counts(&batch.counts()(layer, 0),
                                          static_cast<size_t>(topology.num_experts()));
    EPLB_RETURN_IF_ERROR(splitter.Split(LayerId{layer}, counts, quotas));
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      gpu_loads(layer, topology.GpuOf(SlotId{slot}).value) +=
          static_cast<double>(quotas[static_cast<size_t>(slot)]);
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
  if (windows.empty()) return absl::InvalidArgumentError("there is no window to evaluate");
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
