// What a change of replica counts would do, without doing it.
#ifndef EPLB_PLACEMENT_SEARCH_REPLACEMENT_TRIAL_H_
#define EPLB_PLACEMENT_SEARCH_REPLACEMENT_TRIAL_H_

#include <cstdint>
#include <vector>

#include "placement/search/arrangement.h"

namespace eplb {

// Keeps its scratch. Threads: one at a time.
class ReplacementTrial {
 public:
  // The largest load, afterwards, among the GPUs that hold the expert in `slot` or `expert`, if the
  // slot gave up its expert for another replica of `expert`.
  // REQUIRES: the slot's expert has another replica and is not `expert`. cost: O(replicas of both).
  double PeakAfter(const Arrangement& arrangement, int32_t slot, int32_t expert);

 private:
  std::vector<double> change_;    // [m], tokens added to each GPU
  std::vector<int32_t> touched_;  // GPUs with a change, some more than once
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_REPLACEMENT_TRIAL_H_
