// Walk over the layouts of a domain that lowers the largest GPU loads of several loads at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/scenarios.h"
#include "placement/search/arrangement.h"
#include "placement/search/domain.h"
#include "placement/search/pack.h"
#include "placement/search/random.h"
#include "placement/search/scenario_loads.h"

#include <Eigen/Core>

namespace eplb {

// A layout that stays in place as far as that is asked for.
struct ScenarioIncumbent {
  std::span<const int32_t> layout = {};  // [S]; empty: nothing is in place
  int32_t copies_per_gpu = 0;            // most experts that a GPU may get that it did not hold
  double price = 0;                      // price of such a copy, in objective
};

// Searches one domain. The objective is the mean over scenarios, or their maximum, of
// (largest GPU load / mean GPU load). In its place the walk lowers the p-norms of the GPU loads,
// whose changes cost O(K) for an exchange of two slots. p rises until the norm is nearly the
// maximum. A small p counts all GPUs above the mean, not only the fullest. Threads: one at a
// time. Deterministic.
class ScenarioWalk final : private PackingLoads {
 public:
  // REQUIRES: at least one scenario; `domain` outlives this. The domain's own load decides nothing
  // but dead ends of a packing.
  ScenarioWalk(const Domain& domain, const ScenarioLoads& loads,
               const ScenarioIncumbent& incumbent = {});

  // Takes over a layout. REQUIRES: every expert in a slot, no slot empty.
  void Start(std::span<const int32_t> layout);
  // Places the replicas of the present layout anew, each on the GPU whose largest load over the
  // scenarios it raises least. False in a dead end: then the layout is what it was.
  bool Pack();
  // Proposes exchanges and replacements, mostly of the fullest GPUs, and takes those that lower the
  // norm. With `anneal` it also takes some that raise it a little, fewer and fewer. Ends early once
  // `abandoned` is set. cost: O(proposals * K), O(K * replicas) for a replacement.
  void Walk(int64_t proposals, bool anneal, const std::atomic<bool>* abandoned = nullptr);

  // From now on another objective counts.
  void set_objective(ScenarioObjective objective) { objective_ = objective; }
  double Objective() const;
  const Arrangement& arrangement() const { return arrangement_; }

 private:
  // Four scenarios; lanes beyond the last scenario are 0.
  using Block = Eigen::Array4d;

  double UnitOf(int32_t expert) const override;
  double LoadAfter(int32_t gpu, int32_t expert) const override;
  void Placed(int32_t gpu, int32_t expert) override;
  void Moved() override { Refresh(); }

  Block* Of(std::vector<Block>& values, int32_t index) const {
    return values.data() + AsIndex(index) * num_blocks_;
  }
  const Block* Of(const std::vector<Block>& values, int32_t index) const {
    return values.data() + AsIndex(index) * num_blocks_;
  }
  // x^p
  Block Power(Block x) const {
    for (int32_t i = 0; i < log_power_; ++i) x *= x;
    return x;
  }
  void SetUnit(int32_t expert);
  // Computes the GPU loads from the layout.
  void Refresh();
  // Largest GPU load of each scenario. [num_blocks_]
  std::vector<Block> Peaks() const;
  // Sets p = 2^log_power, and scales loads by the present peaks so that their powers are finite.
  void SetPower(int32_t log_power);
  void SetSlopes();
  void Propose(int32_t hot_gpu, double threshold);
  bool TrySwap(int32_t a, int32_t b, double threshold);
  bool TryReplace(int32_t slot, int32_t expert, double threshold);
  // Adds what a GPU's load changes by to the trial of a replacement.
  void AddToTrial(int32_t gpu, const Block* arriving, const Block* leaving);
  double TrialChange() const;
  // More copies that a GPU needs if one expert arrives and another leaves.
  int32_t CopiesMore(int32_t gpu, int32_t arriving, int32_t leaving) const;
  bool Affordable(int32_t gpu, int32_t copies) const;
  int32_t FullestGpu(size_t scenario) const;

  const Domain& domain_;
  ScenarioIncumbent incumbent_;
  ScenarioObjective objective_;
  size_t num_scenarios_;
  size_t num_blocks_;
  Arrangement arrangement_;
  Packer packer_;
  SearchRandom random_;
  int32_t log_power_ = 0;
  std::vector<Block> weight_;    // [B], they sum to 1
  std::vector<Block> load_;      // [n * B], load of an expert / mean GPU load
  std::vector<Block> scale_;     // [B], loads below are in parts of it
  std::vector<Block> unit_;      // [n * B], load of a replica
  std::vector<Block> gpu_load_;  // [m * B]
  std::vector<Block> power_;     // [m * B]
  std::vector<Block> sum_;       // [B], sums of the powers
  std::vector<Block> slope_;     // [B], change of the objective per change of a sum
  std::vector<char> had_;        // [m * n], in the incumbent; empty without one
  std::vector<int32_t> copies_;  // [m], copies into each GPU
  // Trial of a replacement: GPUs, their loads afterwards, and the place of each GPU; -1: none.
  std::vector<int32_t> trial_gpus_;
  std::vector<Block> trial_load_;                   // [trial_gpus_ * B]
  std::vector<int32_t> trial_place_;                // [m]
  std::vector<Block> next_unit_, next_other_unit_;  // [B]
};

}  // namespace eplb
