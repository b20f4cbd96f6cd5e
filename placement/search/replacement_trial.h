// What a change of replica counts would do, without doing it.
#ifndef EPLB_PLACEMENT_SEARCH_REPLACEMENT_TRIAL_H_
#define EPLB_PLACEMENT_SEARCH_REPLACEMENT_TRIAL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "placement/search/arrangement.h"

namespace eplb {

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

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_REPLACEMENT_TRIAL_H_
