// Descent of the local search: single steps that lower the largest GPU load.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/policy.h"
#include "placement/search/arrangement.h"

namespace eplb {

// Computes the GPU loads after a change of replica counts, without making the change. Keeps its
// scratch. Threads: one at a time.
class ReplacementTrial {
 public:
  struct Change {
    int32_t gpu;
    double tokens;  // added, or removed if negative
  };

  // Tries that the slot gives up its expert for another replica of `expert`.
  // REQUIRES: the slot's expert has another replica and is not `expert`. cost: O(replicas of both).
  void Try(const Arrangement& arrangement, int32_t slot, int32_t expert);
  // Changes of the last trial on the GPUs that hold either expert.
  std::span<const Change> changes() const { return changes_; }

  // Calls Try and returns the largest load afterwards among the changed GPUs.
  double PeakAfter(const Arrangement& arrangement, int32_t slot, int32_t expert);

 private:
  // [m], index of a GPU in changes_; -1: absent; all -1 between trials.
  std::vector<int32_t> index_;
  std::vector<Change> changes_;
};

// Work that a search may do, in candidate steps: the same on every machine.
struct WorkBudget {
  int64_t left = 0;
  const std::atomic<bool>* abandoned = nullptr;  // see PolicyInput
  bool spent() const { return left <= 0 || IsAbandoned(abandoned); }
};

// Lowers the largest GPU load until no single step does. Takes the best step on the hottest GPU
// each time. It may exchange one of its experts with one of another GPU. It may give one of its
// experts another replica in place of some other replica. Or it may replace one of its own
// replicas. Every GPU that a step touches must end below the present maximum. So (maximum, number
// of GPUs at it) falls with every step, and the descent ends. Keeps its scratch. Threads: one at a
// time.
class Descent {
 public:
  // Takes exchanges only, until the load is at most `target`. cost of a step: O(m * slots per GPU
  // squared).
  void Swaps(double target, Arrangement& arrangement, WorkBudget& work);
  // Takes exchanges, and changes of replica counts if no exchange helps.
  void SwapsAndCounts(double target, Arrangement& arrangement, WorkBudget& work);

 private:
  struct Step {
    double peak = 0;  // the largest load among the GPUs it touches, afterwards
    int32_t slot = -1;
    int32_t other_slot = -1;  // second slot of an exchange
    int32_t expert = -1;      // expert that `slot` gets by a change of counts
  };
  bool SwapOnce(Arrangement& arrangement, WorkBudget& work);
  bool CountOnce(Arrangement& arrangement, WorkBudget& work);
  void Consider(const Arrangement& arrangement, int32_t slot, int32_t expert, Step& best,
                WorkBudget& work);

  ReplacementTrial trial_;
};

}  // namespace eplb
