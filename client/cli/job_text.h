// A job's state, settings and balancedness in words. Every view uses these functions, so that a
// figure has one name everywhere: *measured* on the placements that steps ran under, *predicted* by
// a decision and *seen* after it, *without EPLB* for the same steps with one slot per expert,
// *static* for the same steps under the layout that is never moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/terminal.h"
#include "placement/evaluate.h"

namespace eplb::v1 {
class CandidateStatus;
class JobStatus;
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::cli {

// "rank 3", "ranks 0, 1"; many are "ranks 0, 1, .. and 12 more"; all of the job's `of_all` ranks,
// if more than one, are "all 8 ranks". Empty for none.
std::string NameRanks(const std::vector<uint32_t>& ranks, size_t of_all);

// "IDLE", "IDLE (stalled)", "RECOVERING (stuck, paused, observe)". The state of a run that has
// ended has no words in brackets.
std::string StateText(const v1::JobStatus& job);

// "step 1,200", or "step -" until a rank has registered.
std::string StepText(const v1::JobStatus& job);
// "3/8": connected ranks of all. Empty until a rank has registered.
std::string RanksText(const v1::JobStatus& job);

// True if the run lives as far as the daemon knows, and no rank has registered since it started.
bool IsAbsent(const v1::JobStatus& job);
// "start the job again, or ..; " for a stuck job none of whose ranks is connected; otherwise empty.
std::string StuckAdvice(const v1::JobStatus& job);

// True once the run ended. One that was lost may come back.
bool HasEnded(const v1::JobStatus& job);

// "NOT_COUNTING: " and the ranks or layers without tokens; empty while all count.
std::string NotCountingText(const v1::JobStatus& job);

// Returns the seconds within which the candidate's ranks must register.
double CandidateDeadline(const v1::CandidateStatus& candidate);
// A sentence about the newer run that is not served yet, and what it waits for; empty if there is
// none.
std::string CandidateText(const v1::JobStatus& job);

// A sentence about the newest refusal of a rank in the last minutes; empty if there was none.
std::string RefusedText(const v1::JobStatus& job);

// "measured 0.7275 on steps 200..249 | without EPLB 0.6300 | static 0.6200 | predicted 0.841 +-
// 0.060, seen 0.810"; or "measured - (no tokens were counted in steps 200..249)".
std::string BalancednessText(const v1::JobStatus& job);

// The split of tokens that the job's figures assume: "objective: exact split per batch" or
// "objective: equal shares"; a further clause if the measured figure assumes the other one. Empty
// before the first rank registered.
std::string ObjectiveText(const v1::JobStatus& job);
SplitMode SplitOf(const v1::JobStatus& job);

// "name=balanced mode=apply ..": the keys and values that `eplbctl set policy` takes.
std::string SettingsText(const v1::PolicySettings& settings);

// "41.2 s saved, net of pauses of 0.5 s", "3.1 s LOST, .." if the job would have been faster
// without EPLB, or "time saved is not known: ..". An older daemon's figure is before pauses.
std::string SavedText(const v1::JobStatus& job);
// SavedText without the clause after LOST.
std::string SavedFigureText(const v1::JobStatus& job);
// True if the job lost time and its newest switch is not so recent that it may still pay back its
// pause.
bool LostTime(const v1::JobStatus& job);

// A sentence about the state. trouble: 2 for what must be mended, 1 for what an operator should
// look at, otherwise 0.
struct StateNote {
  std::string text;
  Colour colour = Colour::kNone;
  int trouble = 0;
};
// How the run ended, STALLED, WORSE, time lost, a run that waits, refused ranks, PAUSED, observe,
// GPU speeds, and the ranks that the job waits for.
std::vector<StateNote> StateNotesOf(const v1::JobStatus& job);
// The note that is most in need of an operator; empty if none is.
StateNote TroubleOf(const v1::JobStatus& job);
// These notes, each on a line of its own that begins with `before`.
std::string StateNotes(const v1::JobStatus& job, const std::string& before,
                       const Terminal& terminal);

}  // namespace eplb::cli
