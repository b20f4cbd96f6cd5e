// Improvement steps of the local search: exchanges and replacements of replicas that lower the
// peak.
#ifndef EPLB_PLACEMENT_SEARCH_IMPROVEMENT_H_
#define EPLB_PLACEMENT_SEARCH_IMPROVEMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/policy.h"
#include "placement/search/arrangement.h"

namespace eplb {

// A smooth stand-in for the largest GPU load.

// The smooth maximum of loads is
//   softness * ln(sum over GPUs of exp(load / softness)).
// The load of the next window differs by some noise on every GPU, and then any GPU near the top may
// be the hottest; the smooth maximum counts them all, those further below the top less and less. It
// is never below the largest load.

// The softness, as a load, where the largest load is `peak` and GPUs should come near `scale`. It
// grows with the distance, so that steps far from balance are told apart by how much they take.
// REQUIRES: scale > 0.
double SoftnessOf(double peak, double scale);

// Of the loads of GPUs, which should come near `scale`. REQUIRES: at least one load, scale > 0.
double SmoothMaximum(std::span<const double> loads, double scale);

// What a change of replica counts would do, without doing it.

// Keeps its scratch. Threads: one at a time.
class ReplacementTrial {
 public:
  struct Change {
    int32_t gpu;
    double tokens;  // more on it, or less
  };

  // The slot gives up its expert for another replica of `expert`.
  // REQUIRES: the slot's expert has another replica and is not `expert`. cost: O(replicas of both).
  void Try(const Arrangement& arrangement, int32_t slot, int32_t expert);
  // What the last trial would do to the GPUs that hold either expert.
  std::span<const Change> changes() const { return changes_; }

  // As Try, and the largest load afterwards among those GPUs.
  double PeakAfter(const Arrangement& arrangement, int32_t slot, int32_t expert);

 private:
  std::vector<int32_t> index_;  // [m], of a GPU in changes_, -1: not there; all -1 between trials
  std::vector<Change> changes_;
};

// Lowers the largest GPU load step by step until no single step does.

// Work a search may do, in candidate steps looked at: the same on every machine.
struct WorkBudget {
  int64_t left = 0;
  const std::atomic<bool>* abandoned = nullptr;  // see PolicyInput
  bool spent() const { return left <= 0 || IsAbandoned(abandoned); }
};

// Steps on the hottest GPU, the best one each time: exchange one of its experts with one of another
// GPU; give one of its experts another replica in place of some other replica; or drop one of its
// replicas for a replica of another expert. A step is taken only if every GPU it touches ends below
// the present maximum, so that (maximum, number of GPUs at it) falls with every step and the
// descent ends. Keeps its scratch. Threads: one at a time.
class Descent {
 public:
  // Exchanges only. Ends at `target` at the latest. cost of a step: O(m * slots per GPU squared).
  void Swaps(double target, Arrangement& arrangement, WorkBudget& work);
  // Exchanges, and where none helps, changes of replica counts.
  void SwapsAndCounts(double target, Arrangement& arrangement, WorkBudget& work);

 private:
  struct Step {
    double peak = 0;  // the largest load among the GPUs it touches, afterwards
    int32_t slot = -1;
    int32_t other_slot = -1;  // of an exchange
    int32_t expert = -1;      // of a change of counts: what `slot` is to hold
  };
  bool SwapOnce(Arrangement& arrangement, WorkBudget& work);
  bool CountOnce(Arrangement& arrangement, WorkBudget& work);
  void Consider(const Arrangement& arrangement, int32_t slot, int32_t expert, Step& best,
                WorkBudget& work);

  ReplacementTrial trial_;
};

// Moves an incumbent towards balance by the steps that win most per copy.

struct ImprovementLimits {
  int32_t copies_per_gpu;  // that arrive at any GPU
  int32_t copies;          // in all
};

// Steps away from an incumbent layout, with what each costs in copies: a GPU that gets an expert it
// did not hold in the incumbent needs one.
//
// What the steps lower is the smooth maximum (see SmoothMaximum) rather than the largest load: a
// step that takes from one hot GPU and gives to a cool one counts, whichever the hottest is just
// now.
//
// Threads: one at a time.
class ImprovementSteps {
 public:
  // `arrangement` holds the incumbent and outlives this. `scale` > 0: the load that GPUs should
  // come near, such as the bound.
  ImprovementSteps(Arrangement& arrangement, double scale, const ImprovementLimits& limits);

  // Takes the exchange or the replacement that lowers the smooth maximum most per copy. False when
  // none lowers it by `least_win` (in parts of the scale) per copy within the limits. cost: O(S *
  // slots per GPU * GPUs near the top).
  bool Step(double least_win);

  // Gives an expert with a large unit another replica, in place of one that is missed least, on the
  // GPU where that harms the smooth maximum least. Where every expert drifts by the same part of
  // its load, the variance of GPU loads is the sum of squared units: false when no replacement
  // lowers that sum by `least_part` of it within the limits. The smooth maximum may rise; Step
  // repairs that.
  bool Spread(double least_part);

  // Copies that the present layout needs, in all GPUs.
  int32_t copies() const { return copies_; }

 private:
  struct Choice {
    double value = 0;  // won per copy
    int32_t slot = -1;
    int32_t other_slot = -1;  // of an exchange
    int32_t expert = -1;      // of a replacement
  };
  size_t IndexOf(int32_t gpu, int32_t expert) const {
    return static_cast<size_t>(gpu) * static_cast<size_t>(num_experts_) +
           static_cast<size_t>(expert);
  }
  // Copies for putting an expert on a GPU: 0 where the incumbent had it.
  int32_t CostOf(int32_t gpu, int32_t expert) const;
  // Copies more on a GPU when one expert comes and another goes.
  int32_t CopiesMore(int32_t gpu, int32_t arriving, int32_t leaving) const;
  bool Affordable(int32_t gpu, int32_t copies) const;
  // exp((load - peak) / softness), with the peak and the softness of the last Refresh.
  double WeightOf(double load) const;
  double weight(int32_t gpu) const { return weight_[static_cast<size_t>(gpu)]; }
  // What a GPU weighs less without some of its tokens.
  double WinWithout(int32_t gpu, double tokens) const;
  // What all GPUs weigh less after the last trial.
  double TrialWin() const;
  void ConsiderSwaps(Choice& best) const;
  // What an exchange between two GPUs can take from their weights at most, and cost at least.
  double MostOfSwap(int32_t hot, int32_t cool) const;
  double LeastCopies(int32_t hot, int32_t cool) const;
  void ConsiderSwapsOf(int32_t hot, int32_t cool, Choice& best) const;
  // One more replica of an expert.
  struct Replica {
    int32_t expert;
    double unit;  // of all its replicas then
    double win;   // what the GPUs that hold it already weigh less
  };
  std::vector<Replica> MoreReplicas() const;  // the largest win first
  // What each other GPU that holds the expert in a slot weighs more when it leaves there.
  struct Harm {
    int32_t gpu;
    double weight;
  };
  std::vector<Harm> HarmElsewhere(int32_t slot) const;
  bool Holds(int32_t gpu, int32_t expert) const { return holds_[IndexOf(gpu, expert)] != 0; }
  void ConsiderReplacements(Choice& best);
  // The slot that gives way to `expert`, of those whose expert misses it by no more than
  // `most_missed` in squared units; -1 when there is none.
  int32_t SlotFor(int32_t expert, double most_missed);
  void Refresh();

  Arrangement& arrangement_;
  double scale_;
  ImprovementLimits limits_;
  int32_t num_experts_;
  std::vector<char> had_;  // [m * n], in the incumbent
  // As of the last Refresh:
  std::vector<char> holds_;       // [m * n]
  std::vector<int32_t> arrived_;  // [m], copies of the present layout
  int32_t copies_ = 0;
  double peak_ = 0;
  double softness_ = 0;         // in load
  std::vector<double> weight_;  // [m]
  double sum_of_weights_ = 0;
  std::vector<int32_t> by_load_;  // [m], the hottest first
  ReplacementTrial trial_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_IMPROVEMENT_H_
