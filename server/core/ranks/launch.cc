#include "server/core/ranks/launch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "server/core/decisions/held.h"
#include "server/core/ranks/incarnation.h"
#include "server/core/state/ending.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr char kStartAnew[] = "; to be balanced again, start all its ranks anew";

// A launch owned the job when the daemon before this one went away, and its ranks may be on the
// way back.
bool OwnerIsDue(const Job& job, absl::Time now) { return !job.current && now < job.owner_due; }

bool IsGathered(const Incarnation& incarnation) {
  return incarnation.num_hello == incarnation.world_size();
}

// Of a launch whose processes died while it gathered, all ranks may have said Hello.
bool IsHere(const Incarnation& incarnation) {
  return incarnation.num_connected == incarnation.world_size();
}

bool IsGone(const Job& job, const std::string& name) {
  return std::any_of(job.gone.begin(), job.gone.end(),
                     [&name](const wire::GoneLaunch& one) { return one.incarnation == name; });
}

// Names of launches are forgotten only when so many later ones are gone. One with a lower number
// whose name is not known got it from another daemon, which had seen fewer launches: it is a
// newcomer here.
bool IsForgotten(const Job& job, const wire::Hello& hello) {
  if (hello.launch == 0 || job.gone.size() < wire::kMaxGoneLaunches) return false;
  return hello.incarnation != job.remembered &&
         std::all_of(job.gone.begin(), job.gone.end(), [&hello](const wire::GoneLaunch& one) {
           return one.launch == 0 || hello.launch < one.launch;
         });
}

std::string OwnerText(const Job& job) {
  return absl::StrCat("launch ", job.launch,
                      job.remembered.empty() ? "" : absl::StrCat(" (", job.remembered, ")"));
}

// A process that was taken for lost is alive after all: it only lost its stream.
void NoteAlive(Turn& turn, Job& job, const wire::Hello& hello) {
  if (!job.current || job.current->name != hello.incarnation) return;
  if (hello.rank >= job.current->world_size()) return;
  Rank& rank = job.current->ranks[hello.rank];
  if (!rank.cut || rank.nonce != hello.nonce) return;
  rank.cut = false;
  AmendEnding(turn, job);
}

absl::Status CheckMayCome(Turn& turn, Job& job, const wire::Hello& hello) {
  if (IsGone(job, hello.incarnation)) {
    NoteAlive(turn, job, hello);
    const RunEnd* end = EndOf(job);
    const bool is_newest = end != nullptr && end->incarnation == hello.incarnation;
    std::string why = is_newest ? absl::StrCat(": ", end->reason) : "";
    if (!is_newest && job.remembered != hello.incarnation && job.launch > 0) {
      why = absl::StrCat("; the job belongs to ", OwnerText(job));
    }
    return absl::FailedPreconditionError(absl::StrCat("incarnation ", hello.incarnation, " of job ",
                                                      job.name, " has ended", why, kStartAnew));
  }
  if (IsForgotten(job, hello)) {
    return absl::FailedPreconditionError(
        absl::StrCat("launch ", hello.launch, " (", hello.incarnation, ") of job ", job.name,
                     " was replaced by ", OwnerText(job), kStartAnew));
  }
  return absl::OkStatus();
}

absl::StatusOr<Incarnation> MakeFresh(const Turn& turn, const Job& job, const wire::Hello& hello) {
  EPLB_ASSIGN_OR_RETURN(Incarnation fresh, MakeIncarnation(hello));
  fresh.since = turn.now;
  fresh.claimed = hello.launch;
  if (hello.incarnation == job.remembered) fresh.claimed = std::max(fresh.claimed, job.launch);
  if (job.known && !(job.known->placement->topology() == fresh.topology)) {
    fresh.fresh_version = job.next_version;
  }
  return fresh;
}

bool IsVacantFor(const Turn& turn, const Job& job, const Incarnation& fresh) {
  // A lost launch may come back until all ranks of another one are there.
  if (job.current && job.current->ending != Ending::kFinal) return false;
  if (OwnerIsDue(job, turn.now) && fresh.name != job.remembered && !OwnedItLater(job, fresh)) {
    return false;
  }
  // Of two newcomers the first goes on.
  const bool other_gathers = job.candidate && job.candidate->num_connected > 0;
  return !other_gathers || fresh.claimed > job.candidate->claimed;
}

// Why the candidate there makes way for this newcomer; empty: it does not.
std::string WhyGivesWay(const Turn& turn, const Incarnation& candidate, const Incarnation& fresh,
                        bool take_over) {
  if (fresh.claimed > candidate.claimed) return "owned the job under another daemon";
  if (take_over && !candidate.take_over) return "is to take the job over";
  const absl::Duration patience = turn.state.config.prepare_deadline;
  if (IsGathered(candidate) || turn.now - candidate.since < patience) return "";
  return absl::StrCat("gathers now, since only ", candidate.num_hello, " of ",
                      candidate.world_size(), " ranks of ", candidate.name, " came within ",
                      absl::FormatDuration(patience));
}

absl::StatusOr<Incarnation*> AddCandidate(Turn& turn, Job& job, Incarnation fresh, bool take_over) {
  if (job.candidate && job.candidate->num_connected > 0) {
    const std::string why = WhyGivesWay(turn, *job.candidate, fresh, take_over);
    if (why.empty()) {
      const std::string waits = CandidateWaitsFor(job, turn.now);
      return absl::AbortedError(absl::StrCat(
          "incarnation ", job.candidate->name, " of job ", job.name, " came before and waits for ",
          waits.empty() ? "its turn" : waits, "; come back later"));
    }
    DropCandidate(turn, job,
                  absl::AbortedError(absl::StrCat("incarnation ", fresh.name, " of job ", job.name,
                                                  " ", why, "; come back later")));
  }
  job.candidate = std::move(fresh);
  return &*job.candidate;
}

std::string MissingRanks(const Incarnation& incarnation) {
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < incarnation.world_size(); ++rank) {
    if (incarnation.ranks[rank].session == 0) missing.push_back(rank);
  }
  return absl::StrCat(RankList(missing, incarnation.world_size()),
                      IsGathered(incarnation) ? " to come back" : " to say Hello");
}

}  // namespace

bool OwnedItLater(const Job& job, const Incarnation& incarnation) {
  if (job.current && job.current->take_over) return false;  // the newer one, as it says
  const int64_t claimed = job.current ? job.current->claimed : job.launch;
  return incarnation.claimed > claimed;
}

absl::StatusOr<Incarnation*> FindOrAddLaunch(Turn& turn, Job& job, const wire::Hello& hello) {
  EPLB_RETURN_IF_ERROR(CheckMayCome(turn, job, hello));
  if (job.current && job.current->name == hello.incarnation) return &*job.current;
  if (job.candidate && job.candidate->name == hello.incarnation) return &*job.candidate;
  EPLB_ASSIGN_OR_RETURN(Incarnation fresh, MakeFresh(turn, job, hello));
  if (!IsVacantFor(turn, job, fresh)) {
    return AddCandidate(turn, job, std::move(fresh), hello.take_over && hello.launch == 0);
  }
  StartIncarnation(turn, job, std::move(fresh));
  return &*job.current;
}

bool WasReplaced(const Job& job, const wire::Hello& hello) {
  if (hello.incarnation == job.remembered) return false;
  const auto gone = std::find_if(
      job.gone.begin(), job.gone.end(),
      [&hello](const wire::GoneLaunch& one) { return one.incarnation == hello.incarnation; });
  if (gone != job.gone.end()) return gone->launch > 0 && gone->launch < job.launch;
  return IsForgotten(job, hello);
}

void RememberGone(Job& job, const std::string& incarnation, int64_t number) {
  if (IsGone(job, incarnation)) return;
  job.gone.push_back({.incarnation = incarnation, .launch = number});
  if (job.gone.size() > wire::kMaxGoneLaunches) job.gone.pop_front();
  Remember(job, Tell::kAll);
}

std::string CandidateWaitsFor(const Job& job, absl::Time now) {
  if (!job.candidate) return "";
  const Incarnation& candidate = *job.candidate;
  if (!IsHere(candidate)) return MissingRanks(candidate);
  if (OwnerIsDue(job, now)) {
    return absl::StrCat(OwnerText(job), " to come back, which owned the job before this daemon ",
                        "started, at most ",
                        absl::FormatDuration(absl::Ceil(job.owner_due - now, absl::Seconds(1))));
  }
  if (candidate.take_over || !TakeOverRefused(job, now)) return "";
  return absl::StrCat("the end of ", OwnerText(job), ", whose steps advance (at step ", job.step,
                      "); end that one, or start this one with take_over");
}

bool TakeOverRefused(const Job& job, absl::Time now) {
  return job.candidate && IsGathered(*job.candidate) && !job.candidate->take_over &&
         !OwnedItLater(job, *job.candidate) && StepsAdvance(job, now);
}

void ServeCandidate(Turn& turn, Job& job) {
  if (!job.candidate || !CandidateWaitsFor(job, turn.now).empty()) return;
  StartCandidate(turn, job);
  if (job.phase != Phase::kHeld) return;
  EnterHeld(turn, job, "every rank of the new incarnation said Hello");
}

int64_t NumberOf(const Job& job, const Incarnation& incarnation) {
  const bool is_owner = incarnation.name == job.remembered && job.launch > 0;
  if (is_owner || incarnation.claimed > job.launch) {
    return std::max(incarnation.claimed, job.launch);
  }
  return job.launch + 1;
}

std::optional<LaunchView> CandidateOf(const Job& job, absl::Time now) {
  if (!job.candidate) return std::nullopt;
  const Incarnation& candidate = *job.candidate;
  return LaunchView{.incarnation = candidate.name,
                    .world_size = candidate.world_size(),
                    .registered = candidate.num_hello,
                    .connected = candidate.num_connected,
                    .since = now - candidate.since,
                    .waits = CandidateWaitsFor(job, now)};
}

}  // namespace eplb::core
