#include "placement/search/scenario_walk.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "placement/policy.h"

namespace eplb {
namespace {

constexpr int32_t kLanes = 4;
constexpr uint64_t kWalkSeed = 1;

// tests/bench/scenarios.py judges the constants.
//
// Exponents of two of p. GPU loads are 1 % apart where balance is good: (1.01)^256 is 13.
constexpr int32_t kDescendLogPowers[] = {4, 5, 6, 7, 8};
constexpr int32_t kAnnealLogPowers[] = {5, 6, 7, 8};
// One of so many proposals is a replacement, the others are exchanges.
constexpr int32_t kProposalsPerReplacement = 8;
// An annealing begins with steps that raise the objective by up to this part of its distance from
// perfect balance. The limit falls again and again by a tenth, in all to 1/400.
constexpr double kFirstThreshold = 0.06;
constexpr double kCooling = 0.9;
constexpr int64_t kCoolings = 57;

// The order of the additions is the same on every machine.
double Sum(const Eigen::Array4d& block) { return (block[0] + block[1]) + (block[2] + block[3]); }

size_t NumBlocks(size_t scenarios) { return (scenarios + kLanes - 1) / kLanes; }

double MeanGpuLoad(const Domain& domain, const std::vector<double>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), 0.0) / domain.total_speed();
}

}  // namespace

ScenarioWalk::ScenarioWalk(const Domain& domain, const ScenarioLoads& loads,
                           const ScenarioIncumbent& incumbent)
    : domain_(domain),
      incumbent_(incumbent),
      objective_(loads.objective),
      num_scenarios_(loads.tokens.size()),
      num_blocks_(NumBlocks(num_scenarios_)),
      arrangement_(domain),
      random_(kWalkSeed),
      weight_(num_blocks_, Block::Zero()),
      load_(domain.load.size() * num_blocks_, Block::Zero()),
      scale_(num_blocks_, Block::Ones()),
      unit_(load_.size(), Block::Zero()),
      gpu_load_(domain.slots.size() * num_blocks_, Block::Zero()),
      power_(gpu_load_.size(), Block::Zero()),
      sum_(num_blocks_, Block::Zero()),
      slope_(num_blocks_, Block::Zero()),
      trial_place_(domain.slots.size(), -1),
      next_unit_(num_blocks_),
      next_other_unit_(num_blocks_) {
  const double weights = std::accumulate(loads.weights.begin(), loads.weights.end(), 0.0);
  for (size_t k = 0; k < num_scenarios_; ++k) {
    const auto lane = static_cast<Eigen::Index>(k % kLanes);
    weight_[k / kLanes][lane] = loads.weights[k] / weights;
    const double mean = MeanGpuLoad(domain, loads.tokens[k]);
    for (size_t expert = 0; expert < loads.tokens[k].size(); ++expert) {
      load_[expert * num_blocks_ + k / kLanes][lane] = loads.tokens[k][expert] / mean;
    }
  }
  if (incumbent.layout.empty()) return;
  had_.assign(domain.slots.size() * domain.load.size(), 0);
  for (size_t slot = 0; slot < incumbent.layout.size(); ++slot) {
    const int32_t gpu = arrangement_.gpu_of(static_cast<int32_t>(slot));
    had_[AsIndex(gpu) * domain.load.size() + AsIndex(incumbent.layout[slot])] = 1;
  }
}

void ScenarioWalk::Start(std::span<const int32_t> layout) {
  arrangement_.Assign(layout);
  for (int32_t expert = 0; expert < domain_.num_experts(); ++expert) SetUnit(expert);
  Refresh();
}

bool ScenarioWalk::Pack() {
  // A packing begins with the copies that GPUs are forced to hold, on all nodes.
  if (domain_.has_node_affinity() &&
      (!domain_.only_on_affine_node || domain_.ForcedReplicas() > 0)) {
    return false;
  }
  const std::vector<int32_t> before(arrangement_.experts().begin(), arrangement_.experts().end());
  const std::vector<int32_t> counts(arrangement_.counts().begin(), arrangement_.counts().end());
  std::ranges::fill(scale_, Block::Ones());
  for (int32_t expert = 0; expert < domain_.num_experts(); ++expert) SetUnit(expert);
  if (packer_.PackBy(counts, *this, arrangement_)) return true;
  Start(before);
  return false;
}

double ScenarioWalk::UnitOf(int32_t expert) const {
  double most = 0;
  for (size_t b = 0; b < num_blocks_; ++b) most = std::max(most, Of(unit_, expert)[b].maxCoeff());
  return most;
}

double ScenarioWalk::LoadAfter(int32_t gpu, int32_t expert) const {
  double most = 0;
  for (size_t b = 0; b < num_blocks_; ++b) {
    const Block load =
        Of(gpu_load_, gpu)[b] + Of(unit_, expert)[b] * arrangement_.inverse_speed(gpu);
    most = std::max(most, load.maxCoeff());
  }
  return most;
}

void ScenarioWalk::Placed(int32_t gpu, int32_t expert) {
  for (size_t b = 0; b < num_blocks_; ++b) {
    Of(gpu_load_, gpu)[b] += Of(unit_, expert)[b] * arrangement_.inverse_speed(gpu);
  }
}

void ScenarioWalk::SetUnit(int32_t expert) {
  const double replicas = std::max(arrangement_.count(expert), 1);
  for (size_t b = 0; b < num_blocks_; ++b) {
    Of(unit_, expert)[b] = Of(load_, expert)[b] / (scale_[b] * replicas);
  }
}

void ScenarioWalk::Refresh() {
  std::ranges::fill(gpu_load_, Block::Zero());
  for (int32_t slot = 0; slot < arrangement_.num_slots(); ++slot) {
    const int32_t expert = arrangement_.expert_in(slot);
    if (expert != Arrangement::kEmpty) Placed(arrangement_.gpu_of(slot), expert);
  }
  copies_.assign(gpu_load_.size() / num_blocks_, 0);
  if (had_.empty()) return;
  for (int32_t slot = 0; slot < arrangement_.num_slots(); ++slot) {
    const int32_t gpu = arrangement_.gpu_of(slot);
    copies_[AsIndex(gpu)] += CopiesMore(gpu, arrangement_.expert_in(slot), Arrangement::kEmpty);
  }
}

std::vector<ScenarioWalk::Block> ScenarioWalk::Peaks() const {
  std::vector<Block> peaks(num_blocks_, Block::Zero());
  for (int32_t gpu = 0; gpu < domain_.num_gpus(); ++gpu) {
    for (size_t b = 0; b < num_blocks_; ++b) peaks[b] = peaks[b].max(Of(gpu_load_, gpu)[b]);
  }
  for (size_t b = 0; b < num_blocks_; ++b) peaks[b] *= scale_[b];
  return peaks;
}

double ScenarioWalk::Objective() const {
  const std::vector<Block> peaks = Peaks();
  double objective = 0;
  for (size_t b = 0; b < num_blocks_; ++b) {
    objective = objective_ == ScenarioObjective::kWorst ? std::max(objective, peaks[b].maxCoeff())
                                                        : objective + Sum(peaks[b] * weight_[b]);
  }
  return objective;
}

void ScenarioWalk::SetPower(int32_t log_power) {
  log_power_ = log_power;
  scale_ = Peaks();
  for (Block& scale : scale_) scale = (scale > 0).select(scale, 1.0);
  for (int32_t expert = 0; expert < domain_.num_experts(); ++expert) SetUnit(expert);
  Refresh();
  std::ranges::fill(sum_, Block::Zero());
  for (size_t i = 0; i < gpu_load_.size(); ++i) {
    power_[i] = Power(gpu_load_[i]);
    sum_[i % num_blocks_] += power_[i];
  }
  SetSlopes();
}

// The norm of a scenario is scale * sum^(1/p), and its slope norm / (p * sum). A root of 2^i is i
// square roots, which round alike on all machines. `worst` weighs scenarios by the p-th power of
// their norms.
void ScenarioWalk::SetSlopes() {
  std::vector<Block> norm = sum_;
  double largest = 0;
  for (size_t b = 0; b < num_blocks_; ++b) {
    for (int32_t i = 0; i < log_power_; ++i) norm[b] = norm[b].sqrt();
    norm[b] *= scale_[b];
    largest = std::max(largest, (weight_[b] > 0).select(norm[b], 0.0).maxCoeff());
  }
  for (size_t b = 0; b < num_blocks_; ++b) {
    const Block importance = objective_ == ScenarioObjective::kWorst
                                 ? (weight_[b] > 0).select(Power(norm[b] / largest), 0.0)
                                 : weight_[b];
    slope_[b] = (sum_[b] > 0)
                    .select(importance * norm[b] /
                                (static_cast<double>(int64_t{1} << log_power_) * sum_[b]),
                            0.0);
  }
}

int32_t ScenarioWalk::CopiesMore(int32_t gpu, int32_t arriving, int32_t leaving) const {
  if (had_.empty()) return 0;
  const size_t row = AsIndex(gpu) * domain_.load.size();
  const auto cost = [&](int32_t expert) {
    return expert == Arrangement::kEmpty || had_[row + AsIndex(expert)] != 0 ? 0 : 1;
  };
  return cost(arriving) - cost(leaving);
}

bool ScenarioWalk::Affordable(int32_t gpu, int32_t copies) const {
  return copies <= 0 || copies_[AsIndex(gpu)] + copies <= incumbent_.copies_per_gpu;
}

int32_t ScenarioWalk::FullestGpu(size_t scenario) const {
  const size_t block = scenario / kLanes;
  const auto lane = static_cast<Eigen::Index>(scenario % kLanes);
  int32_t fullest = 0;
  for (int32_t gpu = 1; gpu < domain_.num_gpus(); ++gpu) {
    if (Of(gpu_load_, gpu)[block][lane] > Of(gpu_load_, fullest)[block][lane]) fullest = gpu;
  }
  return fullest;
}

bool ScenarioWalk::TrySwap(int32_t a, int32_t b, double threshold) {
  const int32_t gpu_a = arrangement_.gpu_of(a);
  const int32_t gpu_b = arrangement_.gpu_of(b);
  const int32_t expert_a = arrangement_.expert_in(a);
  const int32_t expert_b = arrangement_.expert_in(b);
  if (gpu_a == gpu_b || expert_a == expert_b) return false;
  const double inverse_a = arrangement_.inverse_speed(gpu_a);
  const double inverse_b = arrangement_.inverse_speed(gpu_b);
  Block* load_a = Of(gpu_load_, gpu_a);
  Block* load_b = Of(gpu_load_, gpu_b);
  Block* power_a = Of(power_, gpu_a);
  Block* power_b = Of(power_, gpu_b);
  double change = 0;
  for (size_t i = 0; i < num_blocks_; ++i) {
    const Block more = Of(unit_, expert_b)[i] - Of(unit_, expert_a)[i];
    const Block powers = Power(load_a[i] + more * inverse_a) + Power(load_b[i] - more * inverse_b);
    change += Sum((powers - power_a[i] - power_b[i]) * slope_[i]);
  }
  // Written so that it is false for a change that is not a number.
  if (!(change < threshold)) return false;
  const int32_t copies_a = CopiesMore(gpu_a, expert_b, expert_a);
  const int32_t copies_b = CopiesMore(gpu_b, expert_a, expert_b);
  if (!(change + incumbent_.price * (copies_a + copies_b) < threshold) ||
      !Affordable(gpu_a, copies_a) || !Affordable(gpu_b, copies_b) || !arrangement_.MaySwap(a, b)) {
    return false;
  }
  arrangement_.Swap(a, b);
  copies_[AsIndex(gpu_a)] += copies_a;
  copies_[AsIndex(gpu_b)] += copies_b;
  for (size_t i = 0; i < num_blocks_; ++i) {
    const Block more = Of(unit_, expert_b)[i] - Of(unit_, expert_a)[i];
    load_a[i] += more * inverse_a;
    load_b[i] -= more * inverse_b;
    sum_[i] -= power_a[i] + power_b[i];
    power_a[i] = Power(load_a[i]);
    power_b[i] = Power(load_b[i]);
    sum_[i] += power_a[i] + power_b[i];
  }
  SetSlopes();
  return true;
}

void ScenarioWalk::AddToTrial(int32_t gpu, const Block* arriving, const Block* leaving) {
  int32_t& place = trial_place_[AsIndex(gpu)];
  if (place < 0) {
    place = static_cast<int32_t>(trial_gpus_.size());
    trial_gpus_.push_back(gpu);
    trial_load_.insert(trial_load_.end(), Of(gpu_load_, gpu), Of(gpu_load_, gpu) + num_blocks_);
  }
  for (size_t i = 0; i < num_blocks_; ++i) {
    Of(trial_load_, place)[i] += (arriving[i] - leaving[i]) * arrangement_.inverse_speed(gpu);
  }
}

double ScenarioWalk::TrialChange() const {
  double change = 0;
  for (size_t place = 0; place < trial_gpus_.size(); ++place) {
    const Block* before = Of(power_, trial_gpus_[place]);
    for (size_t i = 0; i < num_blocks_; ++i) {
      const Block after = Power(trial_load_[place * num_blocks_ + i]);
      change += Sum((after - before[i]) * slope_[i]);
    }
  }
  return change;
}

bool ScenarioWalk::TryReplace(int32_t slot, int32_t expert, double threshold) {
  const int32_t leaving = arrangement_.expert_in(slot);
  if (leaving == expert || arrangement_.count(leaving) < 2) return false;
  const int32_t gpu = arrangement_.gpu_of(slot);
  const double fewer = arrangement_.count(leaving) - 1;
  const double more = arrangement_.count(expert) + 1;
  for (size_t i = 0; i < num_blocks_; ++i) {
    next_unit_[i] = Of(load_, expert)[i] / (scale_[i] * more);
    next_other_unit_[i] = Of(load_, leaving)[i] / (scale_[i] * fewer);
  }
  trial_gpus_.clear();
  trial_load_.clear();
  AddToTrial(gpu, next_unit_.data(), Of(unit_, leaving));
  for (int32_t s = arrangement_.FirstOf(leaving); s != Arrangement::kEmpty;
       s = arrangement_.NextOf(s)) {
    if (s != slot) AddToTrial(arrangement_.gpu_of(s), next_other_unit_.data(), Of(unit_, leaving));
  }
  for (int32_t s = arrangement_.FirstOf(expert); s != Arrangement::kEmpty;
       s = arrangement_.NextOf(s)) {
    AddToTrial(arrangement_.gpu_of(s), next_unit_.data(), Of(unit_, expert));
  }
  for (const int32_t touched : trial_gpus_) trial_place_[AsIndex(touched)] = -1;
  const int32_t copies = CopiesMore(gpu, expert, leaving);
  if (!(TrialChange() + incumbent_.price * copies < threshold) || !Affordable(gpu, copies) ||
      !arrangement_.MayReplace(slot, expert)) {
    return false;
  }
  arrangement_.Replace(slot, expert);
  copies_[AsIndex(gpu)] += copies;
  SetUnit(expert);
  SetUnit(leaving);
  for (size_t place = 0; place < trial_gpus_.size(); ++place) {
    for (size_t i = 0; i < num_blocks_; ++i) {
      Block& power = Of(power_, trial_gpus_[place])[i];
      sum_[i] -= power;
      Of(gpu_load_, trial_gpus_[place])[i] = trial_load_[place * num_blocks_ + i];
      power = Power(trial_load_[place * num_blocks_ + i]);
      sum_[i] += power;
    }
  }
  SetSlopes();
  return true;
}

void ScenarioWalk::Propose(int32_t hot_gpu, double threshold) {
  int32_t a = random_.Below(arrangement_.num_slots());
  if (hot_gpu >= 0) {
    const int32_t first = arrangement_.first_slot(hot_gpu);
    a = first + random_.Below(arrangement_.end_slot(hot_gpu) - first);
  }
  const int32_t b = random_.Below(arrangement_.num_slots());
  const int32_t kind = random_.Below(2 * kProposalsPerReplacement);
  if (kind == 0) {
    TryReplace(b, arrangement_.expert_in(a), threshold);
  } else if (kind == 1) {
    TryReplace(a, arrangement_.expert_in(b), threshold);
  } else {
    TrySwap(a, b, threshold);
  }
}

void ScenarioWalk::Walk(int64_t proposals, bool anneal, const std::atomic<bool>* abandoned) {
  const std::span<const int32_t> log_powers =
      anneal ? std::span<const int32_t>(kAnnealLogPowers) : kDescendLogPowers;
  const int64_t per_power = proposals / std::ssize(log_powers);
  const int64_t per_cooling = std::max<int64_t>(proposals / (kCoolings + 1), 1);
  // Finding the fullest GPUs costs no more than the proposals between.
  const int64_t fresh = std::max<int64_t>(16, domain_.num_gpus() / 2);
  double most = anneal ? kFirstThreshold * std::max(Objective() - 1, 0.0) : 0;
  std::vector<int32_t> fullest(num_scenarios_);
  int64_t done = 0;
  for (size_t phase = 0; phase < log_powers.size(); ++phase) {
    SetPower(log_powers[phase]);
    // The fullest GPUs matter more and more.
    const auto aimed = static_cast<int32_t>(64 * phase / (log_powers.size() - 1));
    for (int64_t i = 0; i < per_power; ++i, ++done) {
      if (i % fresh == 0) {
        if (IsAbandoned(abandoned)) return;
        for (size_t k = 0; k < num_scenarios_; ++k) fullest[k] = FullestGpu(k);
      }
      if (done % per_cooling == 0 && done > 0) most *= kCooling;
      const double threshold = most > 0 ? most * random_.Part() : 0;
      const bool aims = random_.Below(128) < aimed;
      Propose(aims ? fullest[static_cast<size_t>(done) % num_scenarios_] : -1, threshold);
    }
  }
}

}  // namespace eplb
