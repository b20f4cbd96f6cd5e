// How good a layout is for exact splits of several batches: the objective of a search.
#ifndef EPLB_PLACEMENT_SEARCH_SPLIT_PEAKS_H_
#define EPLB_PLACEMENT_SEARCH_SPLIT_PEAKS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// The least maximum GPU loads of layouts of one domain under several batches, by the exact split
// (placement/split/split_body.h). Keeps its scratch. Threads: one at a time.
class SplitPeaks {
 public:
  static constexpr int32_t kMaxGpus = 1024;

  // batches: loads of the domain's experts, each [n], >= 0; each is taken to 30 bits of its sum. A
  // batch without load is left out. REQUIRES: at most kMaxGpus GPUs.
  SplitPeaks(const Domain& domain, std::span<const std::vector<double>> batches);
  ~SplitPeaks();

  // The mean over batches of (least maximum / mean GPU load)^power, >= 1; 1 without a batch.
  // layout: [S], experts by slot, GPU by GPU. cost: O(S + n) and a flow for each batch.
  double MeanOf(std::span<const int32_t> layout, double power);

  struct Worst {
    size_t batch = 0;         // index of the batch with the largest ratio
    double ratio = 1;         // its least maximum / mean GPU load
    std::vector<bool> tight;  // [m], GPUs whose own experts alone reach that maximum
  };
  // Of a layout, the first of equal batches; none has load: ratio 1 and no tight GPU. cost: as
  // MeanOf.
  Worst WorstOf(std::span<const int32_t> layout);

 private:
  class Solver;
  template <int kWords>
  class SolverOf;

  std::unique_ptr<Solver> solver_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_SPLIT_PEAKS_H_
