#include "placement/search/domain_solver.h"

#include <algorithm>
#include <limits>

#include "placement/search/domain_bound.h"

namespace eplb {

namespace {

// Iterated local search (H. Lourenco, O. Martin, T. Stuetzle: Iterated Local Search, 2003): greedy
// starts, improvement steps, perturbation. tests/bench/peers_table.py judges the constants: the
// answers on seeded workloads, beside other balancers and beside the proved bound.
constexpr uint64_t kSeed = 1;
constexpr int32_t kFewHot = 3;
constexpr double kNear = 0.01;
// Largest units to level hot experts to, as parts of the mean GPU load: one, two or three of them
// on a GPU beside cold experts.
constexpr double kLevels[] = {0.85, 0.93, 0.98, 0.48, 0.75, 0.65, 0.55, 0.44, 0.32, 0.4};
// The part of the work that one seed may take; the first of all may take more.
constexpr int64_t kSeedParts = 30;
constexpr int64_t kFirstSeedParts = 4;
constexpr int32_t kPerturbAgain = 4;
// The part of the work that a start from elsewhere may take, and the least, for small domains.
constexpr int64_t kOtherStartParts = 15;
constexpr int64_t kLeastOtherStart = 20'000;
// The part of the largest GPU load that it has to win: more than rounding.
constexpr double kLeastImprovement = 1e-12;
// Work of the last walk after every vector of counts was tried.
constexpr int64_t kWorkAfterAllCounts = 1'000'000;

constexpr int64_t kDefaultWork = 15;              // times the steps of the greedy algorithm
constexpr int64_t kThoroughWork = 1'600'000'000;  // in all layers; some five seconds
constexpr int64_t kThoroughWorkPerLayer = 80'000'000;

// Ways to spend `spare` slots on `experts`: C(spare + experts - 1, experts - 1), kMany if larger.
constexpr int64_t kMany = int64_t{1} << 40;
int64_t NumCountVectors(int32_t spare, int32_t experts) {
  int64_t ways = 1;
  for (int64_t i = 1; i < experts; ++i) {
    ways = ways * (spare + i) / i;
    if (ways > kMany) return kMany;
  }
  return ways;
}

}  // namespace

SearchLimits LimitsOf(Effort effort, const Domain& domain, int32_t num_layers) {
  // Steps of the greedy algorithm itself.
  const int64_t greedy = int64_t{domain.num_slots() - domain.num_experts()} * domain.num_experts() +
                         int64_t{domain.num_slots()} * domain.num_gpus();
  switch (effort) {
    case Effort::kFast:
      return {.tolerance = 1e-3, .work = greedy, .full_bound = false};
    case Effort::kDefault:
      return {.tolerance = 3e-4, .work = kDefaultWork * greedy, .hot_seeds = 30};
    case Effort::kThorough:
      return {.tolerance = 1e-5,
              .work = std::max(std::min(kThoroughWork / num_layers, kThoroughWorkPerLayer),
                               kDefaultWork * greedy),
              .hot_seeds = 500,
              .count_vectors = 20'000};
  }
  return {};
}

DomainSolver::DomainSolver(const Domain& domain)
    : domain_(&domain),
      replicator_(domain),
      random_(kSeed),
      arrangement_(domain),
      equal_gpus_(domain.equal_speeds() && domain.num_slots() % domain.num_gpus() == 0),
      no_duplicates_(domain.MaxReplicas() == domain.num_gpus()) {}

void DomainSolver::Begin(const SearchLimits& limits) {
  limits_ = limits;
  work_ = {.left = limits.work, .abandoned = limits.abandoned};
  bound_ = 0;
  enough_ = 0;
  random_ = SearchRandom(kSeed);
  best_peak_ = std::numeric_limits<double>::infinity();
  best_.clear();
  replicator_.Begin();
}

double DomainSolver::target() const { return std::max(bound_ * (1 + limits_.tolerance), enough_); }

void DomainSolver::Keep() {
  const double peak = arrangement_.MaxLoad();
  if (peak >= best_peak_) return;
  best_peak_ = peak;
  best_.assign(arrangement_.experts().begin(), arrangement_.experts().end());
}

void DomainSolver::Offer(std::span<const int32_t> experts) {
  arrangement_.Assign(experts);
  Keep();
}

bool DomainSolver::TrySeed() {
  --seeds_left_;
  if (Hopeless(counts_)) return false;
  packer_.Pack(counts_, arrangement_);
  work_.left -= int64_t{8} * domain_->num_slots() + int64_t{16} * domain_->num_experts();
  // A seed that needs more than its part is given up for the next.
  const int64_t parts = best_.empty() ? kFirstSeedParts : kSeedParts;
  const int64_t part = std::min(work_.left, limits_.work / parts);
  WorkBudget budget = {.left = part, .abandoned = limits_.abandoned};
  descent_.Swaps(target(), arrangement_, budget);
  work_.left -= part - budget.left;
  Keep();
  return true;
}

// The GPU of the largest unit holds at least the smallest units of other experts beside it.
bool DomainSolver::Hopeless(std::span<const int32_t> counts) {
  if (!equal_gpus_ || !no_duplicates_ || best_.empty()) return false;
  work_.left -= domain_->num_experts();
  units_.clear();
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    units_.push_back(domain_->load[expert] / counts[expert]);
  }
  const auto others = std::min(units_.size(), AsIndex(domain_->slots.front() - 1));
  const double largest = *std::ranges::max_element(units_);
  std::nth_element(units_.begin(), units_.begin() + static_cast<std::ptrdiff_t>(others),
                   units_.end());
  double sum = largest;
  for (size_t i = 0; i < others; ++i) sum += units_[i];
  return sum / domain_->speed.front() >= best_peak_;
}

// Visits every vector of counts from `expert` on that spends `spare` more slots.
void DomainSolver::TryAllCounts(int32_t expert, int32_t spare) {
  if (Done() || work_.spent()) return;
  const int32_t least = domain_->MinReplicas();
  int32_t& count = counts_[AsIndex(expert)];
  if (expert + 1 == domain_->num_experts()) {
    if (least + spare > domain_->MaxReplicas()) return;
    count = least + spare;
    if (TrySeed()) Walk(work_per_counts_);
    return;
  }
  for (int32_t more = 0; more <= std::min(spare, domain_->MaxReplicas() - least); ++more) {
    counts_[AsIndex(expert)] = least + more;
    TryAllCounts(expert + 1, spare - more);
  }
}

bool DomainSolver::TryHot(int32_t num_hot, int32_t hot_slots) {
  for (const auto spare : {Replicator::Spare::kToHeaviest, Replicator::Spare::kToLightest}) {
    if (hot_slots <= 0 || !replicator_.GreedyWithHot(num_hot, hot_slots, spare, counts_)) break;
    TrySeed();
    if (!SeedsLeft()) return false;
  }
  return true;
}

bool DomainSolver::SeedsLeft() const {
  return !Done() && seeds_left_ > 0 && work_.left > least_work_;
}

// Counts for the hottest experts that leave the others the same number of slots on every GPU, but
// for `more` slots.
bool DomainSolver::TryEvenCold(int32_t num_hot, int32_t more) {
  const int32_t slots = domain_->num_slots();
  const int32_t gpus = domain_->num_gpus();
  const int32_t least = domain_->num_experts() - num_hot;
  for (int32_t cold = slots / gpus * gpus; cold + more >= least; cold -= gpus) {
    if (!TryHot(num_hot, slots - cold - more)) return false;
  }
  return true;
}

bool DomainSolver::TryFewHot() {
  const int32_t most = std::min(kFewHot, domain_->num_experts());
  for (const int32_t more : {0, 1, -1}) {
    for (int32_t num_hot = 1; num_hot <= most; ++num_hot) {
      if (!TryEvenCold(num_hot, more)) return false;
    }
  }
  return true;
}

void DomainSolver::TryHotSeeds() {
  const int32_t spare = domain_->num_slots() - domain_->num_experts();
  const int32_t most_hot = std::min(spare, domain_->num_experts());
  for (int32_t num_hot = kFewHot + 1; num_hot <= most_hot; num_hot += 1 + num_hot / 4) {
    if (!TryEvenCold(num_hot, 0)) return;
  }
  for (int32_t num_hot = 1; num_hot <= std::min(most_hot, kFewHot); ++num_hot) {
    for (int32_t hot_slots = num_hot + 1; hot_slots <= num_hot + spare; ++hot_slots) {
      if (!TryHot(num_hot, hot_slots)) return;
    }
  }
}

void DomainSolver::Perturb() {
  const int32_t hot = arrangement_.HottestGpu();
  const int32_t a = arrangement_.first_slot(hot) +
                    random_.Below(arrangement_.end_slot(hot) - arrangement_.first_slot(hot));
  const int32_t b = random_.Below(arrangement_.num_slots());
  work_.left -= 4;
  if (random_.Below(4) == 0) {
    const bool give = random_.Below(2) == 0;
    const int32_t slot = give ? b : a;
    const int32_t expert = give ? arrangement_.expert_in(a) : arrangement_.expert_in(b);
    if (arrangement_.MayReplace(slot, expert)) arrangement_.Replace(slot, expert);
  } else if (arrangement_.gpu_of(b) != hot && arrangement_.MaySwap(a, b)) {
    arrangement_.Swap(a, b);
  }
}

void DomainSolver::Walk(int64_t work) {
  double peak = arrangement_.MaxLoad();
  const int64_t stop = std::max<int64_t>(work_.left - work, 0);
  while (work_.left > stop && !Done()) {
    arrangement_.BeginJournal();
    Perturb();
    // Now and then more than one, or the descent finds its way back from each.
    while (random_.Below(kPerturbAgain) == 0) Perturb();
    if (random_.Below(16) == 0) {
      descent_.SwapsAndCounts(target(), arrangement_, work_);
    } else {
      descent_.Swaps(target(), arrangement_, work_);
    }
    const double after = arrangement_.MaxLoad();
    if (after > peak) {
      arrangement_.RollBack();
      continue;
    }
    peak = after;
    Keep();
  }
}

void DomainSolver::FindBound() {
  // After the greedy counts no counts have a smaller largest unit.
  const double fastest = *std::ranges::max_element(domain_->speed);
  double largest_unit = 0;
  for (size_t expert = 0; expert < counts_.size(); ++expert) {
    largest_unit = std::max(largest_unit, domain_->load[expert] / counts_[expert]);
  }
  bound_ = std::max(domain_->total_load() / domain_->total_speed(), largest_unit / fastest);
}

const Arrangement& DomainSolver::Solve() {
  replicator_.Greedy(counts_);
  FindBound();
  if (domain_->has_node_affinity()) {
    TryOnAffineNode();
  } else {
    TrySeed();
    if (!Done() && limits_.full_bound) bound_ = std::max(bound_, DomainBound(*domain_));
    // Near the bound, steps from here lead further than other seeds.
    if (limits_.hot_seeds > 0 && best_peak_ < bound_ * (1 + kNear)) Descend(work_.left / 4);
    TrySeeds();
  }
  if (limits_.hot_seeds > 0) Descend(work_.left);
  return Finish();
}

const Arrangement& DomainSolver::Improve() {
  replicator_.Greedy(counts_);
  FindBound();
  Descend(work_.left);
  return Finish();
}

const Arrangement& DomainSolver::Finish() {
  if (!Done() && !work_.spent()) {
    arrangement_.Assign(best_);
    Walk(work_.left);
  }
  arrangement_.Assign(best_);
  return arrangement_;
}

const Arrangement& DomainSolver::SolveFrom(std::span<const int32_t> experts) {
  if (Done()) return arrangement_;
  const double own_peak = best_peak_;
  std::vector<int32_t> own = best_;
  arrangement_.Assign(experts);
  work_.left = std::max(limits_.work / kOtherStartParts, kLeastOtherStart);
  descent_.SwapsAndCounts(target(), arrangement_, work_);
  Keep();
  Walk(work_.left);
  if (best_peak_ > own_peak * (1 - kLeastImprovement)) {
    best_peak_ = own_peak;
    best_ = std::move(own);
  }
  arrangement_.Assign(best_);
  return arrangement_;
}

void DomainSolver::TrySeeds() {
  if (Done() || work_.spent() || limits_.hot_seeds == 0) return;
  const int32_t spare = domain_->num_slots() - domain_->MinReplicas() * domain_->num_experts();
  const int64_t vectors = NumCountVectors(spare, domain_->num_experts());
  if (vectors <= limits_.count_vectors) {
    work_per_counts_ = std::min(kWorkAfterAllCounts, work_.left / 2) / vectors;
    TryAllCounts(0, spare);
    work_.left = std::min(work_.left, kWorkAfterAllCounts);
    return;
  }
  seeds_left_ = limits_.hot_seeds;
  least_work_ = work_.left / 2;
  if (TryFewHot() && TryLevels()) TryHotSeeds();
}

bool DomainSolver::TryLevels() {
  const double mean = domain_->total_load() / domain_->total_speed();
  for (const double level : kLevels) {
    if (!replicator_.Level(level * mean, counts_)) continue;
    TrySeed();
    if (!SeedsLeft()) return false;
  }
  return true;
}

void DomainSolver::TryOnAffineNode() {
  if (domain_->total_load() == 0) return SpreadOnAffineNode();
  if (Done() || !packer_.PackOnAffineNode(counts_, arrangement_)) return;
  work_.left -= int64_t{domain_->num_slots()} * domain_->num_gpus();
  descent_.Swaps(target(), arrangement_, work_);
  Keep();
}

// Every layout is as good; takes the one with the most even counts that replacements lead to.
void DomainSolver::SpreadOnAffineNode() {
  if (!packer_.PackOnAffineNode(counts_, arrangement_)) arrangement_.Assign(best_);
  bool changed = true;
  while (changed) {  // ends, as the sum of the counts' squares falls with every replacement
    changed = false;
    for (int32_t slot = 0; slot < arrangement_.num_slots(); ++slot) {
      const int32_t count = arrangement_.count(arrangement_.expert_in(slot));
      for (int32_t expert = 0; expert < domain_->num_experts(); ++expert) {
        if (count - arrangement_.count(expert) < 2) continue;
        if (!arrangement_.MayReplace(slot, expert)) continue;
        arrangement_.Replace(slot, expert);
        changed = true;
        break;
      }
    }
  }
  best_.assign(arrangement_.experts().begin(), arrangement_.experts().end());
}

// From the best layout so far.
void DomainSolver::Descend(int64_t work) {
  if (Done() || work <= 0) return;
  arrangement_.Assign(best_);
  WorkBudget part = {.left = work, .abandoned = limits_.abandoned};
  descent_.SwapsAndCounts(target(), arrangement_, part);
  work_.left -= work - part.left;
  Keep();
}

}  // namespace eplb
