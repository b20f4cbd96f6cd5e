// A back-test that runs beside a job: every candidate decides on the job's own windows as if it
// were active, from the job's own placement, and each window shows what its placement would have
// been worth. Nothing is judged on a window that it was computed from.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/backtest/candidate.h"
#include "placement/backtest/switching.h"
#include "placement/decision/cost.h"
#include "placement/decision/rebalance.h"
#include "placement/evaluate.h"
#include "placement/figure_mean.h"
#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/policies/registry.h"

namespace eplb {

// Layers that the back-test looks at, spread evenly. However deep the model is, a decision costs no
// more than a few solutions of it; and no more than so many slots * GPUs, which a solution's time
// follows: 8 layers up to 256 GPUs of 1,024 slots, 2 layers of 512 GPUs with 2,048.
inline constexpr int32_t kMaxTestedLayers = 8;
inline constexpr int64_t kMaxTestedWork = int64_t{1} << 21;

struct BacktestOptions {
  std::vector<Candidate> candidates = {};  // empty: those that policy `auto` has for the split
  SplitMode split = SplitMode::kEqual;
  PolicyOptions policy = {};  // the candidates compute with effort `fast` whatever it has
  int32_t every = 1;          // windows from one opportunity to decide to the next, >= 1
  SwitchTime switch_time = {};
};

// Returns how many windows the longest estimate of the candidates looks at.
int64_t WindowsFor(const BacktestOptions& options);

struct BacktestInput {
  std::span<const SeenWindow> windows;  // oldest first, at least one; of the whole model
  const Placement& incumbent;           // active during the newest of them; of the whole model
  const Costs& costs;                   // costs of the whole model
  std::span<const TypicalLoad> history = {};  // with the newest window
  const GpuSpeeds* speeds = nullptr;          // see PolicyInput::speeds, and
  const std::atomic<bool>* abandoned = nullptr;
};

// Result that a candidate would have reached over all windows so far.
struct CandidateScore {
  Candidate candidate;
  int64_t windows = 0;
  // Mean over windows of the mean over layers; none before a window with tokens.
  std::optional<double> balancedness;
  double saved_seconds = 0;  // against the placement that the back-test began with
  double spent_seconds = 0;  // migrations, and replicas beyond those of that placement
  double net_seconds = 0;    // lately: older windows count less
  // The share of the gains that it predicted which later windows showed, 0..1. Absent before any
  // was compared.
  std::optional<double> realized = std::nullopt;

  double total() const { return saved_seconds - spent_seconds; }
};

// Threads: a value, not safe. Deterministic: equal input gives an equal state. Memory: at most four
// placements of kMaxTestedLayers layers for each candidate, and one for each of its decisions that
// is not yet in force.
class Backtest {
 public:
  // incumbent: the current placement, from which all candidates begin.
  static absl::StatusOr<Backtest> Begin(const Placement& incumbent, const BacktestOptions& options);

  // A window passed: scores the candidates on it, then each whose turn it is decides on
  // `input.windows`, whose newest it is. errors: InvalidArgument for windows of another shape;
  // those of the policies. cost: a solution (effort fast) of the tested layers for each candidate
  // whose turn it is.
  absl::Status Advance(const BacktestInput& input);

  // Scores of the candidates in their order, then of "do nothing".
  std::vector<CandidateScore> Scores() const;
  int64_t num_windows() const { return num_windows_; }
  // Index of the candidate in use among the scores; absent for "do nothing". It changes if another
  // candidate is ahead by a margin.
  std::optional<size_t> choice() const {
    return choice_ == nothing() ? std::nullopt : std::optional(static_cast<size_t>(choice_));
  }
  // Candidate that makes the job's next decision: the one in use. If "do nothing" is in use, that
  // is a return to the start once the start is certainly ahead of the incumbent. Otherwise it is
  // the first candidate, whose decision the gate refuses.
  const Candidate& next() const { return Next().candidate; }
  // True if `next` is one of several candidates and decided on the newest window: a job that
  // decides at the same windows is as good as the candidate where loads return.
  bool next_decides() const { return shadows_.size() > 2 && Next().windows_since_decision == 0; }
  LearnedGate gate() const;
  const BacktestOptions& options() const { return options_; }
  // Takes over the interval, the time of a switch and the estimates of options with the same
  // policies.
  void Adjust(const BacktestOptions& options);

 private:
  // The newest decision of a candidate: what it promised, compared with later windows until its
  // next.
  struct Promise {
    Placement before;
    Placement after;
    double tokens_per_step = 0;  // predicted fall of the peak load
  };
  struct Shadow {
    Candidate candidate;
    Switching placement;
    std::optional<Promise> promise;
    int64_t windows_since_decision = -1;  // -1: none yet
    double predicted_tokens = 0;          // discounted, and
    double seen_tokens = 0;               // measured over the same windows, discounted, and
    double seen_squares = 0;              // sum of the squares of its windows, discounted
    double net_seconds = 0;               // discounted
    double net_squares = 0;            // squares of the windows' nets before migrations, discounted
    double ahead_tokens = 0;           // per step, of the incumbent, summed over windows, and
    double ahead_squares = 0;          // their squares, since the incumbent became current;
    double ahead_seconds = 0;          // the same in seconds, with replicas,
    double ahead_seconds_squares = 0;  // their squares, and
    double spent_meanwhile = 0;        // on its own migrations
    double unpaid_seconds = 0;         // price of migrations, still to be charged to the net
    FigureMean balancedness;           // over windows
    double saved_seconds = 0;
    double spent_seconds = 0;
  };

  Backtest(Placement start, std::vector<LayerId> layers, double scale,
           const BacktestOptions& options);
  struct Yardstick {  // peak loads of a window
    double unmoved = 0;
    double incumbent = 0;
    double incumbent_replicas = 0;  // seconds per step
  };
  absl::Status Score(Shadow& shadow, const SeenWindow& window, const Yardstick& peaks,
                     const BacktestInput& input) const;
  absl::Status Follow(const BacktestInput& input);
  absl::Status DecideWhereDue(std::span<const SeenWindow> recent, const BacktestInput& input);
  // A policy's answer in this window, which candidates that ask the same question share.
  struct Solved {
    std::string_view policy;
    ExpectedLoad expected;
    Placement before;
    Placement after;
  };
  // Windows and history of the tested layers.
  struct Seen {
    std::vector<SeenWindow> windows;
    std::vector<TypicalLoad> history;
  };
  absl::StatusOr<Seen> SeenOf(std::span<const SeenWindow> recent, const BacktestInput& input) const;
  absl::StatusOr<const Solved*> Solve(const Shadow& shadow, const Seen& seen,
                                      const BacktestInput& input, std::deque<Solved>& solved) const;
  absl::Status Decide(Shadow& shadow, const Solved& solved, const BacktestInput& input) const;
  absl::StatusOr<Evaluation> Evaluated(const SeenWindow& window, const Placement& placement,
                                       const BacktestInput& input) const;
  // Seconds of the whole model's migration; 0 without prices.
  absl::StatusOr<double> Price(const Placement& before, const Placement& after,
                               const BacktestInput& input) const;
  absl::StatusOr<std::vector<double>> PredictedFalls(const ExpectedLoad& expected,
                                                     const Placement& before,
                                                     const Placement& after,
                                                     const BacktestInput& input) const;
  absl::Status Adopt(Shadow& shadow, const Solved& solved, Change change,
                     const BacktestInput& input) const;
  // net_seconds: of whose decision it is, over all windows.
  LearnedGate GateOf(const Shadow& shadow, double net_seconds) const;
  int64_t NumShown() const;
  void Choose();
  const Shadow& Next() const;
  std::ptrdiff_t nothing() const { return std::ssize(shadows_) - 1; }

  Placement start_;      // placement of the tested layers at the start
  Placement incumbent_;  // placement of the tested layers in the newest window
  int64_t incumbent_windows_ = 0;
  std::vector<LayerId> layers_;
  double scale_ = 1;  // layers of the model for each tested one
  BacktestOptions options_;
  std::vector<Shadow> shadows_;  // one per candidate, and last the one that does nothing
  std::ptrdiff_t choice_ = 0;
  int64_t num_windows_ = 0;
  int64_t num_steps_ = 0;        // steps of these windows
  double unmoved_seconds_ = 0;   // seconds of the peaks of `start_`
  double own_net_seconds_ = 0;   // savings of the job's own moves, less their costs
  double steps_per_window_ = 1;  // median of the newest windows
};

}  // namespace eplb
