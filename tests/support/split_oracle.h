// A slow way, independent of the code under test, to find the least maximum GPU load if the tokens
// of each expert may be split over the GPUs that hold it.
#pragma once

#include <cstdint>
#include <vector>

namespace eplb {

struct SplitProblem {
  std::vector<double> tokens;                 // [E]
  std::vector<std::vector<int32_t>> gpus_of;  // [E], the GPUs that hold each expert
  std::vector<double> speeds;                 // [G]; 0 is a GPU that holds none
};

// The largest ratio, over all sets of GPUs, of the tokens that only they hold and their speed.
// cost: E * 2^G.
double MaxLoadOverSubsets(const SplitProblem& problem);

}  // namespace eplb
