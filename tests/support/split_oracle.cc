#include "tests/support/split_oracle.h"

#include <algorithm>

namespace eplb {
double MaxLoadOverSubsets(const SplitProblem& problem) {
  std::vector<uint32_t> holders;
  for (const std::vector<int32_t>& gpus : problem.gpus_of) {
    uint32_t mask = 0;
    for (const int32_t gpu : gpus) mask |= uint32_t{1} << gpu;
    holders.push_back(mask);
  }
  double largest = 0;
  for (uint32_t subset = 1; subset < uint32_t{1} << problem.speeds.size(); ++subset) {
    double tokens = 0;
    double speed = 0;
    for (size_t expert = 0; expert < holders.size(); ++expert) {
      if ((holders[expert] & ~subset) == 0) tokens += problem.tokens[expert];
    }
    for (size_t gpu = 0; gpu < problem.speeds.size(); ++gpu) {
      if ((subset >> gpu & 1) != 0) speed += problem.speeds[gpu];
    }
    if (tokens > 0) largest = std::max(largest, tokens / speed);
  }
  return largest;
}

}  // namespace eplb
