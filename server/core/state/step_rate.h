// How fast a run trains, and whether it still trains, from the times at which its ranks reported
// steps. All ranks train in step, so the highest step of any rank stands for all of them.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace eplb::core {

struct Run;
struct Job;

// A step above all that were reported before, and the time of the report.
struct ToldStep {
  int64_t step = 0;
  absl::Time at;
};

struct StepRate {
  absl::Time began = absl::InfinitePast();  // when the run became the job's current run
  int64_t first_step = 0;                   // the first reported step
  std::deque<ToldStep> told;                // newest last, at most kMaxToldSteps
  std::deque<double> unswitched;            // see NoteUnswitched; newest last, at most 16
  absl::Duration longest;                   // longest time between two rises of this run
  absl::Duration second_longest;            // the next shorter time
  absl::Time due = absl::InfinitePast();    // deadline of the next rise
};

inline constexpr int kMaxToldSteps = 17;  // 16 rises
// Reports that arrive closer together than this had waited for the daemon, or are of steps so short
// that their times are those of the messages.
inline constexpr absl::Duration kReadTogether = absl::Milliseconds(10);
// Windows of a few milliseconds arrive unevenly, so a shorter pause does not mean that a run
// stopped.
inline constexpr absl::Duration kLeastPatience = absl::Seconds(5);

// Returns how long a run may report no new step before it counts as stopped: six report intervals,
// and one and a half times the gap that it had twice.
absl::Duration PatienceFor(absl::Duration report_interval, absl::Duration usual_gap);

// Begins with a run that became the job's current one. Its first two rises may take as long as
// `patience`, because the length of a step is not known yet. usual_gap: UsualGap under the previous
// daemon.
void BeginSteps(Run& run, absl::Duration patience, absl::Duration usual_gap, absl::Time now);
// Notes that a rank reported that it trained up to `step`.
void NoteStep(Run& run, int64_t step, absl::Time now);
// Notes the step of a rank's Hello. Ranks that stopped differ by a few steps, so only a step a
// whole window above all others shows that they train. The first one is the step at which the run
// is.
void NoteHelloStep(Run& run, int64_t step, absl::Time now);

// Notes the mean time of a step in a window without a switch [seconds, above 0].
void NoteUnswitched(StepRate& rate, double seconds);

// Returns the median of the newest rises, of which those that were read together are one; 0 if not
// known yet.
double SecondsPerStep(const StepRate& rate);
// Returns the median of the newest windows without a switch, or SecondsPerStep if there are none.
// Because a switch only adds time, SecondsPerStep is also taken if it is less: one of few windows
// may have had a checkpoint in it.
double SecondsPerUnswitchedStep(const StepRate& rate);
// Returns the time between two votes, with pauses between steps; zero if not known yet.
absl::Duration VoteInterval(const Run& run);
// Returns the expected time between the reports of two windows; zero if not known yet.
absl::Duration ReportInterval(const Run& run);
// Returns the longest time between two of the newest rises, with checkpoints and evaluations.
absl::Duration LongestGap(const StepRate& rate);
// Returns the longest time that the run took twice between two rises, because a checkpoint recurs
// and an accident does not. Zero before two rises.
absl::Duration UsualGap(const StepRate& rate);
// Returns the time of the last rise; InfinitePast before the first.
absl::Time LastRise(const StepRate& rate);

// Returns true if the current run did not end, or is lost while some of its ranks are connected.
bool HasRanksThatTrain(const Job& job);
// Returns true if HasRanksThatTrain and a rank's step rose within PatienceFor; for a new run,
// within the patience of BeginSteps.
bool StepsAdvance(const Job& job, absl::Time now);

}  // namespace eplb::core
