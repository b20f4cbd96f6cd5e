#include "server/core/decisions/versions.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/text.h"
#include "server/core/state/sentences.h"

namespace eplb::core {

void NoteRan(Job& job, int64_t version, const Digest& digest) {
  job.versions.ran.emplace(version, digest);
  if (job.versions.ran.size() > kMaxRan) job.versions.ran.erase(job.versions.ran.begin());
}

void TellReusedVersion(DecisionContext& context, Job& job, Run& run, const wire::Hello& hello) {
  const auto ran = job.versions.ran.find(hello.running_version);
  if (ran == job.versions.ran.end() || ran->second == hello.running_digest) return;
  if (std::exchange(run.reuse_told, true)) return;
  RecordEvent(
      context, job, "version_reused", hello.running_version,
      absl::StrCat("run ", run.name, " runs version ", hello.running_version, " with digest ",
                   ShortHex(hello.running_digest), ", the job ran digest ", ShortHex(ran->second),
                   " under that number before, which stays in the history; the next version is ",
                   job.versions.next));
}

absl::Status CheckGivenOut(const Job& job, const char* message, int64_t version) {
  if (version < job.versions.next) return absl::OkStatus();
  return InvalidInput(message, ": version is ", version, ", the job's next version is ",
                      job.versions.next, ": this daemon did not propose it");
}

void HandleReserveVersion(DecisionContext& context, const ReserveVersion& ask) {
  State& state = context.state;
  const auto found = state.jobs.find(ask.job);
  absl::Status status;
  if (found == state.jobs.end()) status = NotFound("no job ", ask.job);
  if (state.draining) status = Unavailable("the daemon drains; retry later");
  if (!status.ok()) {
    context.decision.effects.emplace_back(Reply{ask.ticket, status});
    return;
  }
  Job& job = found->second;
  if (!Spend(job.budgets.reservations, context.now)) {
    context.decision.effects.emplace_back(Reply{
        ask.ticket, ResourceExhausted("job ", job.name, " reserved ", Budget::kBurst,
                                      " versions and gets another each ",
                                      absl::FormatDuration(absl::Seconds(1 / Budget::kPerSecond)),
                                      "; retry later")});
    return;
  }
  Undo undo = UndoOf(context, job, ask.ticket, "reserve_version");
  const int64_t version = job.versions.next++;
  if (BelongsInStore(job)) {
    StoreJob(context, job);
    state.undo = std::move(undo);
  }
  context.decision.reason = absl::StrCat("version ", version, " of job ", job.name, " is reserved");
  context.decision.effects.emplace_back(
      Reply{ask.ticket, ChangeOutcome{.version = version, .outcome = context.decision.reason}});
}

}  // namespace eplb::core
