// Solves the split of single layers on one thread of the CPU, for any supported number of GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "placement/split/split_body.h"
#include "placement/split/split_tables.h"

namespace eplb {

// SplitBody with its scratch memory, which a layer allocates only if it is larger than all layers
// before it. Threads: one at a time, also of solvers that share scratch memory.
class SplitSolver {
 public:
  static constexpr int32_t kMaxGpus = 1024;

  using Scratch = std::vector<int64_t>;

  // scratch: shared with other solvers, so that it stays in the processor's cache; null: its own.
  // REQUIRES: num_gpus is in 1..kMaxGpus.
  static std::unique_ptr<SplitSolver> Make(int32_t num_gpus,
                                           std::shared_ptr<Scratch> scratch = nullptr);
  virtual ~SplitSolver() = default;

  // Takes over a layer. The tables that it refers to outlive the calls of Solve.
  virtual void Prepare(const SplitLayer& layer) = 0;

  // Arrays that Solve writes; null: not wanted.
  struct Answer {
    int64_t* quotas = nullptr;                   // [S]
    std::vector<int32_t>* tight_gpus = nullptr;  // see SplitBound
  };
  // Returns the maximum for counts [E], each >= 0 and at most kMaxSplitTokens in sum.
  // Costs less without quotas, and has no margins then.
  virtual SplitPeak Solve(const int64_t* counts, const SplitMargins& margins,
                          const Answer& answer) = 0;
};

}  // namespace eplb
