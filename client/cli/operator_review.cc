// The operators' changes to a job during a recorded run, by its steps.
#include <algorithm>

#include "absl/strings/match.h"

#include "client/cli/run_review.h"

namespace eplb::cli {
namespace {

constexpr const char* kChanges[] = {"pause", "resume", "rollback", "rebalance", "set_policy"};

bool IsChange(const LoggedEvent& event) {
  return std::ranges::any_of(kChanges, [&event](const char* name) { return event.name == name; });
}

// The reasons why decisions take no effect.
struct Brakes {
  bool paused = false;
  bool observing = false;

  bool any() const { return paused || observing; }
};

void Apply(const LoggedEvent& event, Brakes& brakes) {
  if (event.name == "pause" || event.name == "rollback") brakes.paused = true;
  if (event.name == "resume") brakes.paused = false;
  if (event.name != "set_policy") return;
  if (absl::StrContains(event.after, "mode=observe")) brakes.observing = true;
  if (absl::StrContains(event.after, "mode=apply")) brakes.observing = false;
}

bool SetsPause(const LoggedEvent& event) {
  return event.name == "pause" || event.name == "resume" || event.name == "rollback";
}

// Before a change of the pause. A rollback names the version first: "version 12, not paused".
bool WasPaused(const LoggedEvent& event) {
  return event.name == "rollback" ? absl::StrContains(event.before, ", paused")
                                  : absl::StartsWith(event.before, "paused");
}

// The brakes before the first event of a log, which may begin in the middle of a run: the state
// that the first changes report as the one before them.
Brakes BrakesBefore(const std::vector<LoggedEvent>& events) {
  Brakes brakes;
  const auto pause = std::ranges::find_if(events, SetsPause);
  if (pause != events.end()) brakes.paused = WasPaused(*pause);
  const auto mode = std::ranges::find_if(events, [](const LoggedEvent& event) {
    return event.name == "set_policy" && absl::StrContains(event.before, "mode=");
  });
  if (mode != events.end()) brakes.observing = absl::StrContains(mode->before, "mode=observe");
  return brakes;
}

double SecondsOf(const LoggedEvent& event) { return static_cast<double>(event.unix_micros) * 1e-6; }

// The newest step that had begun at that time; -1: none.
int64_t StepAt(const RunReport& report, double unix_seconds) {
  const auto after = std::upper_bound(report.steps.begin(), report.steps.end(), unix_seconds,
                                      [&report](double time, const StepRecord& step) {
                                        return time < report.began_at + step.began;
                                      });
  return after - report.steps.begin() - 1;
}

double EndOf(const RunReport& report) {
  if (report.steps.empty()) return report.began_at;
  return report.began_at + report.steps.back().began + report.steps.back().seconds;
}

// Returns the first step all of whose changes are in the log; 0: all of the run's are. A short list
// of events begins during the run.
int64_t FirstCovered(const RunReport& report, const std::vector<LoggedEvent>& events) {
  constexpr double kRegisters = 60;  // seconds within which the daemon records a run's start
  if (events.empty()) return std::ssize(report.steps);
  if (SecondsOf(events.front()) <= report.began_at) return 0;
  // Other events may precede it.
  const bool has_start = std::ranges::any_of(events, [&report](const LoggedEvent& event) {
    return event.name == "run_started" && SecondsOf(event) < report.began_at + kRegisters;
  });
  return has_start ? 0 : StepAt(report, SecondsOf(events.front())) + 1;
}

// Steps [first, last] ran with these brakes on.
void HoldBack(const Brakes& brakes, int64_t first, int64_t last, OperatorReview& review) {
  if (!brakes.any() || first > last) return;
  const std::string why = brakes.paused ? "paused" : "observed only";
  auto& held_back = *review.changes.mutable_held_back();
  if (held_back.empty() || held_back.rbegin()->why() != why ||
      held_back.rbegin()->last_step() + 1 != first) {
    v1::HeldBack& stretch = *held_back.Add();
    stretch.set_first_step(first);
    stretch.set_why(why);
  }
  held_back.rbegin()->set_last_step(last);
  std::fill(review.decided.begin() + first, review.decided.begin() + last + 1, false);
}

}  // namespace

OperatorReview ReviewOperators(const RunReport& report, const std::optional<LoggedEvents>& events) {
  OperatorReview review;
  const auto num_steps = std::ssize(report.steps);
  review.decided.assign(static_cast<size_t>(num_steps), true);
  if (!events.has_value() || report.began_at <= 0) return review;
  review.changes.set_first_step(FirstCovered(report, events->events));
  Brakes brakes = BrakesBefore(events->events);
  int64_t first = 0;  // the first step with these brakes
  for (const LoggedEvent& event : events->events) {
    const double time = SecondsOf(event);
    if (time > EndOf(report)) break;
    if (!IsChange(event)) continue;
    const int64_t step = StepAt(report, time);
    HoldBack(brakes, first, step, review);
    first = std::max(first, step + 1);
    Apply(event, brakes);
    if (time < report.began_at) continue;
    v1::OperatorAction& action = *review.changes.add_actions();
    action.set_step(step);
    action.set_name(event.name);
    action.set_actor(event.actor);
    action.set_reason(event.reason);
    action.set_before(event.before);
    action.set_after(event.after);
  }
  HoldBack(brakes, first, num_steps - 1, review);
  return review;
}

}  // namespace eplb::cli
