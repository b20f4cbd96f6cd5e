// The best arrangement of a domain that a bounded amount of work finds.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/policy.h"
#include "placement/search/arrangement.h"
#include "placement/search/descent.h"
#include "placement/search/domain.h"
#include "placement/search/pack.h"
#include "placement/search/random.h"
#include "placement/search/replicate.h"

namespace eplb {

// Limits of the search of one domain.
struct SearchLimits {
  double tolerance = 0;       // a largest GPU load this far above the bound is good enough
  int64_t work = 0;           // in all, in candidate steps looked at
  int32_t hot_seeds = 0;      // other counts for the hottest experts to try; 0: keep greedy counts
  int64_t count_vectors = 0;  // try all counts where there are no more of them than this
  bool full_bound = true;     // prove the best bound known before searching on
  const std::atomic<bool>* abandoned = nullptr;  // see PolicyInput; the answer is then any layout
};

// The limits of an effort; those of kThorough are shared by the layers of a load.
SearchLimits LimitsOf(Effort effort, const Domain& domain, int32_t num_layers);

// Packs greedy counts and descends, then tries other counts for the hottest experts, then walks. A
// walk perturbs the hottest GPU and descends again; a result that is worse is taken back. The
// search ends when the largest GPU load is at the bound or at `enough`, or when the work is spent.
// A domain with affinities and without load gets the most even counts that single replacements lead
// to. The answer depends on the domain and the effort alone. Threads: one at a time.
class DomainSolver {
 public:
  // The slots and speeds of `domain` are fixed from now on; its loads and affinities may change
  // before each Begin. REQUIRES: `domain` outlives this.
  explicit DomainSolver(const Domain& domain);

  // Forgets the last problem.
  void Begin(const SearchLimits& limits);
  // A layout [S] to start from besides the solver's own; ignored unless it is better.
  void Offer(std::span<const int32_t> experts);
  // A largest GPU load below which nothing is won, e.g. that of another part of the layer.
  void set_enough(double enough) { enough_ = enough; }
  // REQUIRES: a layout was offered, when the domain has affinities.
  const Arrangement& Solve();
  // In place of Solve: descends from the layout offered, walks on, and keeps the domain's sites.
  const Arrangement& Improve();
  // After Solve: descends from another layout with a little work. The answer is the better one.
  const Arrangement& SolveFrom(std::span<const int32_t> experts);

  // The answer is near the bound or good enough; after Solve.
  bool Done() const { return best_peak_ <= target() || IsAbandoned(limits_.abandoned); }
  // Proved; after Solve.
  double bound() const { return bound_; }
  int64_t work_done() const { return limits_.work - work_.left; }

 private:
  double target() const;
  void Keep();
  // Packs counts_ and descends by exchanges. False when that cannot give a better layout.
  bool TrySeed();
  void TrySeeds();
  bool SeedsLeft() const;
  bool TryEvenCold(int32_t num_hot, int32_t more);
  bool TryFewHot();
  bool TryLevels();
  // Greedy counts, packed so that every expert has a replica at home.
  void TryOnAffineNode();
  void SpreadOnAffineNode();
  void Descend(int64_t work);
  void FindBound();
  // Spends the work that is left on the best layout so far, and returns it.
  const Arrangement& Finish();
  void TryAllCounts(int32_t expert, int32_t spare);
  void TryHotSeeds();
  // False when there is no reason or no work left to try more.
  bool TryHot(int32_t num_hot, int32_t hot_slots);
  bool Hopeless(std::span<const int32_t> counts);
  // From the layout at hand, until `work` is done.
  void Walk(int64_t work);
  void Perturb();

  const Domain* domain_;
  SearchLimits limits_;
  double bound_ = 0;
  double enough_ = 0;
  Replicator replicator_;
  Packer packer_;
  Descent descent_;
  SearchRandom random_;
  WorkBudget work_;
  Arrangement arrangement_;
  std::vector<int32_t> best_;  // [S]
  double best_peak_ = 0;
  int32_t seeds_left_ = 0;
  int64_t least_work_ = 0;       // work that seeds leave for later
  int64_t work_per_counts_ = 0;  // work of a walk from each vector of counts
  bool equal_gpus_;              // all GPUs have equally many slots and are equally fast
  bool no_duplicates_;           // no GPU may hold an expert twice
  std::vector<int32_t> counts_;  // replicas per expert of the current seed
  std::vector<double> units_;
};

}  // namespace eplb
