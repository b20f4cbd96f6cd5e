// How fast a run trains, and whether it still does: from the times at which its ranks told their
// steps. Every rank trains in step with the others, so the highest step of any rank speaks for all.
#ifndef EPLB_SERVER_CORE_STATE_STEP_RATE_H_
#define EPLB_SERVER_CORE_STATE_STEP_RATE_H_

#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace eplb::core {

struct Run;
struct Job;

// A step above all that were told before, and when it was told.
struct ToldStep {
  int64_t step = 0;
  absl::Time at;
};

struct StepRate {
  absl::Time began = absl::InfinitePast();  // the run became the job's own here
  int64_t first_step = 0;                   // the first that was told
  std::deque<ToldStep> told;                // newest last, at most kMaxToldSteps
  absl::Duration longest;                   // time between two rises of this run,
  absl::Duration second_longest;            // and the next to it
  absl::Time due = absl::InfinitePast();    // the next is expected by then
};

// The highest steps of two different ranks; -1: none.
struct StepFront {
  int64_t first = -1;
  int32_t rank = -1;  // of `first`
  int64_t second = -1;
};

inline constexpr int kMaxToldSteps = 17;  // 16 rises
// Windows of a few milliseconds come unevenly: no run stands still for less than this.
inline constexpr absl::Duration kLeastPatience = absl::Seconds(5);

// How long a run may tell no new step before it stands still: six report intervals, and half as
// long again as the gap that it had twice.
absl::Duration PatienceFor(absl::Duration report_interval, absl::Duration usual_gap);

// The run became the job's own. Its first two rises may take as long as `patience`: nothing says
// yet how long a step takes. `usual_gap` is what it had under the daemon before.
void BeginSteps(Run& run, absl::Duration patience, absl::Duration usual_gap, absl::Time now);
// A rank trained up to `step`, as it reported.
void NoteStep(Run& run, int64_t step, absl::Time now);
// The same, as a rank said when it connected. Ranks differ by a few steps when they stand still, so
// only a whole window above all others says that they train. The first one is where the run
// stands.
void NoteHelloStep(Run& run, int64_t step, absl::Time now);

// The median of the newest rises; 0: not known yet.
double SecondsPerStep(const StepRate& rate);
// The time between two votes, pauses between steps included; zero: not known yet.
absl::Duration VoteInterval(const Run& run);
// The expected time between two windows' reports; zero: not known yet.
absl::Duration ReportInterval(const Run& run);
// The longest time between two of the newest rises: a checkpoint or an evaluation included.
absl::Duration LongestGap(const StepRate& rate);
// The longest that the run took twice between two rises: a checkpoint comes again, an accident
// does not. Zero before two rises.
absl::Duration UsualGap(const StepRate& rate);
// When a step was told last; InfinitePast before the first.
absl::Time LastRise(const StepRate& rate);

void Advance(StepFront& front, int32_t rank, int64_t step);
// The highest step of any rank but this one; -1: none.
int64_t OthersStep(const StepFront& front, int32_t rank);

// True of a step that is more than `windows` windows ahead of the rank's own last step and of all
// other ranks. Such a step is believed once another rank comes within a window of it: what ranks
// sent may have been lost, and then all of them are ahead. A rank that goes on window by window is
// believed: the others may be silent. Remembers the step.
bool LeapsAhead(Run& run, int32_t rank, int64_t step, int64_t windows);

// The run in force did not end, or is lost while some of its ranks are still connected.
bool HasRanksThatTrain(const Job& job);
// True of such a run when a rank's step rose within PatienceFor; of a new run, within the
// patience of BeginSteps.
bool StepsAdvance(const Job& job, absl::Time now);

// Which of the steps that ranks report are believed: one rule for Hello, load reports and answers.

struct Run;

enum class StepClaim {
  kBelieved,
  kUnproved,  // maybe right, and not yet a step of the run
  kLeap,      // far ahead of all that is known
};

// What a rank's Hello tells. The first step of a run may be any, since it may go on from a
// checkpoint. So of several ranks it is believed once a second one tells a step within `windows`
// windows of it; both are then taken into the front. Remembers the step.
StepClaim CheckHello(Run& run, int32_t rank, int64_t step, int64_t windows);

// What a rank tells while it trains. The same, and a rank that goes on from its own claim is
// believed while nobody else's step is known. Later a leap (LeapsAhead) is believed once the same
// rank, alone connected, goes on from it.
StepClaim EvaluateStep(Run& run, int32_t rank, int64_t step, int64_t windows);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_STATE_STEP_RATE_H_
