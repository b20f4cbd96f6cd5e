#include "placement/search/split_peaks.h"

#include <algorithm>
#include <numeric>

#include "placement/split/token_split.h"

namespace eplb {
namespace {

constexpr int64_t kBatchTokens = int64_t{1} << 30;

}  // namespace

SplitPeaks::SplitPeaks(const Domain& domain, std::span<const std::vector<double>> batches)
    : domain_(domain),
      speeds_(SplitSpeeds(domain.speed)),
      builder_(domain.GpuOfSlot(), domain.num_gpus()),
      solver_(SplitSolver::Make(domain.num_gpus())) {
  const auto total_speed =
      static_cast<double>(std::accumulate(speeds_.begin(), speeds_.end(), int64_t{0}));
  for (size_t i = 0; i < batches.size(); ++i) {
    std::vector<int64_t> counts = ScaledTokens(batches[i], kBatchTokens);
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (sum == 0) continue;
    batches_.push_back({i, std::move(counts), static_cast<double>(sum) / total_speed});
  }
}

double SplitPeaks::MeanOf(std::span<const int32_t> layout) {
  if (batches_.empty()) return 1;
  Prepare(layout);
  double sum = 0;
  for (const Batch& batch : batches_) sum += RatioOf(batch, nullptr);
  return sum / static_cast<double>(batches_.size());
}

SplitPeaks::Worst SplitPeaks::WorstOf(std::span<const int32_t> layout) {
  Prepare(layout);
  Worst worst{.tight = std::vector<bool>(domain_.slots.size(), false)};
  std::vector<int32_t> tight_gpus;
  for (const Batch& batch : batches_) {
    const double ratio = RatioOf(batch, &tight_gpus);
    if (ratio <= worst.ratio) continue;
    worst.batch = batch.index;
    worst.ratio = ratio;
    worst.tight.assign(domain_.slots.size(), false);
    for (const int32_t gpu : tight_gpus) worst.tight[AsIndex(gpu)] = true;
  }
  return worst;
}

double SplitPeaks::RatioOf(const Batch& batch, std::vector<int32_t>* tight_gpus) {
  const SplitPeak peak = solver_->Solve(batch.counts.data(), {}, {.tight_gpus = tight_gpus});
  const double load = static_cast<double>(peak.tokens) / static_cast<double>(peak.speed);
  return std::max(1.0, load / batch.mean);
}

void SplitPeaks::Prepare(std::span<const int32_t> layout) {
  first_slot_.assign(domain_.load.size() + 1, 0);
  for (const int32_t expert : layout) ++first_slot_[AsIndex(expert) + 1];
  std::partial_sum(first_slot_.begin(), first_slot_.end(), first_slot_.begin());
  next_.assign(first_slot_.begin(), first_slot_.end() - 1);
  slots_of_expert_.resize(layout.size());
  for (size_t slot = 0; slot < layout.size(); ++slot) {
    const int32_t at = next_[AsIndex(layout[slot])]++;
    slots_of_expert_[AsIndex(at)] = static_cast<int32_t>(slot);
  }
  builder_.Start();
  for (size_t expert = 0; expert < domain_.load.size(); ++expert) {
    const auto first = AsIndex(first_slot_[expert]);
    builder_.Add(
        std::span(slots_of_expert_).subspan(first, AsIndex(first_slot_[expert + 1]) - first));
  }
  solver_->Prepare(builder_.Finish(speeds_));
}

}  // namespace eplb
