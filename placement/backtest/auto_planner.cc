#include "placement/backtest/auto_planner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace eplb {

absl::StatusOr<std::optional<AutoAnswer>> PlanAuto(const AutoRequest& request, AutoState& state) {
  for (const SeenWindow& window : request.fresh) {
    state.recent.push_back(window);
    if (state.recent.size() > kEstimateWindows) state.recent.erase(state.recent.begin());
    if (state.windows_since_decision >= 0) ++state.windows_since_decision;
    EPLB_RETURN_IF_ERROR(state.backtest.Advance({.windows = state.recent,
                                                 .incumbent = request.incumbent,
                                                 .costs = request.costs,
                                                 .speeds = request.speeds,
                                                 .abandoned = request.abandoned}));
  }
  if (state.recent.empty()) return std::nullopt;
  const Backtest& backtest = state.backtest;
  const Candidate candidate = backtest.Scores()[backtest.choice().value_or(0)].candidate;
  const int64_t due = int64_t{candidate.cadence} * backtest.options().every;
  const bool waits = state.windows_since_decision >= 0 && state.windows_since_decision < due;
  if (waits && !request.now) return std::nullopt;
  state.windows_since_decision = 0;
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy,
                        MakePolicy(candidate.policy, request.policy));
  EPLB_ASSIGN_OR_RETURN(ExpectedLoad expected, ExpectLoad(candidate.estimate, state.recent));
  EPLB_ASSIGN_OR_RETURN(Placement placement,
                        SolveAligned(*policy, {.load = expected.load,
                                               .topology = request.incumbent.topology(),
                                               .previous = &request.incumbent,
                                               .speeds = request.speeds,
                                               .split = backtest.options().split,
                                               .recent = expected.recent,
                                               .abandoned = request.abandoned}));
  return AutoAnswer{std::move(expected), std::move(placement), backtest.gate(), candidate};
}

namespace {

// Whether its back-test is of the same job as the question still.
bool GoesOn(const AutoState& state, const AutoQuestion& question) {
  const BacktestOptions& options = state.backtest.options();
  return options.split == question.options.split &&
         options.hierarchy == question.options.hierarchy &&
         options.latency == question.options.latency &&
         (state.costs.priced() || !question.costs.priced());
}

}  // namespace

absl::StatusOr<AutoOutcome> AskAuto(const AutoQuestion& question, const Placement& incumbent,
                                    const std::atomic<bool>* abandoned) {
  const bool priced = question.costs.priced();
  std::shared_ptr<AutoState> state;
  if (question.state != nullptr) state = std::make_shared<AutoState>(*question.state);
  if (state != nullptr && GoesOn(*state, question)) {
    state->backtest.set_every(question.options.every);
  } else if (state != nullptr) {
    EPLB_ASSIGN_OR_RETURN(state->backtest, Backtest::Begin(incumbent, question.options));
  } else {
    EPLB_ASSIGN_OR_RETURN(Backtest backtest, Backtest::Begin(incumbent, question.options));
    const auto fresh = static_cast<int64_t>(question.fresh.size());
    const int64_t before = std::max<int64_t>(0, question.windows_since_decision - fresh);
    state = std::make_shared<AutoState>(
        AutoState{.backtest = std::move(backtest),
                  .windows_since_decision = question.windows_since_decision < 0 ? -1 : before});
  }
  if (priced) state->costs = question.costs;
  AutoOutcome outcome;
  EPLB_ASSIGN_OR_RETURN(outcome.answer, PlanAuto({.fresh = question.fresh,
                                                  .incumbent = incumbent,
                                                  .costs = priced ? question.costs : state->costs,
                                                  .policy = question.policy,
                                                  .speeds = question.speeds.get(),
                                                  .abandoned = abandoned,
                                                  .now = question.now},
                                                 *state));
  outcome.state = std::move(state);
  return outcome;
}

std::string BacktestText(const Backtest& backtest) {
  if (backtest.num_windows() < 2) return "";
  const std::vector<CandidateScore> scores = backtest.Scores();
  const std::string of = absl::StrCat("back-test of ", scores.size() - 1, " candidates over ",
                                      CountText(backtest.num_windows(), "window"), ": ");
  if (!backtest.choice()) return absl::StrCat(of, "none beats doing nothing");
  return absl::StrCat(of, TextOf(scores[*backtest.choice()].candidate));
}

}  // namespace eplb
