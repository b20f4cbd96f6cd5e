// A load window on the GPUs: its tokens under the placements that its steps ran under.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb::core {

// The newest placements that ranks of a run ran, by version. Within a run a version stands for one
// placement. Memory: kMax placements; less once windows are complete.
class RunPlacements {
 public:
  static constexpr size_t kMax = 64;

  void Add(int64_t version, std::shared_ptr<const Placement> placement);
  // No window that is still to come tells of a version below this one.
  void DropBelow(int64_t version);
  // Null for a version that is not known.
  const Placement* Find(int64_t version) const;

 private:
  struct Run {
    int64_t version = 0;
    std::shared_ptr<const Placement> placement;
  };
  std::deque<Run> runs_;  // versions rise
};

// Tokens that each GPU got, replicas of an expert taking equal shares.
struct GpuTokens {
  RealMatrix loads;               // [L, G]
  std::vector<int64_t> versions;  // versions of the placements, rising
};

// Sums of exact splits of batches by layer: [L], over the EP groups that hold the layer.
struct SplitTokens {
  std::vector<int64_t> tokens;  // tokens in the batches
  std::vector<int64_t> peaks;   // load of the fullest GPU of each batch, summed over the batches
  // Values of `peaks` if the batches had run under the static layout in equal shares, or with one
  // slot per expert. Both are empty unless all ranks reported them.
  std::vector<int64_t> peaks_static = {};
  std::vector<int64_t> peaks_without_eplb = {};
};

// Tokens of steps that ran under one placement.
struct TokensUnder {
  int64_t version = 0;
  LoadMatrix counts;  // [L, E]
};

// Nothing when a placement is not known or has another shape than the counts.
// cost: O(parts * L * S).
std::optional<GpuTokens> TokensOnGpus(std::vector<TokensUnder> parts,
                                      const RunPlacements& placements);

// The newest window whose placements are known.
struct Measured {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<int64_t> versions;  // versions that its steps ran under, rising
  // kBatch: the ranks reported what exact splits of these steps gave; the three figures that follow
  // are of them, each batch with its own fullest GPU. kEqual: they are those of equal shares.
  SplitMode split = SplitMode::kEqual;
  double balancedness = 0;                                // mean over layers with load
  std::vector<std::optional<double>> layer_balancedness;  // [L]; absent for a layer without load
  double peak_load = 0;  // sum over layers of the fullest GPU's load
  // Counterfactuals: the same tokens on the same basis, with kBatch each batch's own fullest GPU,
  // under the static layout in equal shares, and without EPLB, which is one slot per expert. None:
  // the ranks split batches, and one of them did not report it.
  std::optional<double> balancedness_static;
  std::optional<double> balancedness_without_eplb;
  std::optional<double> peak_load_without_eplb;
};

// split: what exact splits of the same steps gave, or null. speeds: null: all equal; else every
// figure is of tokens / speed, but where `split` is known: its peaks are tokens, and all figures
// are. A window without tokens has no figure: nothing. All GPUs are usable. REQUIRES: `tokens` are
// those of `load` under placements of `topology`. cost: O(L * S).
std::optional<Measured> Measure(const Load& load, const GpuTokens& tokens, const SplitTokens* split,
                                const Topology& topology, const GpuSpeeds* speeds = nullptr);

// Mean over layers with load of (mean GPU load / max GPU load), of `split` where it is known; none
// without `tokens` or if all are 0. speeds: as Measure.
std::optional<double> BalancednessOf(const GpuTokens* tokens, const SplitTokens* split,
                                     const GpuSpeeds* speeds = nullptr);

}  // namespace eplb::core
