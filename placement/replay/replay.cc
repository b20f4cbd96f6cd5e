#include "placement/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/backtest/planner.h"
#include "placement/figure_mean.h"
#include "placement/split/batch_split.h"
#include "placement/without_eplb.h"

namespace eplb {
namespace {

constexpr int64_t kMaxReplayStep = int64_t{1} << 62;

absl::Status CheckWindows(const char* name, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxReplayWindows) return absl::OkStatus();
  return InvalidInput(name, " is ", value, ", expected ", least, "..", kMaxReplayWindows);
}

absl::Status CheckOptions(const ReplayOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckCosts(options.costs));
  EPLB_RETURN_IF_ERROR(CheckWindows("every", options.every, 1));
  EPLB_RETURN_IF_ERROR(CheckWindows("history", options.history, 1));
  const SwitchTime& time = options.switch_time;
  if (time.vote_every < 1 || time.chunk_steps < 1 || time.layers_per_chunk < 1 ||
      time.rows_per_chunk < 1 || !(time.max_pause_seconds > 0) || !(time.decide_steps >= 0) ||
      !(time.seconds_per_byte >= 0)) {
    return InvalidInput("switch_time has a figure out of range");
  }
  EPLB_RETURN_IF_ERROR(CheckWindows("horizon_windows", options.horizon_windows, 0));
  if (!(options.min_gain >= 0 && options.min_gain <= 1)) {
    return InvalidInput("min_gain is ", options.min_gain, ", expected 0..1");
  }
  if (options.decay.has_value() && !(*options.decay >= 0 && *options.decay <= 1)) {
    return InvalidInput("decay is ", *options.decay, ", expected 0..1");
  }
  return absl::OkStatus();
}

absl::Status CheckTrace(const ReplayTrace& trace, const Topology& topology) {
  if (trace.windows.empty() || trace.windows.size() != trace.steps.size()) {
    return InvalidInput(trace.windows.size(), " windows and ", trace.steps.size(),
                        " ranges of steps");
  }
  for (size_t t = 0; t < trace.windows.size(); ++t) {
    const Load& load = trace.windows[t];
    if (load.num_layers() != topology.num_layers() ||
        load.num_experts() != topology.num_experts()) {
      return InvalidInput("window ", t, " has ", load.num_layers(), " layers x ",
                          load.num_experts(), " experts, expected ", topology.num_layers(), " x ",
                          topology.num_experts());
    }
    if (trace.steps[t].first < 0 || trace.steps[t].last < trace.steps[t].first ||
        trace.steps[t].last > kMaxReplayStep) {
      return InvalidInput("window ", t, " covers steps ", trace.steps[t].first, "..",
                          trace.steps[t].last);
    }
  }
  return absl::OkStatus();
}

// Replays a trace window by window.
class Replayer {
 public:
  Replayer(const ReplayTrace& trace, const Topology& topology, std::string_view policy,
           const ReplayOptions& options)
      : trace_(trace),
        policy_(policy),
        options_(options),
        start_(Placement::Static(topology)),
        placement_(start_, topology.num_layers()),
        left_(start_),
        predictions_(options.switch_time == SwitchTime() ? 0 : 1),
        question_{.num_fresh = 1,
                  .costs = options.costs,
                  .options = {.split = options.split,
                              .policy = options.policy,
                              .every = static_cast<int32_t>(options.every),
                              .switch_time = options.switch_time}} {
    if (policy_.chooses) return;
    question_.options.candidates = {
        {policy_.name, {.windows = options.history, .decay = options.decay}}};
    // It decides before every options.every-th window; `auto` also before window 1.
    question_.windows_since_decision = 1;
  }

  absl::Status Step(int64_t t, const ReplayObserver& observer) {
    ReplayRow& row = rows_.emplace_back();
    if (t == 0) {
      row.reason = "the starting layout";
    } else if (const absl::Status decided = DecideBefore(t, row); !decided.ok()) {
      return absl::Status(decided.code(), absl::StrCat("window ", t, ": policy ", policy_.name,
                                                       ": ", decided.message()));
    }
    return Run(t, row, observer);
  }

  std::vector<ReplayRow> Finish() && {
    if (decided_ && !placement_.done()) {
      rows_[*decided_].chunks_committed -= placement_.num_chunks_due();
      rows_[*decided_].switched_step.reset();
    }
    return std::move(rows_);
  }
  const PredictionRecord& predictions() const { return predictions_; }

  // Returns the scores of a policy that chooses.
  std::vector<CandidateScore> Scores() const {
    if (!policy_.chooses || question_.state == nullptr) return {};
    return question_.state->backtest.Scores();
  }

 private:
  // Takes window t - 1 into the planner, as the daemon does, and decides if a decision is due. A
  // window without tokens is no evidence: neither asks for a decision because of one.
  absl::Status DecideBefore(int64_t t, ReplayRow& row) {
    const auto newest = static_cast<size_t>(t - 1);
    if (!measured_) {
      row.rule = RebalanceRule::kNoTokens;
      row.reason = "kept, these steps have no tokens";
      return absl::OkStatus();
    }
    seen_.push_back({trace_.steps[newest], *measured_});
    question_.windows.push_back(
        {std::make_shared<const Load>(trace_.windows[newest]), trace_.steps[newest].count()});
    if (std::ssize(question_.windows) > WindowsFor(question_.options)) {
      question_.windows.erase(question_.windows.begin());
    }
    EPLB_ASSIGN_OR_RETURN(PlannerOutcome outcome, AskPlanner(question_, placement_.target()));
    question_.state = std::move(outcome.state);
    const std::string text = BacktestText(question_.state->backtest);
    if (!outcome.answer) {
      row.reason = policy_.chooses ? absl::StrCat("no decision is due; ", text)
                                   : absl::StrCat("no decision is due, one is made every ",
                                                  options_.every, " windows");
      return absl::OkStatus();
    }
    EPLB_RETURN_IF_ERROR(Weigh(*std::move(outcome.answer), row));
    if (!text.empty()) absl::StrAppend(&row.reason, "; ", text);
    return absl::OkStatus();
  }

  absl::Status Weigh(PlannerAnswer answer, ReplayRow& row) {
    const ExpectedLoad& expected = answer.expected;
    const auto decided_on =
        std::span(std::as_const(seen_)).last(static_cast<size_t>(expected.num_windows));
    row.reason = absl::StrCat("steps ", decided_on.front().steps.first, "..",
                              decided_on.back().steps.last, ": ");
    const Placement incumbent = placement_.target();  // Adopt changes the target
    if (answer.placement == incumbent) {
      row.rule = RebalanceRule::kNoChange;
      row.reason += "kept, the policy changes nothing";
      return absl::OkStatus();
    }
    Costs costs = options_.costs;
    costs.horizon_steps = StepsIn(decided_on, options_.horizon_windows);
    const RebalanceInput input{.load = expected.load,
                               .num_steps = expected.StepsFor(options_.split),
                               .incumbent = incumbent,
                               .candidate = answer.placement,
                               .min_gain = options_.min_gain,
                               .costs = costs,
                               .learned = answer.gate ? &*answer.gate : nullptr,
                               .split = options_.split,
                               .recent = expected.Each(options_.split),
                               .predictions = &predictions_,
                               .measured = MeasuredOver(decided_on),
                               .load_of = expected.Name()};
    EPLB_ASSIGN_OR_RETURN(const RebalanceDecision decision, EvaluateRebalance(input));
    row.rule = decision.rule;
    row.reason += decision.reason;
    row.prediction = decision.prediction;
    if (decision.prediction) {
      predictions_.Begin(answer.placement, *decision.balancedness_computed, *decision.prediction);
    }
    return decision.rebalance ? Adopt(input, row) : absl::OkStatus();
  }

  // Window with tokens that passed.
  struct Seen {
    StepRange steps;
    double balancedness = 0;  // measured
  };

  // Returns the mean balancedness of these windows as they ran.
  static double MeasuredOver(std::span<const Seen> windows) {
    FigureMean mean;
    for (const Seen& window : windows) mean.Add(window.balancedness);
    return mean.Value().value_or(0);
  }

  // Switches to the candidate from what is left of the decision before.
  absl::Status Adopt(const RebalanceInput& input, ReplayRow& row) {
    const int64_t step = seen_.back().steps.last + 1;
    EPLB_ASSIGN_OR_RETURN(const MovedRows dropped,
                          placement_.Interrupt(options_.switch_time, step));
    if (decided_) {
      ReplayRow& before = rows_[*decided_];
      before.transfers -= dropped.transfers;
      before.bytes -= dropped.bytes;
      before.chunks_committed -= dropped.chunks;
      if (dropped.chunks > 0) before.switched_step.reset();
      if (before.chunks_committed == 0) before.begins_step.reset();
      before.migration_seconds = std::max(0.0, before.migration_seconds - dropped.seconds);
    }
    decided_ = rows_.size() - 1;
    left_ = placement_.target();
    EPLB_ASSIGN_OR_RETURN(const Evaluation now, EvaluateExpected(input, left_));
    EPLB_ASSIGN_OR_RETURN(const Evaluation then, EvaluateExpected(input, input.candidate));
    EPLB_ASSIGN_OR_RETURN(const MigrationCost migration,
                          PriceMigration(left_, input.candidate, options_.costs));
    Change change{
        .target = input.candidate, .expert = options_.costs.expert, .seconds = migration.seconds};
    for (size_t layer = 0; layer < now.max_gpu_load.size(); ++layer) {
      change.falls.push_back(Finite(now.max_gpu_load[layer] - then.max_gpu_load[layer]));
    }
    EPLB_RETURN_IF_ERROR(placement_.Begin(change, options_.switch_time, step));
    row.rebalanced = true;
    row.transfers = migration.transfers;
    row.bytes = migration.bytes;
    row.migration_seconds = migration.seconds;
    row.chunks = row.chunks_committed = placement_.num_chunks();
    if (row.chunks > 0) row.begins_step = placement_.begins_at();
    if (!placement_.done()) row.switched_step = placement_.done_at();
    return absl::OkStatus();
  }

  // Returns the steps of `windows` windows of the mean length of `recent`.
  static int64_t StepsIn(std::span<const Seen> recent, int64_t windows) {
    constexpr double kMaxStepsAhead = 9e18;  // below 2^63
    double sum = 0;
    for (const Seen& window : recent) sum += static_cast<double>(window.steps.count());
    const double steps = static_cast<double>(windows) * sum / static_cast<double>(recent.size());
    return static_cast<int64_t>(std::min(std::ceil(steps), kMaxStepsAhead));
  }

  absl::Status Run(int64_t t, ReplayRow& row, const ReplayObserver& observer) {
    const Load& load = trace_.windows[static_cast<size_t>(t)];
    const StepRange& steps = trace_.steps[static_cast<size_t>(t)];
    const Evaluation without = EvaluateWithoutEplb(load, start_.topology().num_gpus());
    EPLB_ASSIGN_OR_RETURN(const Evaluation still, EvaluateSplit(load, start_, SplitMode::kEqual));
    const auto pass = [&](Switching& placement, SplitMode split) {
      return placement.Pass(steps.first, steps.count(),
                            [&](const Placement& ran) { return EvaluateSplit(load, ran, split); });
    };
    SwitchedWindow equal;
    if (observer && options_.split != SplitMode::kEqual) {
      Switching same = placement_;
      EPLB_ASSIGN_OR_RETURN(equal, pass(same, SplitMode::kEqual));
    }
    EPLB_ASSIGN_OR_RETURN(const SwitchedWindow passed, pass(placement_, options_.split));
    const Evaluation& now = passed.seen;
    row.balancedness_without_eplb = without.mean_balancedness;
    row.balancedness_static = still.mean_balancedness;
    row.balancedness = now.mean_balancedness;
    row.peak_load_without_eplb = without.peak_load;
    row.peak_load = now.peak_load;
    measured_ = now.mean_balancedness;
    const double token_seconds = options_.costs.token_seconds;
    row.without_eplb_seconds = Finite(without.peak_load * token_seconds);
    row.static_seconds = Finite(still.peak_load * token_seconds);
    row.saved_seconds = Finite((without.peak_load - now.peak_load) * token_seconds);
    row.replica_seconds = Finite(ReplicaSecondsPerStep(placement_.running(), options_.costs) *
                                 static_cast<double>(steps.count()));
    EPLB_RETURN_IF_ERROR(predictions_.Observe({.load = load, .split = options_.split}));
    if (!observer) return absl::OkStatus();
    return observer({.rows = rows_,
                     .equal = options_.split == SplitMode::kEqual ? now : equal.seen,
                     .left = left_,
                     .target = placement_.target()});
  }

  const ReplayTrace& trace_;
  const NamedPolicy policy_;
  const ReplayOptions& options_;
  const Placement start_;
  Switching placement_;
  Placement left_;  // the placement that the newest decision changed
  PredictionRecord predictions_;
  std::optional<double> measured_;  // balancedness of the newest window that passed
  std::vector<Seen> seen_;          // windows with tokens that passed
  PlannerQuestion question_;        // with the newest of these
  std::vector<ReplayRow> rows_;
  std::optional<size_t> decided_;  // row of the newest decision
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
    return InvalidInput("the bytes of all rebalances sum to more than 2^63-1");
  }
  return absl::OkStatus();
}

}  // namespace

SwitchTime UsualSwitchTime(const Topology& topology, const Costs& costs) {
  const int64_t layer_bytes =
      topology.max_slots_per_gpu() * (costs.expert.weight_bytes + costs.expert.state_bytes);
  int64_t layers = kUsualStagingLayers;
  if (layer_bytes > 0) layers = std::max(layers, kUsualStagingBytes / layer_bytes);
  return {.decide_steps = 1,
          .vote_every = kUsualVoteEvery,
          .active_steps = kUsualActiveSteps,
          .layers_per_chunk = kUsualLayersPerChunk,
          .rows_per_chunk = layers * topology.max_slots_per_gpu(),
          .max_pause_seconds = kUsualMaxPauseSeconds,
          .seconds_per_byte =
              1 / (topology.num_nodes() > 1 ? costs.inter_bytes_per_s : costs.intra_bytes_per_s)};
}

absl::StatusOr<ReplayResult> Replay(const ReplayTrace& trace, const Topology& topology,
                                    std::string_view policy, const ReplayOptions& options,
                                    const ReplayProgress& progress,
                                    const ReplayObserver& observer) {
  EPLB_RETURN_IF_ERROR(CheckOptions(options));
  EPLB_RETURN_IF_ERROR(CheckTrace(trace, topology));
  Replayer replayer(trace, topology, policy, options);
  ReplayResult result;
  FigureMean without_eplb, still, now;
  const auto num_windows = static_cast<int64_t>(trace.windows.size());
  for (int64_t t = 0; t < num_windows; ++t) {
    if (progress) progress(t);
    EPLB_RETURN_IF_ERROR(replayer.Step(t, observer));
  }
  result.candidates = replayer.Scores();
  result.summary.predictions = replayer.predictions().num_judged();
  result.summary.predictions_held = replayer.predictions().num_held();
  result.rows = std::move(replayer).Finish();
  for (const ReplayRow& row : result.rows) {
    EPLB_RETURN_IF_ERROR(AddTo(result.summary, row));
    without_eplb.Add(row.balancedness_without_eplb);
    still.Add(row.balancedness_static);
    now.Add(row.balancedness);
  }
  result.summary.balancedness_without_eplb_mean = without_eplb.Value();
  result.summary.balancedness_static_mean = still.Value();
  result.summary.balancedness_mean = now.Value();
  return result;
}

}  // namespace eplb
