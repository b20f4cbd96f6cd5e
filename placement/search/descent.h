// Lowers the largest GPU load step by step until no single step does.
#ifndef EPLB_PLACEMENT_SEARCH_DESCENT_H_
#define EPLB_PLACEMENT_SEARCH_DESCENT_H_

#include <atomic>
#include <cstdint>

#include "placement/policy.h"
#include "placement/search/arrangement.h"
#include "placement/search/replacement_trial.h"

namespace eplb {

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

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_DESCENT_H_
