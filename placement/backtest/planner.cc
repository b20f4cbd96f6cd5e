#include "placement/backtest/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "placement/align.h"
#include "placement/policies/registry.h"

namespace eplb {
namespace {

// Returns true if the state's back-test fits the question.
bool GoesOn(const PlannerState& state, const PlannerQuestion& question) {
  const BacktestOptions& options = state.backtest.options();
  const auto same_policy = [](const Candidate& a, const Candidate& b) {
    return a.policy == b.policy;
  };
  return std::equal(options.candidates.begin(), options.candidates.end(),
                    question.options.candidates.begin(), question.options.candidates.end(),
                    same_policy) &&
         options.split == question.options.split &&
         options.policy.hierarchy == question.options.policy.hierarchy &&
         (state.costs.priced() || !question.costs.priced());
}

absl::StatusOr<PlannerState> StateFor(const PlannerQuestion& question, const Placement& incumbent) {
  if (question.state != nullptr && GoesOn(*question.state, question)) {
    PlannerState state = *question.state;
    state.backtest.Adjust(question.options);
    return state;
  }
  EPLB_ASSIGN_OR_RETURN(Backtest backtest, Backtest::Begin(incumbent, question.options));
  auto start = std::make_shared<const Placement>(incumbent);
  if (question.state != nullptr) {
    PlannerState state = *question.state;
    state.backtest = std::move(backtest);
    state.start = std::move(start);
    return state;
  }
  const int64_t before = question.windows_since_decision - question.num_fresh;
  return PlannerState{.backtest = std::move(backtest),
                      .start = std::move(start),
                      .windows_since_decision =
                          question.windows_since_decision < 0 ? -1 : std::max<int64_t>(0, before),
                      .costs = question.costs,
                      .history = question.history};
}

// A single candidate without prices leaves nothing to choose and nothing to weigh.
bool NeedsBacktest(const PlannerState& state) {
  return state.backtest.options().candidates.size() != 1 || state.costs.priced();
}

// Advances the back-test over the windows that are new to it. One that has just begun sees at least
// the newest window, because a decision without any has neither a gain nor a horizon.
absl::Status TakeWindows(const PlannerQuestion& question, const Placement& incumbent,
                         const std::atomic<bool>* abandoned, PlannerState& state) {
  const std::span<const SeenWindow> all(question.windows);
  const size_t first_fresh = all.size() - static_cast<size_t>(question.num_fresh);
  const bool begins = state.backtest.num_windows() == 0 && !all.empty();
  const std::vector<Candidate>& own = state.backtest.options().candidates;
  const bool uses_history = own.empty() || std::ranges::any_of(own, [](const Candidate& one) {
                              return one.estimate.as_scenarios;
                            });
  for (size_t taken = begins ? std::min(first_fresh, all.size() - 1) + 1 : first_fresh + 1;
       taken <= all.size(); ++taken) {
    if (taken > first_fresh) {
      const SeenWindow& fresh = all[taken - 1];
      if (uses_history) state.history.Add(fresh.load, static_cast<double>(fresh.num_steps));
      if (state.windows_since_decision >= 0) ++state.windows_since_decision;
    }
    if (!NeedsBacktest(state)) continue;
    EPLB_RETURN_IF_ERROR(state.backtest.Advance({.windows = all.first(taken),
                                                 .incumbent = incumbent,
                                                 .costs = state.costs,
                                                 .history = state.history.loads(),
                                                 .speeds = question.speeds.get(),
                                                 .abandoned = abandoned}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Placement> Propose(const PlannerQuestion& question, const Placement& incumbent,
                                  const std::atomic<bool>* abandoned, const Candidate& candidate,
                                  const ExpectedLoad& expected, const PlannerState& state) {
  if (candidate.policy.empty()) return Align(incumbent, *state.start);
  const BacktestOptions& options = state.backtest.options();
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy,
                        MakePolicy(candidate.policy, options.policy));
  return SolveAligned(*policy, {.load = expected.load,
                                .topology = incumbent.topology(),
                                .previous = &incumbent,
                                .speeds = question.speeds.get(),
                                .split = options.split,
                                .recent = expected.recent,
                                .scenarios = expected.scenarios,
                                .abandoned = abandoned});
}

absl::StatusOr<PlannerAnswer> Decide(const PlannerQuestion& question, const Placement& incumbent,
                                     const std::atomic<bool>* abandoned, const Candidate& candidate,
                                     const PlannerState& state) {
  EPLB_ASSIGN_OR_RETURN(ExpectedLoad expected,
                        ExpectLoad(candidate.estimate, question.windows, state.history.loads()));
  EPLB_ASSIGN_OR_RETURN(Placement placement,
                        Propose(question, incumbent, abandoned, candidate, expected, state));
  PlannerAnswer answer{std::move(expected), std::move(placement), std::nullopt, candidate};
  if (NeedsBacktest(state)) answer.gate = state.backtest.gate();
  return answer;
}

}  // namespace

absl::StatusOr<PlannerOutcome> AskPlanner(const PlannerQuestion& question,
                                          const Placement& incumbent,
                                          const std::atomic<bool>* abandoned) {
  EPLB_ASSIGN_OR_RETURN(PlannerState state, StateFor(question, incumbent));
  if (question.costs.priced()) state.costs = question.costs;
  EPLB_RETURN_IF_ERROR(TakeWindows(question, incumbent, abandoned, state));
  PlannerOutcome outcome;
  const Candidate candidate = state.backtest.next();
  const int64_t due = int64_t{candidate.cadence} * state.backtest.options().every;
  // A back-test that has just begun has no phase: a restart of the daemon hastens no decision.
  const bool in_phase = state.backtest.num_windows() > 1 && state.backtest.next_decides();
  const bool waits =
      state.windows_since_decision >= 0 && state.windows_since_decision < due && !in_phase;
  if (!question.windows.empty() && (question.now || !waits)) {
    state.windows_since_decision = 0;
    EPLB_ASSIGN_OR_RETURN(outcome.answer, Decide(question, incumbent, abandoned, candidate, state));
  }
  outcome.state = std::make_shared<const PlannerState>(std::move(state));
  return outcome;
}

std::string BacktestText(const Backtest& backtest) {
  const std::vector<CandidateScore> scores = backtest.Scores();
  if (backtest.num_windows() < 2 || scores.size() == 2) return "";
  const std::string of = absl::StrCat("back-test of ", scores.size() - 1, " candidates over ",
                                      CountText(backtest.num_windows(), "window"), ": ");
  if (!backtest.choice()) return absl::StrCat(of, "none beats doing nothing");
  return absl::StrCat(of, TextOf(scores[*backtest.choice()].candidate));
}

}  // namespace eplb
