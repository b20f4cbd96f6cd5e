#include "server/core/solution.h"

#include <memory>
#include <utility>

#include "server/core/decisions/scenario_figures.h"

namespace eplb::core {
namespace {

// Returns the first step of the newest `count` windows with tokens up to the question's last one.
int64_t FirstStepOf(const DecisionQuestion& question, size_t count) {
  int64_t first_step = question.last_step;
  for (auto window = question.windows.rbegin(); window != question.windows.rend() && count > 0;
       ++window) {
    if (window->last_step > question.last_step || !HasTokens(*window->load)) continue;
    first_step = window->first_step;
    --count;
  }
  return first_step;
}

}  // namespace

DecisionAnswer Decide(const DecisionQuestion& question, const PlannerAnswer& answer) {
  const ExpectedLoad& expected = answer.expected;
  const SplitMode split = question.planner.options.split;
  const GpuSpeeds* const speeds = question.planner.speeds.get();
  DecisionAnswer decided{
      .first_step = FirstStepOf(question, static_cast<size_t>(expected.num_windows)),
      .decision = absl::InvalidArgumentError("the solution has another shape than the job")};
  decided.measured_balancedness =
      MeasuredOver(question.windows, decided.first_step, question.last_step, split, speeds);
  if (!(answer.placement.topology() == question.incumbent->topology())) return decided;
  decided.decision = EvaluateCandidate({.load = expected.load,
                                        .num_steps = expected.StepsFor(split),
                                        .first_step = decided.first_step,
                                        .last_step = question.last_step,
                                        .incumbent = *question.incumbent,
                                        .candidate = answer.placement,
                                        .min_gain = question.settings.min_gain,
                                        .staging_rows = question.staging_rows,
                                        .limits = question.limits,
                                        .migration = question.migration,
                                        .costs = question.costs,
                                        .prices = &question.planner.costs,
                                        .learned = answer.gate ? &*answer.gate : nullptr,
                                        .predictions = &question.predictions,
                                        .measured_balancedness = decided.measured_balancedness,
                                        .force = question.force,
                                        .speeds = speeds,
                                        .split = split,
                                        .recent = expected.Each(split),
                                        .load_of = expected.Name()});
  if (!decided.decision.ok() || expected.scenarios.empty()) return decided;
  absl::StatusOr<v1::Plan> figures = ScenarioFiguresOf(expected.scenarios, *question.incumbent,
                                                       decided.decision->target, split, speeds);
  if (figures.ok()) {
    decided.decision->scenarios = *std::move(figures);
  } else {
    decided.decision = figures.status();
  }
  return decided;
}

Solved Solution(const Solve& request, absl::StatusOr<PlannerOutcome> planned) {
  Solved solved{.job = request.job, .solve_id = request.solve_id, .planned = nullptr};
  if (!planned.ok()) {
    solved.planned = planned.status();
    return solved;
  }
  if (planned->answer) {
    solved.answer =
        std::make_shared<const DecisionAnswer>(Decide(*request.question, *planned->answer));
  }
  solved.planned = std::make_shared<const PlannerOutcome>(*std::move(planned));
  return solved;
}

Solved AnswerSolve(const Solve& request, const std::atomic<bool>* abandoned) {
  const DecisionQuestion& question = *request.question;
  return Solution(request, AskPlanner(question.planner, *question.incumbent, abandoned));
}

}  // namespace eplb::core
