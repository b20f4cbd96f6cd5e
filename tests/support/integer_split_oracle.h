// Oracle of integer splits of a batch, by methods that share nothing with the code under
// test: a maximum flow through the whole graph of experts and GPUs, and a checker of proofs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eplb {

struct IntegerSplitProblem {
  std::vector<int64_t> tokens;                // [E]
  std::vector<std::vector<int32_t>> gpus_of;  // [E], the GPUs that hold each expert
  std::vector<int64_t> speeds;                // [G]; 0 is a GPU that holds none
};

// True if the tokens fit when a GPU of speed s takes at most floor(s * tokens / speed): Dinic's
// maximum flow on adjacency lists. cost: O(V^2 * E) at worst.
bool FitsWithin(const IntegerSplitProblem& problem, int64_t tokens, int64_t speed);

// The least maximum of GPUs that are equally fast: Newton on the cuts of the same flow, from the
// mean. REQUIRES: all speeds are 1.
int64_t LeastPeakByNewton(const IntegerSplitProblem& problem);

// Empty when `peak_tokens` / `peak_speed` is proved to be the least maximum: what only
// `tight_gpus` hold does not fit below it; else the reason. cost: O(S).
std::string CheckProof(const IntegerSplitProblem& problem, int64_t peak_tokens, int64_t peak_speed,
                       const std::vector<int32_t>& tight_gpus);

}  // namespace eplb
