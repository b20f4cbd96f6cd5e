// Relieves the hottest GPU of an arrangement by the steps that win most per copy.
#ifndef EPLB_PLACEMENT_SEARCH_RELIEF_H_
#define EPLB_PLACEMENT_SEARCH_RELIEF_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/search/arrangement.h"
#include "placement/search/random.h"
#include "placement/search/replacement_trial.h"

namespace eplb {

// Steps away from an incumbent layout, with what each costs in copies: a GPU that gets an expert it
// did not hold in the incumbent needs one. Threads: one at a time.
class Relief {
 public:
  // `arrangement` holds the incumbent and outlives this. At most `max_copies_per_gpu` arrive at any
  // GPU.
  Relief(Arrangement& arrangement, int32_t max_copies_per_gpu);

  // Takes the step that lowers the hottest GPU most per copy, counting what it wins above `target`
  // only. Every GPU it touches ends below the present maximum. False when no step wins at least
  // `least_win` per copy within the budget. cost: O(S * slots per GPU).
  bool Step(double target, double least_win);

  // Where no single step wins: moves something heavy off the hottest GPU although that overloads
  // another, and relieves that one in turn, up to a few steps deep. Keeps the chain that wins most
  // per copy. False when none wins at least `least_win` per copy within the budget; nothing has
  // changed then.
  bool Chain(double target, double least_win);

  // Where no chain wins either: chains that begin with an exchange at random, until one wins.
  bool Walk(double target, double least_win);

  // Copies that the present layout needs, in all GPUs.
  int32_t copies() const { return copies_; }

 private:
  struct Choice {
    double value = 0;  // won per copy
    double peak = 0;   // the largest load among the GPUs it touches, afterwards
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
  bool Affordable(int32_t gpu, int32_t arriving, int32_t leaving) const;
  void ConsiderSwaps(int32_t hot, double target, Choice& best) const;
  void ConsiderReplacements(int32_t hot, double target, Choice& best);
  void ConsiderReplacement(int32_t slot, int32_t expert, double target, double peak, Choice& best);
  // A swap, or a replacement where other_slot < 0.
  struct Kick {
    int32_t slot;
    int32_t other_slot;
    int32_t expert;
  };
  std::vector<Kick> Kicks(int32_t hot) const;
  void Do(const Kick& kick);
  bool WithinBudget() const;
  // What the kick and the steps after it win per copy; the arrangement is left as they leave it.
  double Follow(const Kick& kick, double target);
  void Count();

  Arrangement& arrangement_;
  int32_t max_copies_per_gpu_;
  int32_t num_experts_;
  std::vector<char> had_;         // [m * n], in the incumbent
  std::vector<int32_t> arrived_;  // [m], copies of the present layout
  int32_t copies_ = 0;
  SearchRandom random_{1};
  ReplacementTrial trial_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_RELIEF_H_
