#include "placement/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "placement/align.h"
#include "placement/backtest/auto_planner.h"
#include "placement/decision/rebalance.h"
#include "placement/decision/track_record.h"
#include "placement/evaluate.h"
#include "placement/figure_mean.h"
#include "placement/load.h"
#include "placement/policies/registry.h"
#include "placement/split/batch_split.h"
#include "placement/without_eplb.h"

namespace eplb {
namespace {

constexpr int64_t kMaxReplayStep = int64_t{1} << 62;

absl::Status CheckWindows(const char* name, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxReplayWindows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", expected ", least, "..", kMaxReplayWindows));
}

absl::Status CheckOptions(const ReplayOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckCosts(options.costs));
  EPLB_RETURN_IF_ERROR(CheckWindows("every", options.every, 1));
  EPLB_RETURN_IF_ERROR(CheckWindows("history", options.history, 1));
  if (options.latency != 0 && options.latency != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("latency is ", options.latency, ", expected 0 or 1"));
  }
  EPLB_RETURN_IF_ERROR(CheckWindows("horizon_windows", options.horizon_windows, 0));
  if (!(options.min_gain >= 0 && options.min_gain <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_gain is ", options.min_gain, ", expected 0..1"));
  }
  if (options.decay.has_value() && !(*options.decay >= 0 && *options.decay <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("decay is ", *options.decay, ", expected 0..1"));
  }
  return absl::OkStatus();
}

absl::Status CheckTrace(const ReplayTrace& trace, const Topology& topology) {
  if (trace.windows.empty() || trace.windows.size() != trace.steps.size()) {
    return absl::InvalidArgumentError(absl::StrCat(trace.windows.size(), " windows and ",
                                                   trace.steps.size(), " ranges of steps"));
  }
  for (size_t t = 0; t < trace.windows.size(); ++t) {
    const Load& load = trace.windows[t];
    if (load.num_layers() != topology.num_layers() ||
        load.num_experts() != topology.num_experts()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "window ", t, " has ", load.num_layers(), " layers x ", load.num_experts(),
          " experts, expected ", topology.num_layers(), " x ", topology.num_experts()));
    }
    if (trace.steps[t].first < 0 || trace.steps[t].last < trace.steps[t].first ||
        trace.steps[t].last > kMaxReplayStep) {
      return absl::InvalidArgumentError(absl::StrCat(
          "window ", t, " covers steps ", trace.steps[t].first, "..", trace.steps[t].last));
    }
  }
  return absl::OkStatus();
}

// What the next windows are expected to be like.
struct Expected {
  Load load;
  double num_steps = 1;
};

absl::StatusOr<Expected> Expect(std::span<const Load> windows, std::span<const StepRange> steps,
                                std::optional<double> decay) {
  std::vector<const Load*> loads;
  for (const Load& window : windows) loads.push_back(&window);
  std::vector<double> counts;
  for (const StepRange& range : steps) counts.push_back(static_cast<double>(range.count()));
  EPLB_ASSIGN_OR_RETURN(Load load, CombineLoads(loads, decay));
  return Expected{std::move(load), CombineSteps(counts, decay)};
}

// One replay at work: the placement in force and what is known before the current window.
class Replayer {
 public:
  Replayer(const ReplayTrace& trace, const Topology& topology, const Policy& policy,
           const ReplayOptions& options)
      : trace_(trace),
        policy_(policy),
        options_(options),
        start_(Placement::Static(topology)),
        start_replica_seconds_(ReplicaSecondsPerStep(start_, options.costs)),
        in_force_(start_),
        predictions_(options.latency) {}

  absl::StatusOr<ReplayRow> Step(int64_t t, const ReplayObserver& observer) {
    ReplayRow row;
    if (t == 0) {
      row.reason = "the starting layout";
    } else if (const absl::Status decided = planner_ ? DecideAuto(t, row) : DecideWhenDue(t, row);
               !decided.ok()) {
      return absl::Status(decided.code(),
                          absl::StrCat("window ", t, ": policy ", std::string(policy_.name()), ": ",
                                       decided.message()));
    }
    EPLB_RETURN_IF_ERROR(Run(t, row));
    if (observer) EPLB_RETURN_IF_ERROR(observer(t, row, in_force_));
    if (coming_) in_force_ = *std::exchange(coming_, std::nullopt);
    return row;
  }

  absl::Status BeginAuto() {
    EPLB_ASSIGN_OR_RETURN(Backtest backtest,
                          Backtest::Begin(start_, {.split = options_.split,
                                                   .hierarchy = options_.chosen.hierarchy,
                                                   .every = static_cast<int32_t>(options_.every),
                                                   .latency = options_.latency}));
    planner_ = AutoState{.backtest = std::move(backtest)};
    return absl::OkStatus();
  }

  const PredictionRecord& predictions() const { return predictions_; }

  std::vector<CandidateScore> Scores() const {
    return planner_ ? planner_->backtest.Scores() : std::vector<CandidateScore>();
  }

 private:
  std::string DueText() const {
    return absl::StrCat("no decision is due, one is made every ", options_.every, " windows");
  }

  // Looks at windows before t only.
  absl::Status DecideWhenDue(int64_t t, ReplayRow& row) {
    if (t % options_.every != 0) {
      row.reason = DueText();
      return absl::OkStatus();
    }
    const int64_t first = std::max<int64_t>(0, t - options_.history);
    const auto recent =
        trace_.windows.subspan(static_cast<size_t>(first), static_cast<size_t>(t - first));
    const auto steps =
        trace_.steps.subspan(static_cast<size_t>(first), static_cast<size_t>(t - first));
    EPLB_ASSIGN_OR_RETURN(const Expected expected, Expect(recent, steps, options_.decay));
    EPLB_ASSIGN_OR_RETURN(Placement candidate,
                          SolveAligned(policy_, {.load = expected.load,
                                                 .topology = in_force_.topology(),
                                                 .previous = &in_force_,
                                                 .split = options_.split,
                                                 .recent = recent}));
    return Weigh({expected.load, expected.num_steps, recent, steps}, std::move(candidate), nullptr,
                 row);
  }

  // As the daemon: each window is a part of the back-test, and may be followed by a decision.
  absl::Status DecideAuto(int64_t t, ReplayRow& row) {
    const SeenWindow fresh = {
        std::make_shared<const Load>(trace_.windows[static_cast<size_t>(t - 1)]),
        trace_.steps[static_cast<size_t>(t - 1)].count()};
    EPLB_ASSIGN_OR_RETURN(std::optional<AutoAnswer> answer, PlanAuto({.fresh = {&fresh, 1},
                                                                      .incumbent = in_force_,
                                                                      .costs = options_.costs,
                                                                      .policy = options_.chosen},
                                                                     *planner_));
    if (!answer) {
      row.reason = absl::StrCat("no decision is due; ", BacktestText(planner_->backtest));
      return absl::OkStatus();
    }
    const size_t first = static_cast<size_t>(t) - answer->expected.recent.size();
    const auto steps = trace_.steps.subspan(first, answer->expected.recent.size());
    const ExpectedLoad& expected = answer->expected;
    EPLB_RETURN_IF_ERROR(Weigh({expected.load, expected.num_steps, expected.recent, steps},
                               std::move(answer->placement), &answer->gate, row));
    const std::string text = BacktestText(planner_->backtest);
    if (!text.empty()) absl::StrAppend(&row.reason, "; ", text);
    return absl::OkStatus();
  }

  struct Basis {  // of a decision
    const Load& load;
    double num_steps = 1;  // that it stands for
    std::span<const Load> recent;
    std::span<const StepRange> steps;  // of these windows
  };
  absl::Status Weigh(const Basis& basis, Placement candidate, const LearnedGate* learned,
                     ReplayRow& row) {
    const std::span<const StepRange> steps = basis.steps;
    const bool batch = options_.split == SplitMode::kBatch;
    const std::string range =
        absl::StrCat("steps ", steps.front().first, "..", steps.back().last, ": ");
    if (candidate == in_force_) {
      row.rule = RebalanceRule::kNoChange;
      row.reason = absl::StrCat(range, "kept, the policy changes nothing");
      return absl::OkStatus();
    }
    if (batch && learned == nullptr) {
      EPLB_ASSIGN_OR_RETURN(const RebalanceDecision decision,
                            WeighSplit(basis.recent, steps, candidate));
      Predict(candidate, decision, row);
      row.rule = decision.rule;
      row.reason = absl::StrCat(range, decision.reason);
      if (decision.rebalance) Adopt(std::move(candidate), decision, range, row);
      return absl::OkStatus();
    }
    Costs costs = options_.costs;
    costs.horizon_steps = StepsIn(steps, options_.horizon_windows);
    const auto seen = static_cast<double>(StepsIn(steps, std::ssize(steps)));
    RebalanceInput input{.load = basis.load,
                         .num_steps = batch ? seen : basis.num_steps,
                         .incumbent = in_force_,
                         .candidate = candidate,
                         .min_gain = options_.min_gain,
                         .steps_to_next = static_cast<double>(StepsIn(steps, options_.every)),
                         .costs = costs,
                         .record = record_,
                         .learned = learned,
                         .split = options_.split,
                         .recent = basis.recent,
                         .predictions = &predictions_,
                         .measured = MeasuredOver(steps)};
    EPLB_ASSIGN_OR_RETURN(const RebalanceDecision decision, EvaluateRebalance(input));
    Predict(candidate, decision, row);
    if (decision.rebalance) {
      Adopt(std::move(candidate), decision, range, row);
      return absl::OkStatus();
    }
    row.rule = decision.rule;
    row.reason = absl::StrCat(range, decision.reason);
    // The account is one of equal shares.
    if (!costs.priced() || batch) return absl::OkStatus();
    return ConsiderReturn(input, range, row, candidate);
  }

  void Predict(const Placement& candidate, const RebalanceDecision& decision, ReplayRow& row) {
    row.prediction = decision.prediction;
    if (!decision.prediction) return;
    predictions_.Begin(candidate, *decision.balancedness_computed, *decision.prediction);
  }

  // EvaluateRebalance for jobs that split by batch: the peaks are those of exact splits of the
  // recent windows, each as one batch. With prices they have to be lower by more seconds than the
  // migration takes, over the horizon; without one over as many steps as were looked at.
  absl::StatusOr<RebalanceDecision> WeighSplit(std::span<const Load> recent,
                                               std::span<const StepRange> steps,
                                               const Placement& candidate) const {
    Costs unpriced = options_.costs;
    unpriced.token_seconds = 0;
    EPLB_ASSIGN_OR_RETURN(RebalanceDecision decision,
                          EvaluateRebalance({.load = recent.front(),
                                             .incumbent = in_force_,
                                             .candidate = candidate,
                                             .min_gain = options_.min_gain,
                                             .costs = unpriced,
                                             .record = record_,
                                             .split = SplitMode::kBatch,
                                             .recent = recent,
                                             .predictions = &predictions_,
                                             .measured = MeasuredOver(steps)}));
    if (!decision.rebalance || !options_.costs.priced()) return decision;
    const auto seen = static_cast<double>(StepsIn(steps, static_cast<int64_t>(steps.size())));
    const double horizon = options_.horizon_windows > 0
                               ? static_cast<double>(StepsIn(steps, options_.horizon_windows))
                               : seen;
    const double fall = decision.peak_before - decision.peak_computed;
    const double saved = Finite(fall * options_.costs.token_seconds / seen -
                                ReplicaSecondsPerStep(candidate, options_.costs) +
                                ReplicaSecondsPerStep(in_force_, options_.costs)) *
                         horizon;
    if (saved > decision.migration.seconds) return decision;
    decision.rebalance = false;
    decision.rule = RebalanceRule::kCost;
    decision.reason =
        absl::StrCat("kept, ", decision.reason, ", which saves ", SecondsText(std::max(0.0, saved)),
                     " for ", SecondsText(decision.migration.seconds), " of migration", kSeeCosts);
    return decision;
  }

  // Returns the mean balancedness of these windows as they ran; 0 if none of them has tokens.
  double MeasuredOver(std::span<const StepRange> steps) const {
    const auto first = static_cast<size_t>(steps.data() - trace_.steps.data());
    FigureMean mean;
    for (size_t t = first; t < first + steps.size(); ++t) mean.Add(measured_[t]);
    return mean.Value().value_or(0);
  }

  absl::Status ConsiderReturn(const RebalanceInput& input, const std::string& range, ReplayRow& row,
                              const Placement& kept) {
    EPLB_ASSIGN_OR_RETURN(Placement start, Align(in_force_, start_));
    if (!(start == in_force_)) {
      EPLB_ASSIGN_OR_RETURN(const RebalanceDecision decision,
                            EvaluateReturn({.load = input.load,
                                            .num_steps = input.num_steps,
                                            .incumbent = in_force_,
                                            .candidate = start,
                                            .min_gain = input.min_gain,
                                            .steps_to_next = input.steps_to_next,
                                            .costs = input.costs,
                                            .record = record_}));
      if (decision.rebalance) {
        Adopt(std::move(start), decision, range, row);
        return absl::OkStatus();
      }
    }
    record_.BeginTrial(kept, in_force_);
    return absl::OkStatus();
  }

  void Adopt(Placement next, const RebalanceDecision& decision, const std::string& range,
             ReplayRow& row) {
    row.rebalanced = true;
    row.rule = decision.rule;
    row.transfers = decision.migration.transfers;
    row.bytes = decision.migration.bytes;
    row.migration_seconds = decision.migration.seconds;
    row.reason =
        absl::StrCat(range, decision.reason, ", ", CountText(row.transfers, "transfer"),
                     row.bytes > 0 ? absl::StrCat(", ", BytesText(row.bytes)) : std::string());
    record_.Spend(row.migration_seconds);
    (options_.latency > 0 ? coming_.emplace(std::move(next)) : in_force_ = std::move(next));
  }

  // The steps of so many windows like the recent ones; 0 for none.
  static int64_t StepsIn(std::span<const StepRange> recent, int64_t windows) {
    constexpr double kMaxStepsAhead = 9e18;  // below 2^63
    double sum = 0;
    for (const StepRange& range : recent) sum += static_cast<double>(range.count());
    const double steps = static_cast<double>(windows) * sum / static_cast<double>(recent.size());
    return static_cast<int64_t>(std::min(std::ceil(steps), kMaxStepsAhead));
  }

  absl::Status Run(int64_t t, ReplayRow& row) {
    const Load& load = trace_.windows[static_cast<size_t>(t)];
    const int64_t num_steps = trace_.steps[static_cast<size_t>(t)].count();
    const Evaluation without = EvaluateWithoutEplb(load, start_.topology().num_gpus());
    EPLB_ASSIGN_OR_RETURN(const Evaluation still, EvaluateSplit(load, start_, SplitMode::kEqual));
    EPLB_ASSIGN_OR_RETURN(const Evaluation now, EvaluateSplit(load, in_force_, options_.split));
    row.balancedness_without_eplb = without.mean_balancedness;
    row.balancedness_static = still.mean_balancedness;
    row.balancedness = now.mean_balancedness;
    row.peak_load_without_eplb = without.peak_load;
    row.peak_load = now.peak_load;
    measured_.push_back(now.mean_balancedness);
    const double token_seconds = options_.costs.token_seconds;
    row.without_eplb_seconds = Finite(without.peak_load * token_seconds);
    row.static_seconds = Finite(still.peak_load * token_seconds);
    row.saved_seconds = Finite((without.peak_load - now.peak_load) * token_seconds);
    const double replicas = ReplicaSecondsPerStep(in_force_, options_.costs);
    row.replica_seconds = Finite(replicas * static_cast<double>(num_steps));
    EPLB_RETURN_IF_ERROR(predictions_.Observe({.load = load, .split = options_.split}));
    if (!options_.costs.priced()) return absl::OkStatus();
    // The record's account counts against the starting layout, which has replicas of its own.
    record_.Spend(Finite((replicas - start_replica_seconds_) * static_cast<double>(num_steps)));
    return record_.Observe(load, num_steps, in_force_);
  }

  const ReplayTrace& trace_;
  const Policy& policy_;
  const ReplayOptions& options_;
  const Placement start_;
  const double start_replica_seconds_;
  Placement in_force_;
  std::optional<Placement> coming_;  // in force after this window
  PredictionRecord predictions_;
  std::vector<std::optional<double>> measured_;  // balancedness of the windows that passed
  std::optional<AutoState> planner_;             // of a policy that chooses
  TrackRecord record_;
};

absl::Status AddTo(ReplaySummary& summary, const ReplayRow& row) {
  if (!row.balancedness) ++summary.windows_without_tokens;
  summary.rebalances += row.rebalanced ? 1 : 0;
  summary.transfers += row.transfers;
  summary.without_eplb_seconds = Finite(summary.without_eplb_seconds + row.without_eplb_seconds);
  summary.static_seconds = Finite(summary.static_seconds + row.static_seconds);
  summary.seconds_saved = Finite(summary.seconds_saved + row.saved_seconds);
  summary.seconds_spent =
      Finite(summary.seconds_spent + row.migration_seconds + row.replica_seconds);
  if (__builtin_add_overflow(summary.bytes, row.bytes, &summary.bytes)) {
    return absl::InvalidArgumentError("the bytes of all rebalances sum to more than 2^63-1");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReplayResult> Replay(const ReplayTrace& trace, const Topology& topology,
                                    const Policy& policy, const ReplayOptions& options,
                                    const ReplayProgress& progress,
                                    const ReplayObserver& observer) {
  EPLB_RETURN_IF_ERROR(CheckOptions(options));
  EPLB_RETURN_IF_ERROR(CheckTrace(trace, topology));
  Replayer replayer(trace, topology, policy, options);
  if (TraitsOf(policy.name()).chooses) EPLB_RETURN_IF_ERROR(replayer.BeginAuto());
  ReplayResult result;
  FigureMean without_eplb, still, now;
  const auto num_windows = static_cast<int64_t>(trace.windows.size());
  for (int64_t t = 0; t < num_windows; ++t) {
    if (progress) progress(t);
    EPLB_ASSIGN_OR_RETURN(ReplayRow row, replayer.Step(t, observer));
    EPLB_RETURN_IF_ERROR(AddTo(result.summary, row));
    without_eplb.Add(row.balancedness_without_eplb);
    still.Add(row.balancedness_static);
    now.Add(row.balancedness);
    result.rows.push_back(std::move(row));
  }
  result.candidates = replayer.Scores();
  result.summary.predictions = replayer.predictions().num_judged();
  result.summary.predictions_held = replayer.predictions().num_held();
  result.summary.balancedness_without_eplb_mean = without_eplb.Value();
  result.summary.balancedness_static_mean = still.Value();
  result.summary.balancedness_mean = now.Value();
  return result;
}

}  // namespace eplb
