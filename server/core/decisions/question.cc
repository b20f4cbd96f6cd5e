#include "server/core/decisions/question.h"

#include <utility>

namespace eplb::core {
namespace {

// First step of the newest `count` windows up to the question's last one.
int64_t FirstStepOf(const DecisionQuestion& question, size_t count) {
  int64_t first_step = question.last_step;
  for (auto window = question.windows.rbegin(); window != question.windows.rend() && count > 0;
       ++window) {
    if (window->last_step > question.last_step) continue;
    first_step = window->first_step;
    --count;
  }
  return first_step;
}

std::vector<Load> RecentOf(const DecisionQuestion& question, const AutoAnswer* chosen) {
  if (question.split != SplitMode::kBatch) return {};
  if (chosen != nullptr) return {chosen->expected.recent.begin(), chosen->expected.recent.end()};
  std::vector<Load> recent;
  for (const std::shared_ptr<const Load>& window : question.recent) recent.push_back(*window);
  return recent;
}

}  // namespace

DecisionAnswer Decide(const DecisionQuestion& question, const Placement& candidate,
                      const AutoAnswer* chosen) {
  DecisionAnswer answer{
      .first_step = question.first_step,
      .measured_balancedness = question.measured_balancedness,
      .decision = absl::InvalidArgumentError("the solution has another shape than the job")};
  if (chosen != nullptr) {
    answer.first_step = FirstStepOf(question, chosen->expected.recent.size());
    answer.measured_balancedness =
        MeasuredOver(question.windows, answer.first_step, question.last_step, question.split,
                     question.speeds.get());
  }
  if (!(candidate.topology() == question.incumbent->topology())) return answer;
  const std::vector<Load> recent = RecentOf(question, chosen);
  // With exact splits a back-test's load stands for the steps of its windows.
  const bool has_steps = chosen != nullptr && question.split != SplitMode::kBatch;
  answer.decision =
      EvaluateCandidate({.load = chosen == nullptr ? *question.load : chosen->expected.load,
                         .first_step = answer.first_step,
                         .last_step = question.last_step,
                         .incumbent = *question.incumbent,
                         .candidate = candidate,
                         .min_gain = question.settings.min_gain,
                         .layers_per_chunk = question.settings.layers_per_chunk,
                         .staging_rows = question.staging_rows,
                         .rows_per_chunk = question.rows_per_chunk,
                         .migration = question.migration,
                         .costs = question.costs,
                         .prices = &question.prices,
                         .record = &question.record,
                         .every_steps = question.settings.every_steps,
                         .max_pause_seconds = absl::ToDoubleSeconds(question.settings.max_pause),
                         .seconds_per_byte = question.seconds_per_byte,
                         .measured = question.measured,
                         .num_steps = has_steps ? chosen->expected.num_steps : 0,
                         .learned = chosen == nullptr ? nullptr : &chosen->gate,
                         .predictions = &question.predictions,
                         .measured_balancedness = answer.measured_balancedness,
                         .force = question.force,
                         .speeds = question.speeds.get(),
                         .split = question.split,
                         .recent = recent});
  return answer;
}

}  // namespace eplb::core
