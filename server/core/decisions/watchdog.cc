#include "server/core/decisions/watchdog.h"

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"
#include "server/core/decisions/decide.h"
#include "server/core/state/ending.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr int kPatience = 3;  // deadlines
constexpr int kVotesAwaited = 3;

// A rank that has voted for a chunk, and stages it ahead, answers Cancel after its next vote.
absl::Duration AwaitedVotes(const Job& job) {
  return job.current ? kVotesAwaited * VoteInterval(*job.current) : absl::ZeroDuration();
}

}  // namespace

absl::Duration DeadlineOf(const Config& config, const Job& job) {
  switch (job.phase) {
    case Phase::kIdle:
      return absl::InfiniteDuration();
    case Phase::kRecovering: {
      const v1::RunEnd* end = EndOf(job);
      const bool moved = job.current && !job.current->moved.empty();  // another daemon leads it
      const bool waits = end == nullptr || (end->ending() == v1::RUN_ENDING_LOST && !moved);
      return waits ? config.prepare_deadline + AwaitedVotes(job) : absl::InfiniteDuration();
    }
    case Phase::kSolving:
      return SolveDeadline(config, job);
    case Phase::kPreparing:
      return config.prepare_deadline;
    case Phase::kVoting:
      // It is in force, or not, when the engine asks again.
      if (job.current && !job.current->asking.engine.empty()) return absl::InfiniteDuration();
      return config.voting_deadline + AwaitedVotes(job);
    case Phase::kCancelling:
      if (job.current && !job.current->asking.engine.empty()) return absl::InfiniteDuration();
      return config.cancel_deadline + AwaitedVotes(job);
    case Phase::kQuarantine:
      return config.cancel_deadline;
  }
  return absl::InfiniteDuration();
}

absl::Duration StuckFor(const Config& config, const Job& job, absl::Time now) {
  const absl::Duration age = now - job.in_phase.since;
  return age > kPatience * DeadlineOf(config, job) ? age : absl::ZeroDuration();
}

void WatchState(DecisionContext& context, Job& job) {
  const absl::Duration age = StuckFor(context.state.config, job, context.now);
  if (age == absl::ZeroDuration() || job.in_phase.stuck_counted) return;
  job.in_phase.stuck_counted = true;
  ++context.state.counters.stuck;
  if (job.in_phase.stuck_recorded) return;
  job.in_phase.stuck_recorded = true;
  RecordEvent(context, job, "stuck", job.last_known ? job.last_known->version : 0,
              absl::StrCat(wire::EnumText(StateOf(job)), " for ",
                           absl::FormatDuration(absl::Trunc(age, absl::Seconds(1))),
                           ", waiting for ", WaitingFor(job)));
}

}  // namespace eplb::core
