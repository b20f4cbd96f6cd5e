#include "server/core/versions.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "server/core/sentences.h"

namespace eplb::core {

void NoteRan(Job& job, int64_t version, const Digest& digest) {
  job.ran.emplace(version, digest);
  if (job.ran.size() > kMaxRan) job.ran.erase(job.ran.begin());
}

void TellReusedVersion(Turn& turn, Job& job, Incarnation& incarnation, const wire::Hello& hello) {
  const auto ran = job.ran.find(hello.running_version);
  if (ran == job.ran.end() || ran->second == hello.running_digest) return;
  if (std::exchange(incarnation.reuse_told, true)) return;
  RecordEvent(turn, job, "version_reused", hello.running_version,
              absl::StrCat("incarnation ", incarnation.name, " runs version ",
                           hello.running_version, " with digest ", ShortHex(hello.running_digest),
                           ", the job ran digest ", ShortHex(ran->second),
                           " under that number before, which stays in the history; the next "
                           "version is ",
                           job.next_version));
}

absl::Status CheckGivenOut(const Job& job, const char* message, int64_t version) {
  if (version < job.next_version) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(message, ": version is ", version,
                                                 ", the job's next version is ", job.next_version,
                                                 ": nobody proposed it"));
}

void HandleReserveVersion(Turn& turn, const ReserveVersion& ask) {
  State& state = turn.state;
  const auto found = state.jobs.find(ask.job);
  absl::Status status;
  if (found == state.jobs.end()) status = absl::NotFoundError(absl::StrCat("no job ", ask.job));
  if (state.draining) status = absl::UnavailableError("the daemon drains; come back later");
  if (!status.ok()) {
    turn.decision.effects.emplace_back(Reply{ask.ticket, status});
    return;
  }
  Job& job = found->second;
  if (!Spend(job.reserve_budget, turn.now)) {
    turn.decision.effects.emplace_back(Reply{
        ask.ticket,
        absl::ResourceExhaustedError(absl::StrCat(
            "job ", job.name, " reserved ", Budget::kBurst, " versions and gets another each ",
            absl::FormatDuration(absl::Seconds(1 / Budget::kPerSecond)), "; come back later"))});
    return;
  }
  Undo undo{.turn = state.turn,
            .ticket = ask.ticket,
            .verb = "reserve_version",
            .job = job,
            .counters = state.counters};
  const int64_t version = job.next_version++;
  if (BelongsInStore(job)) {
    StoreJob(turn, job);
    state.undo = std::move(undo);
  }
  turn.decision.reason = absl::StrCat("version ", version, " of job ", job.name, " is reserved");
  turn.decision.effects.emplace_back(
      Reply{ask.ticket, ChangeOutcome{.version = version, .outcome = turn.decision.reason}});
}

}  // namespace eplb::core
