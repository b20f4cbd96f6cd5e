#include "client/batch_splits.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "placement/split/source_quotas.h"

namespace eplb {
namespace {

absl::Status CheckLayer(const Topology& topology, LayerId layer) {
  if (layer.value >= 0 && layer.value < topology.num_layers()) return absl::OkStatus();
  return InvalidInput("layer is ", layer.value, ", expected 0..", topology.num_layers() - 1);
}

absl::Status Wrong(LayerId layer, const std::string& what) {
  return InvalidInput("layer ", layer.value, ": ", what);
}

// what: "counts" of each expert, or "quotas" of each slot.
absl::Status CheckNumber(LayerId layer, const char* what, size_t given, const char* unit,
                         int32_t expected) {
  if (std::cmp_equal(given, expected)) return absl::OkStatus();
  return Wrong(layer, absl::StrCat(what, " of ", CountText(static_cast<int64_t>(given), unit),
                                   ", the placement has ", expected));
}

// Sizes of counts; what the numbers are is the next checks' matter.
absl::Status CheckCountsForm(const Topology& topology, LayerId layer, const BatchCounts& counts) {
  const int32_t experts = topology.num_experts();
  if (counts.totals.empty() == counts.by_gpu.empty()) {
    return Wrong(layer, counts.totals.empty()
                            ? "neither totals nor by_gpu given, expected one of them"
                            : "both totals and by_gpu given, expected one of them");
  }
  if (!counts.totals.empty()) {
    return CheckNumber(layer, "counts", counts.totals.size(), "expert", experts);
  }
  const int64_t expected = int64_t{experts} * topology.num_gpus();
  if (std::cmp_equal(counts.by_gpu.size(), expected)) return absl::OkStatus();
  return Wrong(layer, absl::StrCat(counts.by_gpu.size(), " counts by GPU, the placement has ",
                                   CountText(topology.num_gpus(), "GPU"), " x ",
                                   CountText(experts, "expert"), ": ", expected));
}

// Sizes and forms of the rest.
absl::Status CheckForm(const Topology& topology, LayerId layer, const BatchCounts& counts,
                       const SplitTarget& target) {
  const int32_t experts = topology.num_experts();
  const bool by_prefix = !counts.before.empty() || !counts.mine.empty();
  if (by_prefix) {
    if (counts.totals.empty()) {
      return Wrong(layer, "before and mine belong to counts [experts], the counts are by GPU");
    }
    if (counts.mine.empty()) return Wrong(layer, "before is given without mine");
    if (counts.before.empty()) return Wrong(layer, "mine is given without before");
    EPLB_RETURN_IF_ERROR(
        CheckNumber(layer, "before: counts", counts.before.size(), "expert", experts));
    EPLB_RETURN_IF_ERROR(CheckNumber(layer, "mine: counts", counts.mine.size(), "expert", experts));
  }
  const int32_t slots = topology.num_slots();
  EPLB_RETURN_IF_ERROR(CheckNumber(layer, "quotas", target.quotas.size(), "slot", slots));
  if (target.own.empty()) return absl::OkStatus();
  if (!by_prefix && counts.by_gpu.empty()) {
    return Wrong(
        layer, "own quotas asked for by totals alone, expected counts by GPU, or before and mine");
  }
  if (target.self.value < 0 || target.self.value >= topology.num_gpus()) {
    return Wrong(layer, absl::StrCat("own quotas of GPU ", target.self.value,
                                     " asked for, expected 0..", topology.num_gpus() - 1));
  }
  return CheckNumber(layer, "own quotas", target.own.size(), "slot", slots);
}

// Returns the tokens of each slot in equal shares. The first replicas take one more token if the
// shares do not divide.
std::vector<int64_t> EqualShares(const Placement& placement, LayerId layer,
                                 std::span<const int64_t> totals) {
  std::vector<int64_t> shares(static_cast<size_t>(placement.topology().num_slots()));
  for (size_t expert = 0; expert < totals.size(); ++expert) {
    const auto slots = placement.ReplicasOf(layer, ExpertId{static_cast<int32_t>(expert)});
    const auto number = static_cast<int64_t>(slots.size());
    int64_t left = totals[expert] % number;
    for (const int32_t slot : slots) {
      shares[static_cast<size_t>(slot)] = totals[expert] / number + (left-- > 0 ? 1 : 0);
    }
  }
  return shares;
}

absl::StatusOr<SplitGraph> MakeGraph(const Placement& placement, LayerId layer,
                                     const std::optional<GpuSpeeds>& speeds, double slack) {
  const Topology& whole = placement.topology();
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make({.num_layers = 1,
                                                                 .num_experts = whole.num_experts(),
                                                                 .num_slots = whole.num_slots(),
                                                                 .num_gpus = whole.num_gpus()}));
  EPLB_ASSIGN_OR_RETURN(
      const Placement alone,
      Placement::FromSlotsAndRanks(topology, placement.physical_to_logical_map().row(layer.value),
                                   placement.replica_rank().row(layer.value)));
  return SplitGraph::Make(alone,
                          {.speeds = speeds.has_value() ? &*speeds : nullptr, .slack = slack});
}

}  // namespace

absl::StatusOr<std::optional<GpuSpeeds>> ReadSpeeds(std::span<const double> given,
                                                    int32_t num_gpus) {
  if (given.empty()) return std::nullopt;
  std::vector<double> speeds(given.begin(), given.end());
  std::vector<int32_t> unusable;
  for (size_t gpu = 0; gpu < speeds.size(); ++gpu) {
    if (speeds[gpu] != 0) continue;
    unusable.push_back(static_cast<int32_t>(gpu));
    speeds[gpu] = 1;
  }
  EPLB_ASSIGN_OR_RETURN(GpuSpeeds made, GpuSpeeds::Make(num_gpus, speeds, unusable));
  return made;
}

BatchSplits::BatchSplits(std::shared_ptr<const Placement> placement, int64_t version)
    : placement_(std::move(placement)), version_(version) {
  const absl::MutexLock lock(&mutex_);
  prepared_.resize(static_cast<size_t>(placement_->topology().num_layers()));
}

void BatchSplits::Show(std::shared_ptr<const Placement> placement, int64_t version) {
  const absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < prepared_.size(); ++i) {
    const LayerId layer{static_cast<int32_t>(i)};
    if (prepared_[i] == nullptr || placement->Layer(layer) == placement_->Layer(layer)) continue;
    prepared_[i].reset();
  }
  placement_ = std::move(placement);
  version_ = version;
  next_to_prepare_ = 0;
}

absl::StatusOr<bool> BatchSplits::PrepareNext() {
  const absl::MutexLock lock(&mutex_);
  while (next_to_prepare_ < prepared_.size()) {
    const LayerId layer{static_cast<int32_t>(next_to_prepare_++)};
    if (prepared_[static_cast<size_t>(layer.value)] != nullptr) continue;
    EPLB_RETURN_IF_ERROR(Prepare(layer));
    return true;
  }
  return false;
}

absl::Status BatchSplits::Prepare(LayerId layer) {
  EPLB_ASSIGN_OR_RETURN(SplitGraph graph, MakeGraph(*placement_, layer, speeds_, slack_));
  prepared_[static_cast<size_t>(layer.value)] = std::make_unique<Prepared>(std::move(graph));
  return absl::OkStatus();
}

absl::Status BatchSplits::SetOptions(const SplitOptions& options) {
  const absl::MutexLock lock(&mutex_);
  EPLB_ASSIGN_OR_RETURN(const std::optional<GpuSpeeds> speeds,
                        ReadSpeeds(options.gpu_speeds, placement_->topology().num_gpus()));
  // Options that are wrong are wrong in every layer, because a GPU holds experts in all or in none.
  EPLB_ASSIGN_OR_RETURN(SplitGraph first,
                        MakeGraph(*placement_, LayerId{0}, speeds, options.slack));
  for (std::unique_ptr<Prepared>& layer : prepared_) layer.reset();
  prepared_.front() = std::make_unique<Prepared>(std::move(first));
  speeds_ = speeds;
  slack_ = options.slack;
  ++options_version_;
  next_to_prepare_ = 0;
  return absl::OkStatus();
}

SplitOptions BatchSplits::options() const {
  const absl::MutexLock lock(&mutex_);
  SplitOptions options{.slack = slack_};
  if (speeds_.has_value()) {
    options.gpu_speeds.assign(speeds_->speeds().begin(), speeds_->speeds().end());
  }
  return options;
}

int64_t BatchSplits::options_version() const {
  const absl::MutexLock lock(&mutex_);
  return options_version_;
}

std::shared_ptr<const Placement> BatchSplits::placement() const {
  const absl::MutexLock lock(&mutex_);
  return placement_;
}

absl::StatusOr<SplitGraph> BatchSplits::GraphOf(const Placement& placement, LayerId layer) const {
  const absl::MutexLock lock(&mutex_);
  return MakeGraph(placement, layer, speeds_, slack_);
}

absl::StatusOr<SplitFigures> BatchSplits::Split(LayerId layer, const BatchCounts& counts,
                                                const SplitTarget& target) {
  const absl::MutexLock lock(&mutex_);
  const Topology& topology = placement_->topology();
  EPLB_RETURN_IF_ERROR(CheckLayer(topology, layer));
  EPLB_RETURN_IF_ERROR(CheckCountsForm(topology, layer, counts));
  EPLB_RETURN_IF_ERROR(CheckForm(topology, layer, counts, target));
  EPLB_ASSIGN_OR_RETURN(const std::span<const int64_t> totals, TotalsOf(layer, counts));
  const std::unique_ptr<Prepared>& prepared = prepared_[static_cast<size_t>(layer.value)];
  if (prepared == nullptr) EPLB_RETURN_IF_ERROR(Prepare(layer));
  quotas_.resize(static_cast<size_t>(topology.num_slots()));
  EPLB_ASSIGN_OR_RETURN(SplitBound bound, prepared->splitter.Split(LayerId{0}, totals, quotas_));
  if (!target.own.empty()) EPLB_RETURN_IF_ERROR(WriteOwn(layer, counts, target));
  std::copy(quotas_.begin(), quotas_.end(), target.quotas.begin());
  SplitFigures figures = FiguresOf(layer, quotas_, totals);
  figures.tight_gpus = std::move(bound.tight_gpus);
  return figures;
}

absl::Status BatchSplits::Check(LayerId layer, const BatchCounts& counts) {
  const absl::MutexLock lock(&mutex_);
  EPLB_RETURN_IF_ERROR(CheckLayer(placement_->topology(), layer));
  EPLB_RETURN_IF_ERROR(CheckCountsForm(placement_->topology(), layer, counts));
  return TotalsOf(layer, counts).status();
}

absl::StatusOr<std::span<const int64_t>> BatchSplits::TotalsOf(LayerId layer,
                                                               const BatchCounts& counts) {
  std::span<const int64_t> totals = counts.totals;
  if (totals.empty()) {
    const auto experts = static_cast<size_t>(placement_->topology().num_experts());
    sums_.assign(experts, 0);
    for (size_t row = 0; row < counts.by_gpu.size(); row += experts) {
      for (size_t expert = 0; expert < experts; ++expert) {
        const int64_t count = counts.by_gpu[row + expert];
        // So that no sum of SplitGraph::kMaxGpus rows can overflow.
        if (count < 0 || count > kMaxSplitTokens) {
          return InvalidInput("layer ", layer.value, ": expert ", expert, " has ", count,
                              " tokens of GPU ", row / experts, ", expected 0..", kMaxSplitTokens);
        }
        sums_[expert] += count;
      }
    }
    totals = sums_;
  }
  int64_t sum = 0;
  for (size_t expert = 0; expert < totals.size(); ++expert) {
    if (totals[expert] < 0 || totals[expert] > kMaxSplitTokens - sum) {
      return InvalidInput("layer ", layer.value, ": expert ", expert, " has ", totals[expert],
                          " tokens, expected 0 or more and a sum of at most ", kMaxSplitTokens);
    }
    sum += totals[expert];
  }
  return totals;
}

absl::Status BatchSplits::WriteOwn(LayerId layer, const BatchCounts& counts,
                                   const SplitTarget& target) const {
  const SplitBatch batch{.placement = *placement_, .layer = layer, .quotas = quotas_};
  if (!counts.by_gpu.empty()) {
    OwnQuotas(batch, counts.by_gpu, target.self, target.own);
    return absl::OkStatus();
  }
  for (size_t expert = 0; expert < counts.totals.size(); ++expert) {
    const int64_t total = counts.totals[expert];
    const int64_t before = counts.before[expert];
    const int64_t mine = counts.mine[expert];
    if (before >= 0 && mine >= 0 && before <= total && mine <= total - before) continue;
    return InvalidInput("layer ", layer.value, ": expert ", expert, " has ", before,
                        " tokens of lower ranks and ", mine, " of this one, ", total, " in all");
  }
  OwnQuotasByPrefix(batch, counts.before, counts.mine, target.own);
  return absl::OkStatus();
}

double BatchSplits::PeakOf(std::span<const int64_t> slot_tokens) const {
  const Topology& topology = placement_->topology();
  double peak = 0;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (speeds_.has_value() && !speeds_->Usable(GpuId{gpu})) continue;
    const auto first = static_cast<size_t>(topology.FirstSlotOf(GpuId{gpu}).value);
    const auto end = first + static_cast<size_t>(topology.SlotsOf(GpuId{gpu}));
    int64_t tokens = 0;
    for (size_t slot = first; slot < end; ++slot) tokens += slot_tokens[slot];
    const double speed = speeds_.has_value() ? speeds_->SpeedOf(GpuId{gpu}) : 1;
    peak = std::max(peak, static_cast<double>(tokens) / speed);
  }
  return peak;
}

SplitFigures BatchSplits::FiguresOf(LayerId layer, std::span<const int64_t> quotas) const {
  const absl::MutexLock lock(&mutex_);
  std::vector<int64_t> totals;
  for (int32_t expert = 0; expert < placement_->topology().num_experts(); ++expert) {
    totals.push_back(0);
    for (const int32_t slot : placement_->ReplicasOf(layer, ExpertId{expert})) {
      totals.back() += quotas[static_cast<size_t>(slot)];
    }
  }
  return FiguresOf(layer, quotas, totals);
}

SplitFigures BatchSplits::FiguresOf(LayerId layer, std::span<const int64_t> quotas,
                                    std::span<const int64_t> totals) const {
  const Topology& topology = placement_->topology();
  SplitFigures figures{.version = version_, .peak = PeakOf(quotas)};
  figures.equal_peak = PeakOf(EqualShares(*placement_, layer, totals));
  double loads = 0;
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const GpuId gpu = topology.GpuOf(SlotId{slot});
    const auto tokens = static_cast<double>(quotas[static_cast<size_t>(slot)]);
    if (tokens > 0) loads += tokens / (speeds_.has_value() ? speeds_->SpeedOf(gpu) : 1);
  }
  figures.mean = loads / (speeds_.has_value() ? speeds_->num_usable() : topology.num_gpus());
  if (figures.peak > 0) figures.balancedness = figures.mean / figures.peak;
  return figures;
}

}  // namespace eplb
