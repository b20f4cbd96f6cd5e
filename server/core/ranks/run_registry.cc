#include "server/core/ranks/run_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/core/decisions/recovery.h"
#include "server/core/ranks/run.h"
#include "server/core/state/ending.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr char kStartAnew[] = "; to be balanced again, start all its ranks anew";

// A run owned the job when the daemon before this one went away, and its ranks may be on the
// way back.
bool OwnerIsDue(const Job& job, absl::Time now) { return !job.current && now < job.owner.due; }

bool IsGathered(const Run& run) { return run.num_hello == run.world_size(); }

// Returns true if all ranks are connected. All ranks of a run whose processes died while it
// gathered may have sent Hello.
bool IsHere(const Run& run) { return run.num_connected == run.world_size(); }

bool IsGone(const Job& job, const std::string& name) {
  return std::ranges::any_of(job.owner.ended_runs,
                             [&name](const wire::EndedRun& one) { return one.run_id == name; });
}

// Names of runs are forgotten only when so many later ones are gone. One with a lower number
// whose name is not known got it from another daemon, which had seen fewer runs: it is a
// newcomer here.
bool IsForgotten(const Job& job, const wire::Hello& hello) {
  if (hello.run_number == 0 || job.owner.ended_runs.size() < wire::kMaxEndedRuns) return false;
  return hello.run_id != job.owner.run_id &&
         std::ranges::all_of(job.owner.ended_runs, [&hello](const wire::EndedRun& one) {
           return one.run_number == 0 || hello.run_number < one.run_number;
         });
}

std::string OwnerText(const Job& job) {
  return absl::StrCat("run ", job.owner.run_number,
                      job.owner.run_id.empty() ? "" : absl::StrCat(" (", job.owner.run_id, ")"));
}

// A process that was taken for lost is alive after all: it only lost its stream.
void NoteAlive(DecisionContext& context, Job& job, const wire::Hello& hello) {
  if (!job.current || job.current->name != hello.run_id) return;
  if (hello.rank >= job.current->world_size()) return;
  Rank& rank = job.current->ranks[hello.rank];
  if (!rank.cut || rank.nonce != hello.nonce) return;
  rank.cut = false;
  AmendEnding(context, job);
}

absl::Status CheckMayCome(DecisionContext& context, Job& job, const wire::Hello& hello) {
  if (IsGone(job, hello.run_id)) {
    NoteAlive(context, job, hello);
    const v1::RunEnd* end = EndOf(job);
    const bool is_newest = end != nullptr && end->run_id() == hello.run_id;
    std::string why = is_newest ? absl::StrCat(": ", end->reason()) : "";
    if (!is_newest && job.owner.run_id != hello.run_id && job.owner.run_number > 0) {
      why = absl::StrCat("; the job belongs to ", OwnerText(job));
    }
    return FailedPrecondition("run ", hello.run_id, " of job ", job.name, " has ended", why,
                              kStartAnew);
  }
  if (IsForgotten(job, hello)) {
    return FailedPrecondition("run ", hello.run_number, " (", hello.run_id, ") of job ", job.name,
                              " was replaced by ", OwnerText(job), kStartAnew);
  }
  return absl::OkStatus();
}

absl::StatusOr<Run> MakeFresh(const DecisionContext& context, const Job& job,
                              const wire::Hello& hello) {
  EPLB_ASSIGN_OR_RETURN(Run fresh, MakeRun(hello));
  fresh.since = context.now;
  fresh.claimed = hello.run_number;
  if (hello.run_id == job.owner.run_id)
    fresh.claimed = std::max(fresh.claimed, job.owner.run_number);
  if (job.last_known && !(job.last_known->placement->topology() == fresh.topology)) {
    fresh.fresh_version = job.versions.next;
  }
  return fresh;
}

bool IsVacantFor(const DecisionContext& context, const Job& job, const Run& fresh) {
  // A lost run may come back until all ranks of another one are there.
  if (job.current && job.current->ending != Ending::kFinal) return false;
  if (OwnerIsDue(job, context.now) && fresh.name != job.owner.run_id && !OwnedItLater(job, fresh)) {
    return false;
  }
  // The first of two newcomers goes on.
  const bool other_gathers = job.candidate && job.candidate->num_connected > 0;
  return !other_gathers || fresh.claimed > job.candidate->claimed;
}

// Why the candidate there makes way for this newcomer; empty: it does not.
std::string WhyGivesWay(const DecisionContext& context, const Run& candidate, const Run& fresh,
                        bool take_over) {
  if (fresh.claimed > candidate.claimed) return "owned the job under another daemon";
  if (take_over && !candidate.take_over) return "is to take the job over";
  const absl::Duration patience = context.state.config.gather_deadline;
  if (IsGathered(candidate) || context.now - candidate.since < patience) return "";
  return absl::StrCat("gathers now, since only ", candidate.num_hello, " of ",
                      candidate.world_size(), " ranks of ", candidate.name, " registered within ",
                      absl::FormatDuration(patience));
}

absl::StatusOr<Run*> AddCandidate(DecisionContext& context, Job& job, Run fresh, bool take_over) {
  if (job.candidate && job.candidate->num_connected > 0) {
    const std::string why = WhyGivesWay(context, *job.candidate, fresh, take_over);
    if (why.empty()) {
      const std::string waits = CandidateWaitsFor(job, context.now);
      return Aborted("run ", job.candidate->name, " of job ", job.name,
                     " registered earlier and waits for ", waits.empty() ? "its turn" : waits,
                     "; retry later");
    }
    DropCandidate(context, job,
                  Aborted("run ", fresh.name, " of job ", job.name, " ", why, "; retry later"));
  }
  job.candidate = std::move(fresh);
  return &*job.candidate;
}

std::string MissingRanks(const Run& run) {
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < run.world_size(); ++rank) {
    if (run.ranks[rank].session == 0) missing.push_back(rank);
  }
  return absl::StrCat(RankList(missing, run.world_size()),
                      IsGathered(run) ? " to reconnect" : " to register");
}

}  // namespace

bool OwnedItLater(const Job& job, const Run& run) {
  if (job.current && job.current->take_over) return false;  // the newer one, as it says
  const int64_t claimed = job.current ? job.current->claimed : job.owner.run_number;
  return run.claimed > claimed;
}

absl::StatusOr<Run*> FindOrAddRun(DecisionContext& context, Job& job, const wire::Hello& hello) {
  EPLB_RETURN_IF_ERROR(CheckMayCome(context, job, hello));
  if (job.current && job.current->name == hello.run_id) return &*job.current;
  if (job.candidate && job.candidate->name == hello.run_id) return &*job.candidate;
  EPLB_ASSIGN_OR_RETURN(Run fresh, MakeFresh(context, job, hello));
  if (!IsVacantFor(context, job, fresh)) {
    return AddCandidate(context, job, std::move(fresh), hello.take_over && hello.run_number == 0);
  }
  StartRun(context, job, std::move(fresh));
  return &*job.current;
}

bool WasReplaced(const Job& job, const wire::Hello& hello) {
  if (hello.run_id == job.owner.run_id) return false;
  const auto gone = std::ranges::find_if(job.owner.ended_runs, [&hello](const wire::EndedRun& one) {
    return one.run_id == hello.run_id;
  });
  if (gone != job.owner.ended_runs.end())
    return gone->run_number > 0 && gone->run_number < job.owner.run_number;
  return IsForgotten(job, hello);
}

void RememberGone(Job& job, const std::string& run_id, int64_t number) {
  if (IsGone(job, run_id)) return;
  job.owner.ended_runs.push_back({.run_id = run_id, .run_number = number});
  if (job.owner.ended_runs.size() > wire::kMaxEndedRuns) job.owner.ended_runs.pop_front();
  Remember(job, Tell::kAll);
}

std::string CandidateWaitsFor(const Job& job, absl::Time now) {
  if (!job.candidate) return "";
  const Run& candidate = *job.candidate;
  if (!IsHere(candidate)) return MissingRanks(candidate);
  if (OwnerIsDue(job, now)) {
    return absl::StrCat(OwnerText(job), " to reconnect, which owned the job before this daemon ",
                        "started, at most ",
                        absl::FormatDuration(absl::Ceil(job.owner.due - now, absl::Seconds(1))));
  }
  if (candidate.take_over || !TakeOverRefused(job, now)) return "";
  return absl::StrCat("the end of ", OwnerText(job), ", whose steps advance (at step ", job.step,
                      "); end that one, or start this one with take_over");
}

bool TakeOverRefused(const Job& job, absl::Time now) {
  return job.candidate && IsGathered(*job.candidate) && !job.candidate->take_over &&
         !OwnedItLater(job, *job.candidate) && StepsAdvance(job, now);
}

void ServeCandidate(DecisionContext& context, Job& job) {
  if (!job.candidate || !CandidateWaitsFor(job, context.now).empty()) return;
  StartCandidate(context, job);
  if (job.phase != Phase::kRecovering) return;
  EnterRecovery(context, job, "every rank of the new run has registered");
}

int64_t NumberOf(const Job& job, const Run& run) {
  const bool is_owner = run.name == job.owner.run_id && job.owner.run_number > 0;
  if (is_owner || run.claimed > job.owner.run_number)
    return std::max(run.claimed, job.owner.run_number);
  return job.owner.run_number + 1;
}

}  // namespace eplb::core
