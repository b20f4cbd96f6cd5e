#include "placement/backtest/backtest.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "placement/split/batch_split.h"

namespace eplb {
namespace {

// Weight that a window keeps with each later window, in the scores and in the realized share.
constexpr double kScoreMemory = 1 - 1.0 / 32;
constexpr double kRealizedMemory = 1 - 1.0 / 16;
constexpr double kUsuallyRealized = 0.5;  // before anything was seen, with the weight of one window
// Decisions that a gain counts over. A slower cadence counts over more windows.
constexpr double kHorizon = 4;
// Windows that the gain of a placement for scenarios counts over, at most: it is made to last as
// long as the windows that it was made from.
constexpr int64_t kMaxHorizon = 64;
// Part of the uncharged migrations that each window charges. A candidate is judged by its current
// costs and savings, not by the cost of its first placement.
constexpr double kCharged = 1.0 / 32;
// Part of its net seconds by which another candidate must be ahead.
constexpr double kMargin = 0.02;
constexpr int64_t kProvingWindows = 2;  // before which no candidate is compared with another
// Standard errors that are taken off what must be sure: among many candidates, and for a single
// one, which no better one can replace.
constexpr double kSure = 1;
constexpr double kSureAlone = 2;
constexpr double kFirstTimes = 4;  // ratio of gain to price required before a window was seen

std::vector<LayerId> TestedLayers(const Topology& topology) {
  const int32_t num_layers = topology.num_layers();
  const int64_t work = int64_t{topology.num_slots()} * topology.num_gpus();
  const int64_t most = std::clamp<int64_t>(kMaxTestedWork / work, 1, kMaxTestedLayers);
  const int64_t tested = std::min<int64_t>(num_layers, most);
  std::vector<LayerId> layers;
  for (int64_t i = 0; i < tested; ++i) {
    layers.push_back(LayerId{static_cast<int32_t>(i * num_layers / tested)});
  }
  return layers;
}

// One window of another length, as after a gap, does not make the usual one.
double MedianSteps(std::span<const SeenWindow> windows) {
  std::vector<int64_t> steps;
  for (const SeenWindow& window : windows) steps.push_back(window.num_steps);
  const auto middle = steps.begin() + std::ssize(steps) / 2;
  std::nth_element(steps.begin(), middle, steps.end());
  return static_cast<double>(*middle);
}

absl::StatusOr<Placement> LayersOf(const Placement& placement, std::span<const LayerId> layers) {
  const Topology& whole = placement.topology();
  EPLB_ASSIGN_OR_RETURN(const Topology topology,
                        Topology::Make({.num_layers = static_cast<int32_t>(layers.size()),
                                        .num_experts = whole.num_experts(),
                                        .num_slots = whole.num_slots(),
                                        .num_gpus = whole.num_gpus(),
                                        .num_nodes = whole.num_nodes(),
                                        .num_groups = whole.num_groups()}));
  IndexMatrix slots(topology.num_layers(), topology.num_slots());
  IndexMatrix ranks(topology.num_layers(), topology.num_slots());
  for (Eigen::Index i = 0; i < slots.rows(); ++i) {
    const int32_t layer = layers[static_cast<size_t>(i)].value;
    slots.row(i) = placement.physical_to_logical_map().row(layer);
    ranks.row(i) = placement.replica_rank().row(layer);
  }
  return Placement::FromSlotsAndRanks(topology, slots, ranks);
}

absl::StatusOr<std::shared_ptr<const Load>> LayersOf(const Load& whole,
                                                     std::span<const LayerId> layers) {
  const auto rows = static_cast<Eigen::Index>(layers.size());
  const auto row_of = [&layers](Eigen::Index i) { return layers[static_cast<size_t>(i)].value; };
  const auto load = [&]() -> absl::StatusOr<Load> {
    if (whole.is_counts()) {
      LoadMatrix counts(rows, whole.num_experts());
      for (Eigen::Index i = 0; i < rows; ++i) counts.row(i) = whole.counts().row(row_of(i));
      return Load::FromCounts(std::move(counts));
    }
    const RealMatrix all = whole.ToDouble();
    RealMatrix cells(rows, all.cols());
    for (Eigen::Index i = 0; i < rows; ++i) cells.row(i) = all.row(row_of(i));
    return Load::FromEstimates(std::move(cells));
  };
  EPLB_ASSIGN_OR_RETURN(Load some, load());
  return std::make_shared<const Load>(std::move(some));
}

absl::StatusOr<SeenWindow> LayersOf(const SeenWindow& window, std::span<const LayerId> layers) {
  EPLB_ASSIGN_OR_RETURN(std::shared_ptr<const Load> load, LayersOf(*window.load, layers));
  return SeenWindow{std::move(load), window.num_steps};
}

}  // namespace

int64_t WindowsFor(const BacktestOptions& options) {
  int64_t most = options.candidates.empty() ? kAutoWindows : 1;
  for (const Candidate& one : options.candidates) most = std::max(most, one.estimate.windows);
  return most;
}

Backtest::Backtest(Placement start, std::vector<LayerId> layers, double scale,
                   const BacktestOptions& options)
    : start_(std::move(start)),
      incumbent_(start_),
      layers_(std::move(layers)),
      scale_(scale),
      options_(options) {
  const bool has_own = !options.candidates.empty();
  const auto model_layers =
      static_cast<int32_t>(std::lround(scale * static_cast<double>(layers_.size())));
  const Switching start_placement(start_, model_layers);
  for (const Candidate& candidate : has_own ? options.candidates : CandidatesFor(options.split)) {
    shadows_.push_back({.candidate = candidate, .placement = start_placement});
  }
  shadows_.push_back({.candidate = {}, .placement = start_placement});  // does nothing
}

absl::StatusOr<Backtest> Backtest::Begin(const Placement& incumbent,
                                         const BacktestOptions& options) {
  std::vector<LayerId> layers = TestedLayers(incumbent.topology());
  EPLB_ASSIGN_OR_RETURN(Placement start, LayersOf(incumbent, layers));
  const double scale =
      static_cast<double>(incumbent.topology().num_layers()) / static_cast<double>(layers.size());
  return Backtest(std::move(start), std::move(layers), scale, options);
}

absl::StatusOr<Evaluation> Backtest::Evaluated(const SeenWindow& window, const Placement& placement,
                                               const BacktestInput& input) const {
  return EvaluateSplit(*window.load, placement, options_.split, input.speeds);
}

LearnedGate Backtest::GateOf(const Shadow& shadow, double net_seconds) const {
  const double prior = shadow.promise ? shadow.promise->tokens_per_step * steps_per_window_ : 0;
  const double predicted = shadow.predicted_tokens + prior;
  const bool predicts = !shadow.candidate.policy.empty();
  const auto realized = [&](double errors) {
    if (predicted <= 0) return predicts ? kUsuallyRealized : 0;
    const double seen = shadow.seen_tokens - errors * std::sqrt(shadow.seen_squares);
    return std::clamp((seen + kUsuallyRealized * prior) / predicted, 0.0, 1.0);
  };
  const auto proved = [&](double errors) {
    return std::max(0.0, shadow.ahead_tokens - errors * std::sqrt(shadow.ahead_squares)) * scale_ /
           static_cast<double>(std::max<int64_t>(1, incumbent_windows_));
  };
  const auto missed = [&](double errors) {
    const double ahead = shadow.ahead_seconds - errors * std::sqrt(shadow.ahead_seconds_squares);
    return ahead >= shadow.spent_meanwhile ? std::max(0.0, ahead) : 0;
  };
  const int32_t cadence = shadow.candidate.cadence;
  const bool alone = shadows_.size() == 2;  // besides the one that does nothing
  const double sure = alone ? kSureAlone : kSure;
  double budget = std::numeric_limits<double>::infinity();
  if (alone || net_seconds < 0) budget = Finite(kAllowance * unmoved_seconds_ + net_seconds);
  if (alone) budget /= 2;  // the migration, and the way back
  double horizon = kHorizon * cadence * options_.every;
  if (shadow.candidate.estimate.as_scenarios) {
    horizon = std::max(horizon, static_cast<double>(std::min(num_windows_, kMaxHorizon)));
  }
  return {.horizon_steps = horizon * steps_per_window_,
          .windows = num_windows_ > 1 ? num_windows_ : 0,
          .shown = {realized(0), proved(1), missed(1)},
          .sure = {realized(sure), proved(sure), missed(sure)},
          .budget_seconds = budget};
}

absl::StatusOr<double> Backtest::Price(const Placement& before, const Placement& after,
                                       const BacktestInput& input) const {
  if (!input.costs.priced()) return 0;
  EPLB_ASSIGN_OR_RETURN(const MigrationCost migration, PriceMigration(before, after, input.costs));
  const double stall = input.costs.stall_seconds;
  return Finite((migration.seconds - stall) * scale_ + stall);
}

absl::Status Backtest::Follow(const BacktestInput& input) {
  EPLB_ASSIGN_OR_RETURN(Placement some, LayersOf(input.incumbent, layers_));
  ++incumbent_windows_;
  if (some == incumbent_) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const double price, Price(incumbent_, some, input));
  own_net_seconds_ = Finite(own_net_seconds_ - price);
  incumbent_ = std::move(some);
  incumbent_windows_ = 1;
  for (Shadow& shadow : shadows_) {
    shadow.ahead_tokens = 0;
    shadow.ahead_squares = 0;
    shadow.ahead_seconds = 0;
    shadow.ahead_seconds_squares = 0;
    shadow.spent_meanwhile = 0;
  }
  return absl::OkStatus();
}

absl::Status Backtest::Score(Shadow& shadow, const SeenWindow& window, const Yardstick& peaks,
                             const BacktestInput& input) const {
  const double token_seconds = input.costs.token_seconds > 0 ? input.costs.token_seconds : 1;
  const auto steps = static_cast<double>(window.num_steps);
  const auto evaluate = [&](const Placement& ran) { return Evaluated(window, ran, input); };
  EPLB_ASSIGN_OR_RETURN(
      const SwitchedWindow passed,
      shadow.placement.Pass(num_steps_ - window.num_steps, window.num_steps, evaluate));
  const Evaluation& now = passed.seen;
  const double here = ReplicaSecondsPerStep(shadow.placement.running(), input.costs);
  const double replicas = (here - ReplicaSecondsPerStep(start_, input.costs)) * scale_ * steps;
  const double saved = Finite((peaks.unmoved - now.peak_load) * scale_ * token_seconds);
  const double gained = Finite(saved - replicas);
  shadow.unpaid_seconds = Finite(shadow.unpaid_seconds + passed.seconds);
  const double charged = shadow.unpaid_seconds * kCharged;
  shadow.unpaid_seconds -= charged;
  shadow.balancedness.Add(now.mean_balancedness);
  shadow.saved_seconds = Finite(shadow.saved_seconds + saved);
  shadow.spent_seconds = Finite(shadow.spent_seconds + replicas + passed.seconds);
  shadow.net_seconds = Finite(kScoreMemory * shadow.net_seconds + gained - charged);
  shadow.net_squares = Finite(kScoreMemory * shadow.net_squares + gained * gained);
  shadow.spent_meanwhile = Finite(shadow.spent_meanwhile + passed.seconds);
  const double ahead = Finite((peaks.incumbent - now.peak_load) / steps);
  shadow.ahead_tokens = Finite(shadow.ahead_tokens + ahead);
  shadow.ahead_squares = Finite(shadow.ahead_squares + ahead * ahead);
  const double seconds = Finite((peaks.incumbent - now.peak_load) * scale_ * token_seconds -
                                (here - peaks.incumbent_replicas) * scale_ * steps);
  shadow.ahead_seconds = Finite(shadow.ahead_seconds + seconds);
  shadow.ahead_seconds_squares = Finite(shadow.ahead_seconds_squares + seconds * seconds);
  if (shadow.promise) {
    EPLB_ASSIGN_OR_RETURN(const Evaluation before,
                          Evaluated(window, shadow.promise->before, input));
    EPLB_ASSIGN_OR_RETURN(const Evaluation after, Evaluated(window, shadow.promise->after, input));
    const double predicted = shadow.promise->tokens_per_step * steps;
    const double seen = before.peak_load - after.peak_load;
    shadow.predicted_tokens = Finite(kRealizedMemory * shadow.predicted_tokens + predicted);
    shadow.seen_tokens = Finite(kRealizedMemory * shadow.seen_tokens + seen);
    shadow.seen_squares = Finite(kRealizedMemory * shadow.seen_squares + seen * seen);
  }
  return absl::OkStatus();
}

// Returns the fall of each layer's peak, per step. With exact splits the windows are batches, each
// with its own peak.
absl::StatusOr<std::vector<double>> Backtest::PredictedFalls(const ExpectedLoad& expected,
                                                             const Placement& before,
                                                             const Placement& after,
                                                             const BacktestInput& input) const {
  const std::span<const Load> each = expected.Each(options_.split);
  const std::span<const Load> loads = each.empty() ? std::span(&expected.load, 1) : each;
  EPLB_ASSIGN_OR_RETURN(const Evaluation now,
                        EvaluateWindows(loads, before, options_.split, {.speeds = input.speeds}));
  EPLB_ASSIGN_OR_RETURN(const Evaluation then,
                        EvaluateWindows(loads, after, options_.split, {.speeds = input.speeds}));
  std::vector<double> falls;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    falls.push_back(Finite((now.max_gpu_load[layer] - then.max_gpu_load[layer]) /
                           expected.StepsFor(options_.split)));
  }
  return falls;
}

absl::StatusOr<const Backtest::Solved*> Backtest::Solve(const Shadow& shadow, const Seen& seen,
                                                        const BacktestInput& input,
                                                        std::deque<Solved>& solved) const {
  EPLB_ASSIGN_OR_RETURN(ExpectedLoad expected,
                        ExpectLoad(shadow.candidate.estimate, seen.windows, seen.history));
  const auto known = std::ranges::find_if(solved, [&](const Solved& one) {
    return one.policy == shadow.candidate.policy && one.before == shadow.placement.target() &&
           one.expected == expected;
  });
  if (known != solved.end()) return &*known;
  const Placement& before = shadow.placement.target();
  PolicyOptions options = options_.policy;
  options.effort = Effort::kFast;
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy,
                        MakePolicy(shadow.candidate.policy, options));
  EPLB_ASSIGN_OR_RETURN(Placement after, SolveAligned(*policy, {.load = expected.load,
                                                                .topology = before.topology(),
                                                                .previous = &before,
                                                                .speeds = input.speeds,
                                                                .split = options_.split,
                                                                .recent = expected.recent,
                                                                .scenarios = expected.scenarios,
                                                                .abandoned = input.abandoned}));
  solved.push_back({shadow.candidate.policy, std::move(expected), before, std::move(after)});
  return &solved.back();
}

absl::Status Backtest::Decide(Shadow& shadow, const Solved& solved,
                              const BacktestInput& input) const {
  const Placement& before = solved.before;
  const Placement& after = solved.after;
  shadow.promise.reset();
  if (after == before) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(std::vector<double> falls,
                        PredictedFalls(solved.expected, before, after, input));
  const double tokens = Finite(std::accumulate(falls.begin(), falls.end(), 0.0));
  if (tokens <= 0) return absl::OkStatus();
  shadow.promise = {.before = before, .after = after, .tokens_per_step = tokens};
  EPLB_ASSIGN_OR_RETURN(const double owed, Price(before, after, input));
  const double replicas =
      (ReplicaSecondsPerStep(after, input.costs) - ReplicaSecondsPerStep(before, input.costs)) *
      scale_;
  const double token_seconds = input.costs.token_seconds > 0 ? input.costs.token_seconds : 1;
  LearnedGate own = GateOf(shadow, shadow.saved_seconds - shadow.spent_seconds);
  // It is ahead of the job's placement, not of its own.
  for (LearnedGate::Shown* shown : {&own.shown, &own.sure}) *shown = {.realized = shown->realized};
  if (!Earns(own, {.predicted = Finite(tokens * scale_ * token_seconds),
                   .replicas = replicas,
                   .migration = owed,
                   .token_seconds = token_seconds})) {
    return absl::OkStatus();
  }
  return Adopt(shadow, solved, {.target = after, .falls = std::move(falls), .seconds = owed},
               input);
}

// Switches from what is left of the decision before: layers of it may never be switched. change: as
// if it were in force.
absl::Status Backtest::Adopt(Shadow& shadow, const Solved& solved, Change change,
                             const BacktestInput& input) const {
  change.expert = input.costs.expert;
  EPLB_RETURN_IF_ERROR(shadow.placement.Interrupt(options_.switch_time, num_steps_).status());
  const Placement& left = shadow.placement.target();
  if (!(left == solved.before)) {
    EPLB_ASSIGN_OR_RETURN(change.falls, PredictedFalls(solved.expected, left, solved.after, input));
    EPLB_ASSIGN_OR_RETURN(change.seconds, Price(left, solved.after, input));
  }
  return shadow.placement.Begin(change, options_.switch_time, num_steps_);
}

absl::Status Backtest::Advance(const BacktestInput& input) {
  for (const SeenWindow& window : input.windows) {
    if (window.load->num_layers() > layers_.back().value) continue;
    return absl::InvalidArgumentError("a window has fewer layers than the placement");
  }
  EPLB_ASSIGN_OR_RETURN(const SeenWindow newest, LayersOf(input.windows.back(), layers_));
  const auto counted = static_cast<size_t>(WindowsFor(options_));
  const auto recent = input.windows.last(std::min(input.windows.size(), counted));
  steps_per_window_ = MedianSteps(recent);
  EPLB_ASSIGN_OR_RETURN(const Evaluation unmoved, Evaluated(newest, start_, input));
  EPLB_RETURN_IF_ERROR(Follow(input));
  EPLB_ASSIGN_OR_RETURN(const Evaluation in_use, Evaluated(newest, incumbent_, input));
  const Yardstick peaks{.unmoved = unmoved.peak_load,
                        .incumbent = in_use.peak_load,
                        .incumbent_replicas = ReplicaSecondsPerStep(incumbent_, input.costs)};
  ++num_windows_;
  num_steps_ += newest.num_steps;
  const double token_seconds = input.costs.token_seconds > 0 ? input.costs.token_seconds : 1;
  unmoved_seconds_ = Finite(unmoved_seconds_ + unmoved.peak_load * scale_ * token_seconds);
  const double replicas = (peaks.incumbent_replicas - ReplicaSecondsPerStep(start_, input.costs)) *
                          static_cast<double>(newest.num_steps);
  own_net_seconds_ =
      Finite(own_net_seconds_ + (peaks.unmoved - peaks.incumbent) * scale_ * token_seconds -
             replicas * scale_);
  for (Shadow& shadow : shadows_) {
    EPLB_RETURN_IF_ERROR(Score(shadow, newest, peaks, input));
  }
  Choose();
  return DecideWhereDue(recent, input);
}

absl::StatusOr<Backtest::Seen> Backtest::SeenOf(std::span<const SeenWindow> recent,
                                                const BacktestInput& input) const {
  Seen seen;
  for (const SeenWindow& window : recent) {
    EPLB_ASSIGN_OR_RETURN(SeenWindow some, LayersOf(window, layers_));
    seen.windows.push_back(std::move(some));
  }
  for (const TypicalLoad& whole : input.history) {
    TypicalLoad& some = seen.history.emplace_back(whole);
    EPLB_ASSIGN_OR_RETURN(some.load, LayersOf(*whole.load, layers_));
  }
  return seen;
}

absl::Status Backtest::DecideWhereDue(std::span<const SeenWindow> recent,
                                      const BacktestInput& input) {
  std::optional<Seen> seen;
  std::deque<Solved> solved;
  for (Shadow& shadow : shadows_) {
    if (shadow.candidate.policy.empty()) continue;
    if (shadow.windows_since_decision >= 0) ++shadow.windows_since_decision;
    const int64_t due = int64_t{shadow.candidate.cadence} * options_.every;
    if (shadow.windows_since_decision >= 0 && shadow.windows_since_decision < due) continue;
    shadow.windows_since_decision = 0;
    if (!seen) {
      EPLB_ASSIGN_OR_RETURN(seen, SeenOf(recent, input));
    }
    EPLB_ASSIGN_OR_RETURN(const Solved* one, Solve(shadow, *seen, input, solved));
    EPLB_RETURN_IF_ERROR(Decide(shadow, *one, input));
  }
  return absl::OkStatus();
}

// Windows that showed what a decision is worth: its first chunk was in force for half of them or
// more.
int64_t Backtest::NumShown() const {
  const SwitchTime& time = options_.switch_time;
  const double idle = (time.vote_every - 1) / 2.0;
  return num_windows_ - 1 - (2 * (time.decide_steps + idle) > steps_per_window_ ? 1 : 0);
}

// A candidate is proved if its net seconds exceed the scatter of the windows' savings.
void Backtest::Choose() {
  if (NumShown() < kProvingWindows) return;
  const auto pays = [](const Shadow& shadow) {
    return shadow.net_seconds > std::sqrt(shadow.net_squares);
  };
  const auto best = std::max_element(
      shadows_.begin(), shadows_.begin() + nothing(),
      [](const Shadow& a, const Shadow& b) { return a.net_seconds < b.net_seconds; });
  const Shadow& chosen = shadows_[static_cast<size_t>(choice_)];
  const double margin = kMargin * std::abs(best->net_seconds);
  if (pays(chosen) && best->net_seconds <= chosen.net_seconds + margin) return;
  choice_ = pays(*best) ? best - shadows_.begin() : nothing();
}

std::vector<CandidateScore> Backtest::Scores() const {
  std::vector<CandidateScore> scores;
  for (const Shadow& shadow : shadows_) {
    scores.push_back({.candidate = shadow.candidate,
                      .windows = num_windows_,
                      .balancedness = shadow.balancedness.Value(),
                      .saved_seconds = shadow.saved_seconds,
                      .spent_seconds = shadow.spent_seconds,
                      .net_seconds = shadow.net_seconds,
                      .realized = shadow.predicted_tokens > 0
                                      ? std::optional(GateOf(shadow, 0).shown.realized)
                                      : std::nullopt});
  }
  return scores;
}

void Backtest::Adjust(const BacktestOptions& options) {
  options_.every = options.every;
  options_.switch_time = options.switch_time;
  options_.candidates = options.candidates;
  for (size_t i = 0; i < options.candidates.size(); ++i) {
    shadows_[i].candidate = options.candidates[i];
  }
}

const Backtest::Shadow& Backtest::Next() const {
  if (choice_ != nothing()) return shadows_[static_cast<size_t>(choice_)];
  const bool start_is_ahead = GateOf(shadows_.back(), 0).shown.missed_seconds > 0;
  return start_is_ahead ? shadows_.back() : shadows_.front();
}

LearnedGate Backtest::gate() const {
  const Shadow& next = Next();
  LearnedGate gate = GateOf(next, own_net_seconds_);
  gate.returns = &next == &shadows_.back();
  gate.in_use = choice_ != nothing() || gate.returns;
  if (NumShown() < 1) {
    gate.times = kFirstTimes;
    gate.horizon_steps =
        std::min(gate.horizon_steps, steps_per_window_ * static_cast<double>(num_windows_));
  }
  return gate;
}

}  // namespace eplb
