// Quality of a layout for exact splits of several batches: the objective of a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "placement/search/domain.h"
#include "placement/split/split_graph.h"
#include "placement/split/split_solver.h"

namespace eplb {

// The least maximum GPU loads of layouts of one domain under several batches, by the exact split
// (placement/split/split_body.h). Keeps its scratch. Threads: one at a time.
class SplitPeaks {
 public:
  static constexpr int32_t kMaxGpus = SplitSolver::kMaxGpus;

  // batches: loads of the domain's experts, each [n], >= 0; each is rounded to 30 bits of its sum.
  // A batch without load is left out. REQUIRES: at most kMaxGpus GPUs.
  SplitPeaks(const Domain& domain, std::span<const std::vector<double>> batches);

  // Returns the mean over batches of least maximum / mean GPU load, >= 1; 1 without a batch.
  // layout: [S], experts by slot, GPU by GPU.
  //
  // cost: O(S + n) and a flow for each batch.
  double MeanOf(std::span<const int32_t> layout);

  struct Worst {
    size_t batch = 0;         // index of the batch with the largest ratio
    double ratio = 1;         // its least maximum / mean GPU load
    std::vector<bool> tight;  // [m], GPUs whose own experts alone reach that maximum
  };
  // The worst batch of a layout, the first of equal ones. If no batch has load, the ratio is 1 and
  // no GPU is tight. cost: as MeanOf.
  Worst WorstOf(std::span<const int32_t> layout);

 private:
  struct Batch {
    size_t index;                 // index of its load
    std::vector<int64_t> counts;  // [n]
    double mean;                  // tokens / speed of all GPUs
  };

  void Prepare(std::span<const int32_t> layout);
  // The least maximum / mean GPU load of a batch under the prepared layout, >= 1.
  double RatioOf(const Batch& batch, std::vector<int32_t>* tight_gpus);

  const Domain& domain_;
  std::vector<Batch> batches_;
  std::vector<int64_t> speeds_;  // [m]
  SplitLayerBuilder builder_;
  std::unique_ptr<SplitSolver> solver_;
  std::vector<int32_t> first_slot_, slots_of_expert_, next_;  // the layout's slots by expert
};

}  // namespace eplb
