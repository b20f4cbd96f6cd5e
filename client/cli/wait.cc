#include "client/cli/wait.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/json_value.h"
#include "base/quantity.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "proto/wire/message_json.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

namespace {

constexpr char kForms[] =
    "connected, finished, ended, state=NAME, version>=N, step>=N or balanced>=X";

std::vector<std::string> States() {
  std::vector<std::string> states;
  for (int state = 1; state <= v1::JobState_MAX; ++state) {
    states.push_back(wire::EnumText(static_cast<v1::JobState>(state)));
  }
  return states;
}

absl::Status Wrong(const std::string& text, const std::string& expected) {
  return InvalidInput("--for is \"", text, "\", expected ", expected);
}

constexpr absl::Duration kLongestWait = absl::Hours(7 * 24);
constexpr absl::Duration kQuestion = absl::Seconds(5);  // one of many

// The job, which may be the only one, within what is left.
absl::Status AskJob(const WaitOptions& options, absl::Duration left, v1::JobStatus* job) {
  QueryOptions query = options.query;
  query.timeout = absl::FormatDuration(
      std::clamp(absl::Trunc(left, absl::Milliseconds(1)), absl::Milliseconds(1), kQuestion));
  v1::GetJobRequest request;
  EPLB_ASSIGN_OR_RETURN(*request.mutable_job(), ChooseJob(query, options.job));
  return Ask(query, request, job);
}

// A daemon that restarts, and a job that has not said Hello, may come.
bool MayPass(const absl::Status& status, bool first) {
  if (absl::IsNotFound(status)) return true;
  return !first && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status));
}

Output Met(const WaitOptions& options, const v1::JobStatus& job, absl::Duration waited) {
  if (options.query.format == Format::kJson) {
    return absl::StrCat(
        "{\"job\":", wire::JsonQuote(job.job()),
        ",\"condition\":", wire::JsonQuote(options.condition),
        ",\"state\":", wire::JsonQuote(wire::EnumText(job.state())), ",\"version\":", job.version(),
        ",\"step\":", job.has_step() ? absl::StrCat(job.step()) : "null", ",\"balancedness\":",
        job.has_balancedness() ? absl::StrFormat("%.17g", job.balancedness()) : "null",
        absl::StrFormat(",\"seconds\":%.3f}\n", absl::ToDoubleSeconds(waited)));
  }
  return absl::StrCat(Printable(job.job()), ": ", options.condition, " is true after ",
                      Seconds(absl::ToDoubleSeconds(waited)), " (", StateText(job), ", ",
                      StepText(job), ", version ", job.version(), ")\n");
}

Output Never(const WaitOptions& options, const v1::JobStatus& job) {
  return {kConditionNotMet, "",
          absl::StrCat("job ", job.job(), " is ", wire::EnumText(job.state()), " (",
                       job.end_reason(), "): ", options.condition, " can no longer become true")};
}

// seen: the last answer; trouble: why there was no other one. Either may be empty.
Output TimedOut(const WaitOptions& options, const std::string& seen, const std::string& trouble) {
  return {kTimeout, "",
          absl::StrCat(options.condition, " is not true after ", options.query.timeout, ": ", seen,
                       seen.empty() || trouble.empty() ? "" : "; then ", trouble)};
}

}  // namespace

absl::StatusOr<WaitCondition> WaitCondition::Parse(const std::string& text) {
  using Job = v1::JobStatus;
  if (text == "connected") {
    return WaitCondition{[](const Job& job) {
      return job.world_size() > 0 && job.connected_ranks() == job.world_size();
    }};
  }
  if (text == "finished") {
    return WaitCondition{[](const Job& job) { return job.ending() == v1::RUN_ENDING_FINISHED; },
                         true};
  }
  if (text == "ended") return WaitCondition{&HasEnded, true};
  absl::string_view value = text;
  if (absl::ConsumePrefix(&value, "balanced>=")) {
    const double least = ParseFraction({value.data(), value.size()}).value_or(0);
    if (least > 0 && least <= 1) {
      return WaitCondition{[least](const Job& job) {
        return job.has_balancedness() && job.balancedness() >= least;
      }};
    }
    return Wrong(text, "a balancedness above 0, at most 1, e.g. balanced>=0.9 or balanced>=90%");
  }
  for (const auto& [name, number] :
       {std::pair("version", &Job::version), std::pair("step", &Job::step)}) {
    if (!absl::ConsumePrefix(&value, absl::StrCat(name, ">="))) continue;
    uint64_t least = 0;
    if (!absl::SimpleAtoi(value, &least)) {
      return Wrong(text, absl::StrCat("a whole number, e.g. ", name, ">=12"));
    }
    return WaitCondition{
        [number = number, least](const Job& job) { return (job.*number)() >= least; }};
  }
  if (!absl::ConsumePrefix(&value, "state=")) return Wrong(text, kForms);
  const std::vector<std::string> states = States();
  const auto found = std::ranges::find(states, std::string(value));
  if (found == states.end()) {
    return Wrong(text, absl::StrCat("one of the states ", absl::StrJoin(states, ", "),
                                    Suggestion(std::string(value), states)));
  }
  const auto state = static_cast<v1::JobState>(found - states.begin() + 1);
  return WaitCondition{[state](const Job& job) { return job.state() == state; },
                       state == v1::JOB_STATE_FINISHED || state == v1::JOB_STATE_FAILED};
}

WaitCondition::Answer WaitCondition::Ask(const v1::JobStatus& job) const {
  if (is_met(job)) return Answer::kMet;
  return HasEnded(job) && of_ended_run ? Answer::kNever : Answer::kNotYet;
}

Output RunWait(const WaitOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const WaitCondition condition, WaitCondition::Parse(options.condition));
  EPLB_ASSIGN_OR_RETURN(const absl::Duration timeout,
                        ParseDuration("--timeout", options.query.timeout, kLongestWait));
  const absl::Time begin = absl::Now();
  const absl::Time end = begin + timeout;
  std::string seen;     // the job at the last answer
  std::string trouble;  // since then; a question that had hardly time for an answer tells nothing
  for (bool first = true;; first = false) {
    v1::JobStatus job;
    const absl::Duration left = end - absl::Now();
    const absl::Status asked = AskJob(options, left, &job);
    if (!asked.ok() && !MayPass(asked, first)) return asked;
    if (asked.ok()) {
      const WaitCondition::Answer answer = condition.Ask(job);
      if (answer == WaitCondition::Answer::kMet) return Met(options, job, absl::Now() - begin);
      if (answer == WaitCondition::Answer::kNever) return Never(options, job);
      seen = absl::StrCat("job ", job.job(), " is ", StateText(job), " at ", StepText(job),
                          ", version ", job.version(), ", balancedness ", BalancednessText(job));
      trouble.clear();
    } else if (seen.empty() || left >= kAskAgain) {
      trouble = std::string(asked.message());
    }
    if (absl::Now() + kAskAgain >= end) return TimedOut(options, seen, trouble);
    absl::SleepFor(kAskAgain);
  }
}

void AddWait(const Flags& root) {
  auto [flags, options] =
      AddCommand<WaitOptions>(root, "wait", "Wait until a condition of a job is true", &RunWait);
  options.query.timeout = "10m";
  flags.Text("--for", "CONDITION", options.condition, absl::StrCat(kForms, " (measured)"))
      .Required();
  AddJobOption(flags, options.job);
  AddQueryOptions(flags, options.query, {kNotFound, kConditionNotMet});
  flags.With("--timeout").Describe("How long to wait, at most 168h [10m]");
  flags.SetFooter(absl::StrCat(
      "Examples:\n"
      "  eplbctl wait --for connected && eplbctl rebalance\n"
      "  eplbctl wait --for 'balanced>=0.9' --timeout 30m\n"
      "Exit 8: the run ended as FAILED although FINISHED was asked for, or the reverse.\n"
      "A new run of the job may still meet any other condition.\n",
      flags.footer()));
}

}  // namespace eplb::cli
