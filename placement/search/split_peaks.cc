#include "placement/search/split_peaks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "placement/split/split_body.h"

namespace eplb {
namespace {

constexpr int64_t kBatchTokens = int64_t{1} << 30;

struct Batch {
  size_t index = 0;             // of the load that it was made of
  std::vector<int64_t> counts;  // [n]
  double mean = 0;              // tokens / speed of all GPUs
};

std::vector<Batch> BatchesOf(std::span<const std::vector<double>> loads, double total_speed) {
  std::vector<Batch> batches;
  for (size_t i = 0; i < loads.size(); ++i) {
    const std::vector<double>& load = loads[i];
    const double total = std::accumulate(load.begin(), load.end(), 0.0);
    if (!(total > 0) || !std::isfinite(total)) continue;
    Batch batch{.index = i};
    for (const double tokens : load) {
      batch.counts.push_back(std::llround(tokens / total * static_cast<double>(kBatchTokens)));
    }
    const int64_t sum = std::accumulate(batch.counts.begin(), batch.counts.end(), int64_t{0});
    batch.mean = static_cast<double>(sum) / total_speed;
    batches.push_back(std::move(batch));
  }
  return batches;
}

// As of SplitGraph: 1 where all are equal, else 24 bits of the fastest one's.
std::vector<int64_t> SplitSpeeds(const Domain& domain) {
  const double fastest = *std::max_element(domain.speed.begin(), domain.speed.end());
  std::vector<int64_t> speeds;
  for (const double speed : domain.speed) {
    const double scaled =
        domain.equal_speeds() ? 1 : speed / fastest * static_cast<double>(kMaxSplitSpeed);
    speeds.push_back(std::max<int64_t>(1, std::llround(scaled)));
  }
  return speeds;
}

}  // namespace

class SplitPeaks::Solver {
 public:
  virtual ~Solver() = default;
  virtual double MeanOf(std::span<const int32_t> layout, double power) = 0;
  virtual Worst WorstOf(std::span<const int32_t> layout) = 0;
};

// For up to 64 * kWords GPUs.
template <int kWords>
class SplitPeaks::SolverOf final : public SplitPeaks::Solver {
 public:
  SolverOf(const Domain& domain, std::span<const std::vector<double>> batches)
      : domain_(domain), speeds_(SplitSpeeds(domain)) {
    const double total =
        static_cast<double>(std::accumulate(speeds_.begin(), speeds_.end(), int64_t{0}));
    batches_ = BatchesOf(batches, total);
    const auto gpus = static_cast<size_t>(domain.num_gpus());
    const auto slots = static_cast<size_t>(domain.num_slots());
    part_tokens_.resize(slots);
    equal_.resize(slots);
    fixed_.resize(gpus);
    room_.resize(gpus);
    holders_.resize(slots);
    limit_.resize(gpus + 1);
    pushed_before_.resize(gpus + 1);
    neighbours_.resize(gpus);
    steps_.resize(gpus);
    each_.resize(slots);
    rest_.resize(slots);
    above_.resize(slots);
    levels_.resize(gpus + 1);
    path_.resize(gpus + 1);
    path_out_.resize(gpus + 1);
    path_in_.resize(gpus + 1);
  }

  double MeanOf(std::span<const int32_t> layout, double power) override {
    if (batches_.empty()) return 1;
    double sum = 0;
    ForEachPeak(layout, [&](const Batch& /*batch*/, double ratio, const GpuSet<kWords>& /*tight*/) {
      sum += std::pow(ratio, power);
    });
    return sum / static_cast<double>(batches_.size());
  }

  Worst WorstOf(std::span<const int32_t> layout) override {
    Worst worst{.tight = std::vector<bool>(domain_.slots.size(), false)};
    ForEachPeak(layout, [&](const Batch& batch, double ratio, const GpuSet<kWords>& tight) {
      if (ratio <= worst.ratio) return;
      worst.batch = batch.index;
      worst.ratio = ratio;
      for (int32_t gpu = 0; gpu < domain_.num_gpus(); ++gpu) {
        worst.tight[static_cast<size_t>(gpu)] = tight.Has(gpu);
      }
    });
    return worst;
  }

 private:
  // Calls with every batch, its least maximum / mean GPU load, >= 1, and the tight GPUs.
  template <class Visit>
  void ForEachPeak(std::span<const int32_t> layout, const Visit& visit) {
    const SplitLayer layer = Build(layout);
    SplitBody<kWords, OneThread> body(layer,
                                      {.part_tokens = part_tokens_.data(),
                                       .equal = equal_.data(),
                                       .each = each_.data(),
                                       .rest = rest_.data(),
                                       .above = above_.data(),
                                       .fixed = fixed_.data(),
                                       .room = room_.data(),
                                       .limit = limit_.data(),
                                       .pushed_before = pushed_before_.data(),
                                       .holders = holders_.data(),
                                       .neighbours = neighbours_.data(),
                                       .steps = steps_.data(),
                                       .levels = levels_.data(),
                                       .path = path_.data(),
                                       .path_out = path_out_.data(),
                                       .path_in = path_in_.data()},
                                      OneThread());
    body.FindHolders();
    for (const Batch& batch : batches_) {
      const LeastPeak<kWords> least = body.FindPeak(batch.counts.data());
      const double load =
          static_cast<double>(least.peak.tokens) / static_cast<double>(least.peak.speed);
      visit(batch, std::max(1.0, load / batch.mean), least.tight);
    }
  }

  // The tables of a layout. What WriteQuotas needs is missing, and the experts that only the GPUs
  // of another hold: they make a flow shorter by less than it takes to find them.
  SplitLayer Build(std::span<const int32_t> layout) {
    replicas_by_expert_.assign(domain_.load.size() + 1, 0);
    for (const int32_t expert : layout) ++replicas_by_expert_[static_cast<size_t>(expert) + 1];
    std::partial_sum(replicas_by_expert_.begin(), replicas_by_expert_.end(),
                     replicas_by_expert_.begin());
    slots_by_expert_.resize(layout.size());
    std::vector<int32_t>& next = next_;
    next.assign(replicas_by_expert_.begin(), replicas_by_expert_.end() - 1);
    size_t slot = 0;
    for (int32_t gpu = 0; gpu < domain_.num_gpus(); ++gpu) {
      for (int32_t i = 0; i < domain_.slots[static_cast<size_t>(gpu)]; ++i, ++slot) {
        slots_by_expert_[static_cast<size_t>(next[static_cast<size_t>(layout[slot])]++)] = gpu;
      }
    }
    AddParts();
    NumberParts();
    return {.num_gpus = domain_.num_gpus(),
            .num_slots = static_cast<int32_t>(layout.size()),
            .num_replicated = static_cast<int32_t>(expert_.size()),
            .equal_speeds = domain_.equal_speeds(),
            .speed = speeds_.data(),
            .num_fixed = static_cast<int32_t>(fixed_expert_.size()),
            .fixed_expert = fixed_expert_.data(),
            .fixed_gpu = fixed_gpu_.data(),
            .expert = expert_.data(),
            .num_replicas = num_replicas_.data(),
            .first_of_expert = first_of_expert_.data(),
            .expert_part = expert_part_.data(),
            .expert_gpu = expert_gpu_.data(),
            .expert_slots = expert_slots_.data(),
            .slots_before = slots_before_.data(),
            .expert_of = expert_of_.data(),
            .first_on_gpu = first_on_gpu_.data(),
            .part_expert = part_expert_.data(),
            .part_gpu = part_gpu_.data(),
            .next_part = next_part_.data()};
  }

  void AddParts() {
    for (std::vector<int32_t>* table : {&fixed_expert_, &fixed_gpu_, &expert_, &num_replicas_,
                                        &expert_gpu_, &expert_slots_, &slots_before_, &expert_of_})
      table->clear();
    first_of_expert_.assign(1, 0);
    for (size_t expert = 0; expert < domain_.load.size(); ++expert) {
      const auto first = static_cast<size_t>(replicas_by_expert_[expert]);
      const auto end = static_cast<size_t>(replicas_by_expert_[expert + 1]);
      if (slots_by_expert_[first] == slots_by_expert_[end - 1]) {
        fixed_expert_.push_back(static_cast<int32_t>(expert));
        fixed_gpu_.push_back(slots_by_expert_[first]);
        continue;
      }
      for (size_t i = first; i < end; ++i) {
        if (i > first && slots_by_expert_[i] == slots_by_expert_[i - 1]) {
          ++expert_slots_.back();
          continue;
        }
        expert_gpu_.push_back(slots_by_expert_[i]);
        expert_slots_.push_back(1);
        slots_before_.push_back(static_cast<int32_t>(i - first));
        expert_of_.push_back(static_cast<int32_t>(expert_.size()));
      }
      expert_.push_back(static_cast<int32_t>(expert));
      num_replicas_.push_back(static_cast<int32_t>(end - first));
      first_of_expert_.push_back(static_cast<int32_t>(expert_gpu_.size()));
    }
  }

  // GPU by GPU.
  void NumberParts() {
    first_on_gpu_.assign(domain_.slots.size() + 1, 0);
    for (const int32_t gpu : expert_gpu_) ++first_on_gpu_[static_cast<size_t>(gpu) + 1];
    std::partial_sum(first_on_gpu_.begin(), first_on_gpu_.end(), first_on_gpu_.begin());
    next_.assign(first_on_gpu_.begin(), first_on_gpu_.end() - 1);
    expert_part_.resize(expert_gpu_.size());
    part_expert_.resize(expert_gpu_.size());
    part_gpu_.resize(expert_gpu_.size());
    next_part_.resize(expert_gpu_.size());
    for (size_t i = 0; i < expert_gpu_.size(); ++i) {
      const int32_t part = next_[static_cast<size_t>(expert_gpu_[i])]++;
      expert_part_[i] = part;
      part_expert_[static_cast<size_t>(part)] = expert_of_[i];
      part_gpu_[static_cast<size_t>(part)] = expert_gpu_[i];
    }
    for (size_t i = 0; i < expert_part_.size(); ++i) {
      const auto expert = static_cast<size_t>(expert_of_[i]);
      const bool is_last = static_cast<int32_t>(i) + 1 == first_of_expert_[expert + 1];
      const auto next = is_last ? static_cast<size_t>(first_of_expert_[expert]) : i + 1;
      next_part_[static_cast<size_t>(expert_part_[i])] = expert_part_[next];
    }
  }

  const Domain& domain_;
  std::vector<Batch> batches_;
  std::vector<int64_t> speeds_;  // [m]
  std::vector<int32_t> replicas_by_expert_, slots_by_expert_, next_;
  // As SplitLayer.
  std::vector<int32_t> fixed_expert_, fixed_gpu_, expert_, num_replicas_, first_of_expert_,
      expert_part_, expert_gpu_, expert_slots_, slots_before_, expert_of_, first_on_gpu_,
      part_expert_, part_gpu_, next_part_;
  std::vector<int64_t> part_tokens_, equal_, each_, rest_, above_, fixed_, room_, limit_,
      pushed_before_;
  std::vector<GpuSet<kWords>> holders_, neighbours_, steps_, levels_;
  std::vector<int32_t> path_, path_out_, path_in_;
};

SplitPeaks::SplitPeaks(const Domain& domain, std::span<const std::vector<double>> batches) {
  if (domain.num_gpus() <= GpuSet<1>::kMaxGpus) {
    solver_ = std::make_unique<SolverOf<1>>(domain, batches);
  } else if (domain.num_gpus() <= GpuSet<4>::kMaxGpus) {
    solver_ = std::make_unique<SolverOf<4>>(domain, batches);
  } else {
    solver_ = std::make_unique<SolverOf<16>>(domain, batches);
  }
}

SplitPeaks::~SplitPeaks() = default;

double SplitPeaks::MeanOf(std::span<const int32_t> layout, double power) {
  return solver_->MeanOf(layout, power);
}

SplitPeaks::Worst SplitPeaks::WorstOf(std::span<const int32_t> layout) {
  return solver_->WorstOf(layout);
}

}  // namespace eplb
