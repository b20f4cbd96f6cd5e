// What rebalancing has been worth so far on the loads at hand: the evidence that the next one pays.
#ifndef EPLB_PLACEMENT_DECISION_TRACK_RECORD_H_
#define EPLB_PLACEMENT_DECISION_TRACK_RECORD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Tokens saved per window, summed up. "Tokens" are those of the peak GPU load, summed over layers.
struct SavedTokens {
  double windows = 0;
  double steps = 0;
  double sum = 0;
  double sum_squares = 0;

  void Add(double saved, double num_steps);
  // The sum less one standard error, with one empty window added: what was believed before anything
  // was seen, so that one lucky window proves nothing (mean x / 2, standard error x / 2). Finite.
  double Low() const;
  // Per step: the mean less two standard deviations of a window. Minus the largest double before
  // the second window. Finite.
  double WorstPerStep() const;
};

// Two things are kept:
// - Trials. A policy fits its placement to the load it was given, so the gain on that load is
//   flattered by noise and says nothing about how soon drift eats it up. So candidates that were
//   not taken are kept as they were computed and compared with the placement in force on the
//   windows that come after. Old ones are thinned out so that their ages stay spread: some young
//   enough to show a change, some old enough to show what lasts.
// - The account. What the placements in force saved against the one that the record began with, and
//   what migrations and replicas cost.
// Threads: a value, not safe. Deterministic. Memory: kMaxTrials + 2 placements.
class TrackRecord {
 public:
  static constexpr size_t kMaxTrials = 6;

  // A window passed while `incumbent` was in force; the first call says where the record begins.
  // Another incumbent than in the call before ends all trials. split: as the job's; with kBatch the
  // window counts as one batch. speeds: as EvaluateOptions; tokens are then tokens / speed.
  // errors: InvalidArgument when load and incumbent differ in shape. cost: O(kMaxTrials * L * S).
  absl::Status Observe(const Load& window, int64_t num_steps, const Placement& incumbent,
                       SplitMode split = SplitMode::kEqual, const GpuSpeeds* speeds = nullptr);

  // `candidate` was computed and not taken. A candidate that is the incumbent has nothing to try.
  void BeginTrial(const Placement& candidate, const Placement& incumbent);

  // The account, as another record of the same run goes on with it.
  struct Sums {
    double start_tokens = 0;
    double saved_tokens = 0;
    double spent_seconds = 0;
  };
  // Goes on with an account whose trials are lost. It begins at the placement of the next window:
  // what the sums were counted against is not known any more.
  static TrackRecord Continue(const Sums& sums);

  // For a migration, or for replicas.
  void Spend(double seconds);

  // Oldest first, those of `incumbent` only.
  std::vector<SavedTokens> Trials(const Placement& incumbent) const;
  // The placement that the record began with; none before the first window.
  const std::optional<Placement>& start() const { return start_; }
  double start_tokens() const { return start_tokens_; }  // of `start`, all windows
  double saved_tokens() const { return saved_tokens_; }  // against `start`, all windows
  double spent_seconds() const { return spent_seconds_; }
  // Of the incumbent against `start`, since it came into force.
  const SavedTokens& incumbent_saved() const { return incumbent_saved_; }

 private:
  struct Trial {
    Placement candidate;
    SavedTokens saved;
  };

  void Follow(const Placement& incumbent);
  void ThinOut();

  std::optional<Placement> start_;
  std::optional<Placement> incumbent_;
  std::vector<Trial> trials_;  // oldest first
  SavedTokens incumbent_saved_;
  double start_tokens_ = 0;
  double saved_tokens_ = 0;
  double spent_seconds_ = 0;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_DECISION_TRACK_RECORD_H_
