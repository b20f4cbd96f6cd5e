#include "placement/split/batch_split.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/split/token_split.h"

namespace eplb {
namespace {

// Relative to the fastest: of equal ones exactly 1, so that a peak is a number of tokens.
std::vector<int64_t> IntegerSpeeds(const GpuSpeeds& speeds) {
  const double fastest = *std::max_element(speeds.speeds().begin(), speeds.speeds().end());
  bool equal = true;
  for (const double speed : speeds.speeds()) equal = equal && (speed == 0 || speed == fastest);
  std::vector<int64_t> integers;
  for (const double speed : speeds.speeds()) {
    if (speed == 0 || equal) {
      integers.push_back(speed == 0 ? 0 : 1);
      continue;
    }
    const double scaled = std::round(speed / fastest * static_cast<double>(kMaxSplitSpeed));
    integers.push_back(std::max<int64_t>(1, static_cast<int64_t>(scaled)));
  }
  return integers;
}

absl::Status CheckOptions(const Placement& placement, const BatchSplitOptions& options) {
  const int32_t num_gpus = placement.topology().num_gpus();
  if (num_gpus > SplitGraph::kMaxGpus) {
    return absl::InvalidArgumentError(absl::StrCat("an EP group of ", num_gpus,
                                                   " GPUs, batches are split over at most ",
                                                   SplitGraph::kMaxGpus));
  }
  if (!(options.slack >= 0 && options.slack <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("slack is ", options.slack, ", expected 0..1"));
  }
  if (options.speeds == nullptr) return absl::OkStatus();
  if (options.speeds->num_gpus() != num_gpus) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.speeds->num_gpus(), " GPU speeds, the placement has ", num_gpus, " GPUs"));
  }
  for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
    if (options.speeds->Usable(GpuId{gpu}) || !placement.Holds(GpuId{gpu})) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", gpu, " is unusable, but the placement has experts on it"));
  }
  return absl::OkStatus();
}

// An expert's slots on one GPU, in the order of replica rank.
struct Part {
  int32_t gpu;
  std::vector<int32_t> slots;
};

std::vector<Part> PartsOf(const Placement& placement, LayerId layer, ExpertId expert) {
  std::vector<Part> parts;
  for (const int32_t slot : placement.ReplicasOf(layer, expert)) {
    const int32_t gpu = placement.topology().GpuOf(SlotId{slot}).value;
    const auto found = std::find_if(parts.begin(), parts.end(),
                                    [gpu](const Part& part) { return part.gpu == gpu; });
    if (found != parts.end()) {
      found->slots.push_back(slot);
    } else {
      parts.push_back({.gpu = gpu, .slots = {slot}});
    }
  }
  return parts;
}

// The tables of one layer while they are built.
struct Tables {
  Tables(int32_t num_gpus, int32_t num_slots)
      : fixed_of_gpu(static_cast<size_t>(num_gpus)),
        parts_of_gpu(static_cast<size_t>(num_gpus)),
        slot_expert(static_cast<size_t>(num_slots), -1),
        slot_part(static_cast<size_t>(num_slots), -1),
        slot_among(static_cast<size_t>(num_slots), 1),
        slot_place(static_cast<size_t>(num_slots), 0) {}

  void Add(int32_t expert_id, const std::vector<Part>& parts) {
    const bool is_fixed = parts.size() == 1;
    if (is_fixed) fixed_of_gpu[static_cast<size_t>(parts.front().gpu)].push_back(expert_id);
    int32_t before = 0;
    for (const Part& part : parts) {
      const auto num_slots = static_cast<int32_t>(part.slots.size());
      for (int32_t i = 0; i < num_slots; ++i) {
        const auto slot = static_cast<size_t>(part.slots[static_cast<size_t>(i)]);
        slot_expert[slot] = expert_id;
        slot_part[slot] = is_fixed ? -1 : static_cast<int32_t>(part_gpu.size());
        slot_among[slot] = num_slots;
        slot_place[slot] = i;
      }
      if (is_fixed) return;
      parts_of_gpu[static_cast<size_t>(part.gpu)].push_back(static_cast<int32_t>(part_gpu.size()));
      part_gpu.push_back(part.gpu);
      part_slots.push_back(num_slots);
      part_before.push_back(before);
      part_expert.push_back(static_cast<int32_t>(expert.size()));
      before += num_slots;
    }
    expert.push_back(expert_id);
    num_replicas.push_back(before);
    first_part.push_back(static_cast<int32_t>(part_gpu.size()));
  }

  std::vector<std::vector<int32_t>> fixed_of_gpu, parts_of_gpu;
  std::vector<int32_t> expert, num_replicas;
  std::vector<int32_t> first_part = {0};
  std::vector<int32_t> part_gpu, part_slots, part_before, part_expert;
  std::vector<int32_t> slot_expert, slot_part, slot_among, slot_place;
};

// Appends rows one after the other and, before them, where each begins.
std::pair<std::vector<int32_t>, std::vector<int32_t>> Flattened(
    const std::vector<std::vector<int32_t>>& rows) {
  std::vector<int32_t> first = {0};
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
    first.push_back(static_cast<int32_t>(all.size()));
  }
  return {std::move(first), std::move(all)};
}

}  // namespace

absl::StatusOr<SplitGraph> SplitGraph::Make(const Placement& placement,
                                            const BatchSplitOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckOptions(placement, options));
  const Topology& topology = placement.topology();
  SplitGraph graph;
  graph.num_experts_ = topology.num_experts();
  graph.num_slots_ = topology.num_slots();
  graph.slack_ = static_cast<int64_t>(options.slack * static_cast<double>(kSplitSlackUnit));
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  graph.speeds_ = IntegerSpeeds(options.speeds == nullptr ? equal : *options.speeds);
  graph.equal_speeds_ = *std::max_element(graph.speeds_.begin(), graph.speeds_.end()) == 1;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    graph.AddLayer(placement, LayerId{layer});
  }
  return graph;
}

void SplitGraph::AddLayer(const Placement& placement, LayerId layer) {
  Tables tables(num_gpus(), num_slots_);
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    tables.Add(expert, PartsOf(placement, layer, ExpertId{expert}));
  }
  const auto append = [this](const std::vector<int32_t>& table) {
    const size_t begin = tables_.size();
    tables_.insert(tables_.end(), table.begin(), table.end());
    return begin;
  };
  const auto [first_fixed, fixed_expert] = Flattened(tables.fixed_of_gpu);
  const auto [first_on_gpu, gpu_part] = Flattened(tables.parts_of_gpu);
  layers_.push_back({.num_replicated = static_cast<int32_t>(tables.expert.size()),
                     .first_fixed = append(first_fixed),
                     .fixed_expert = append(fixed_expert),
                     .expert = append(tables.expert),
                     .num_replicas = append(tables.num_replicas),
                     .first_part = append(tables.first_part),
                     .part_gpu = append(tables.part_gpu),
                     .part_slots = append(tables.part_slots),
                     .part_before = append(tables.part_before),
                     .part_expert = append(tables.part_expert),
                     .first_on_gpu = append(first_on_gpu),
                     .gpu_part = append(gpu_part),
                     .slot_expert = append(tables.slot_expert),
                     .slot_part = append(tables.slot_part),
                     .slot_among = append(tables.slot_among),
                     .slot_place = append(tables.slot_place)});
  max_replicated_ = std::max(max_replicated_, static_cast<int32_t>(tables.expert.size()));
  max_parts_ = std::max(max_parts_, static_cast<int32_t>(tables.part_gpu.size()));
}

SplitLayer SplitGraph::Layer(LayerId layer) const {
  const LayerTables& at = layers_[static_cast<size_t>(layer.value)];
  const int32_t* const tables = tables_.data();
  return {.num_gpus = num_gpus(),
          .num_slots = num_slots_,
          .num_replicated = at.num_replicated,
          .equal_speeds = equal_speeds_,
          .speed = speeds_.data(),
          .first_fixed = tables + at.first_fixed,
          .fixed_expert = tables + at.fixed_expert,
          .expert = tables + at.expert,
          .num_replicas = tables + at.num_replicas,
          .first_part = tables + at.first_part,
          .part_gpu = tables + at.part_gpu,
          .part_slots = tables + at.part_slots,
          .part_before = tables + at.part_before,
          .part_expert = tables + at.part_expert,
          .first_on_gpu = tables + at.first_on_gpu,
          .gpu_part = tables + at.gpu_part,
          .slot_expert = tables + at.slot_expert,
          .slot_part = tables + at.slot_part,
          .slot_among = tables + at.slot_among,
          .slot_place = tables + at.slot_place};
}

class BatchSplitter::Solver {
 public:
  virtual ~Solver() = default;
  // bound: may be null.
  virtual void Solve(LayerId layer, const int64_t* counts, int64_t* quotas, SplitBound* bound) = 0;
};

// For EP groups of up to 64 * kWords GPUs.
template <int kWords>
class BatchSplitter::SolverOf final : public BatchSplitter::Solver {
 public:
  explicit SolverOf(const SplitGraph& graph)
      : graph_(graph),
        part_tokens_(static_cast<size_t>(graph.max_parts())),
        fixed_(static_cast<size_t>(graph.num_gpus())),
        room_(fixed_.size()),
        reach_(fixed_.size()),
        holders_(static_cast<size_t>(graph.max_replicated()) *
                 static_cast<size_t>(graph.num_layers())),
        levels_(fixed_.size() + 1),
        path_(fixed_.size() + 1),
        path_part_(fixed_.size() + 1) {
    for (int32_t i = 0; i < graph.num_layers(); ++i) {
      const SplitLayer layer = graph.Layer(LayerId{i});
      Body(layer, ScratchOf(LayerId{i}), OneThread()).FindHolders();
    }
  }

  void Solve(LayerId layer, const int64_t* counts, int64_t* quotas, SplitBound* bound) override {
    const SplitLayer tables = graph_.Layer(layer);
    Body body(tables, ScratchOf(layer), OneThread());
    const LeastPeak<kWords> least = body.Solve(counts, graph_.slack());
    body.WriteQuotas(quotas);
    if (bound == nullptr) return;
    bound->peak = least.peak;
    bound->tight_gpus.clear();
    for (int32_t gpu = 0; gpu < graph_.num_gpus(); ++gpu) {
      if (least.tight.Has(gpu)) bound->tight_gpus.push_back(gpu);
    }
  }

 private:
  using Body = SplitBody<kWords, OneThread>;

  SplitScratch<kWords> ScratchOf(LayerId layer) {
    const auto first =
        static_cast<size_t>(layer.value) * static_cast<size_t>(graph_.max_replicated());
    return {.part_tokens = part_tokens_.data(),
            .fixed = fixed_.data(),
            .room = room_.data(),
            .reach = reach_.data(),
            .holders = holders_.data() + first,
            .levels = levels_.data(),
            .path = path_.data(),
            .path_part = path_part_.data()};
  }

  const SplitGraph& graph_;
  std::vector<int64_t> part_tokens_, fixed_, room_;
  std::vector<GpuSet<kWords>> reach_;
  std::vector<GpuSet<kWords>> holders_;  // layer by layer
  std::vector<GpuSet<kWords>> levels_;
  std::vector<int32_t> path_, path_part_;
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
  if (layer.value < 0 || layer.value >= graph_.num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value, " is not in 0..", graph_.num_layers() - 1));
  }
  if (std::ssize(counts) != graph_.num_experts() || std::ssize(quotas) != graph_.num_slots()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.value, ": ", counts.size(), " counts and ", quotas.size(),
                     " quotas, expected ", graph_.num_experts(), " and ", graph_.num_slots()));
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

absl::StatusOr<Evaluation> EvaluateBatches(std::span<const Load> batches,
                                           const Placement& placement, const GpuSpeeds* speeds) {
  if (batches.empty()) return absl::InvalidArgumentError("there is no batch to evaluate");
  EPLB_ASSIGN_OR_RETURN(Evaluation first, EvaluateBatch(batches.front(), placement, speeds));
  if (batches.size() == 1) return first;
  std::vector<double> peaks = std::move(first.max_gpu_load);
  RealMatrix gpu_loads = std::move(first.gpu_loads);
  for (const Load& batch : batches.subspan(1)) {
    EPLB_ASSIGN_OR_RETURN(const Evaluation next, EvaluateBatch(batch, placement, speeds));
    gpu_loads += next.gpu_loads;
    for (size_t layer = 0; layer < peaks.size(); ++layer) peaks[layer] += next.max_gpu_load[layer];
  }
  const int32_t num_usable =
      speeds == nullptr ? placement.topology().num_gpus() : speeds->num_usable();
  return EvaluateGpuLoads(std::move(gpu_loads), num_usable, peaks);
}

absl::StatusOr<Evaluation> EvaluateSplit(const Load& load, const Placement& placement,
                                         SplitMode split, const GpuSpeeds* speeds) {
  if (split == SplitMode::kBatch) return EvaluateBatch(load, placement, speeds);
  return Evaluate(load, placement, {.speeds = speeds});
}

}  // namespace eplb
