// A job's state, settings and balancedness in words. Every view uses these, so that a figure has
// one name everywhere: *measured* on the placements that steps ran under, *predicted* by a decision
// with what was *seen* after it, *without EPLB* for the same steps with one slot per expert,
// *static* for the same steps under the layout that is never moved.
#ifndef EPLB_CLIENT_CLI_JOB_TEXT_H_
#define EPLB_CLIENT_CLI_JOB_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/terminal.h"
#include "placement/decision/prediction.h"
#include "placement/evaluate.h"

namespace eplb::v1 {
class JobStatus;
class Plan;
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::cli {

// Ranks in a sentence.

// "rank 3", "ranks 0, 1"; with many "ranks 0, 1, .. and 12 more"; where they are all of the job's
// `of_all` and more than one "all 8 ranks". Empty for none.
std::string NameRanks(const std::vector<uint32_t>& ranks, size_t of_all);

// "IDLE", "IDLE (stalled)", "RECOVERING (paused, observe)"; a run that has ended is none of these.
std::string StateText(const v1::JobStatus& job);

// True once the run ended. One that was lost may come back.
bool HasEnded(const v1::JobStatus& job);

// "PAUSED by alice: evaluation"; empty when the job is not paused or has ended.
std::string PausedText(const v1::JobStatus& job);

// What mode=observe means; empty when the job applies its decisions or has ended.
std::string ObserveText(const v1::JobStatus& job);

// "NOT_COUNTING: " and the ranks or layers without tokens; empty while all count.
std::string NotCountingText(const v1::JobStatus& job);

// Why balancing has stopped; empty when it has not.
std::string StalledText(const v1::JobStatus& job);

// Newest windows that were less even than without EPLB, or empty.
std::string WorseText(const v1::JobStatus& job);

// Returns the seconds within which the candidate's ranks must register.
double CandidateDeadline(const v1::CandidateStatus& candidate);
// The newer run that is not served yet, and what it waits for; empty when there is none.
std::string CandidateText(const v1::JobStatus& job);

// The newest refusal of a rank in the last minutes; empty when there was none.
std::string RefusedText(const v1::JobStatus& job);

// "measured 0.7275 on steps 200..249 | without EPLB 0.6300 | static 0.6200 | predicted 0.841 +-
// 0.060, seen 0.810"; or "measured - (no tokens were counted in steps 200..249)".
std::string BalancednessText(const v1::JobStatus& job);
// What a decision said of balancedness, and what followed.
Forecast ForecastOf(const v1::Plan& plan);

// How the job's run splits tokens, which is what its figures are of: "objective: exact split per
// batch", "objective: equal shares"; with a clause where the measured one is of another split.
// Empty before the first rank registered.
std::string ObjectiveText(const v1::JobStatus& job);
SplitMode SplitOf(const v1::JobStatus& job);

// "name=balanced mode=apply ..": the keys and values that `eplbctl set policy` takes.
std::string SettingsText(const v1::PolicySettings& settings);

// The run's number; "-" before the job has one.
std::string RunText(const v1::JobStatus& job);

// "0.7275"; "-" where there is none: not set, or the 0 that stands for no window.
std::string RatioText(std::optional<double> ratio);

// What a user needs beside the state, each a sentence of its own on a line of its own, without the
// job's name: how the run ended, STALLED, WORSE, a run that waits, refused ranks, PAUSED, observe,
// whom the job waits for.
std::string StateNotes(const v1::JobStatus& job, const std::string& before,
                       const Terminal& terminal);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_JOB_TEXT_H_
