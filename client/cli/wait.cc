#include "client/cli/wait.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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

// "version>=12" in two; false without the sign.
bool Split(const std::string& text, const std::string& sign, std::string& name,
           std::string& value) {
  const size_t at = text.find(sign);
  if (at == std::string::npos) return false;
  name = text.substr(0, at);
  value = text.substr(at + sign.size());
  return true;
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
        ",\"step\":", job.step(), ",\"balancedness\":",
        job.has_balancedness() ? absl::StrFormat("%.17g", job.balancedness()) : "null",
        absl::StrFormat(",\"seconds\":%.3f}\n", absl::ToDoubleSeconds(waited)));
  }
  return absl::StrCat(Printable(job.job()), ": ", options.condition, " is true after ",
                      Seconds(absl::ToDoubleSeconds(waited)), " (", StateText(job), ", step ",
                      Grouped(job.step()), ", version ", job.version(), ")\n");
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
  WaitCondition condition;
  std::string name;
  std::string value;
  for (const auto& [word, kind] :
       {std::pair("connected", Kind::kConnected), std::pair("finished", Kind::kFinished),
        std::pair("ended", Kind::kEnded)}) {
    condition.kind_ = kind;
    if (text == word) return condition;
  }
  if (Split(text, ">=", name, value)) {
    if (name == "balanced") {
      condition.kind_ = Kind::kBalanced;
      condition.ratio_ = ParseFraction(value).value_or(0);
      if (condition.ratio_ > 0 && condition.ratio_ <= 1) return condition;
      return Wrong(text, "a balancedness above 0, at most 1, e.g. balanced>=0.9 or balanced>=90%");
    }
    if (name != "version" && name != "step") return Wrong(text, kForms);
    condition.kind_ = name == "version" ? Kind::kVersion : Kind::kStep;
    if (absl::SimpleAtoi(value, &condition.number_)) return condition;
    return Wrong(text, absl::StrCat("a whole number, e.g. ", name, ">=12"));
  }
  if (!Split(text, "=", name, value) || name != "state") return Wrong(text, kForms);
  const std::vector<std::string> states = States();
  const auto found = std::ranges::find(states, value);
  if (found != states.end()) {
    condition.kind_ = Kind::kState;
    condition.state_ = static_cast<v1::JobState>(found - states.begin() + 1);
    return condition;
  }
  return Wrong(text, absl::StrCat("one of the states ", absl::StrJoin(states, ", "),
                                  Suggestion(value, states)));
}

bool WaitCondition::IsMet(const v1::JobStatus& job) const {
  switch (kind_) {
    case Kind::kConnected:
      return job.world_size() > 0 && job.connected_ranks() == job.world_size();
    case Kind::kFinished:
      return job.ending() == v1::RUN_ENDING_FINISHED;
    case Kind::kEnded:
      return HasEnded(job);
    case Kind::kState:
      return job.state() == state_;
    case Kind::kVersion:
      return job.version() >= number_;
    case Kind::kStep:
      return job.step() >= number_;
    case Kind::kBalanced:
      return job.has_balancedness() && job.balancedness() >= ratio_;
  }
  return false;
}

bool WaitCondition::IsOfEndedRun() const {
  return kind_ == Kind::kFinished || kind_ == Kind::kEnded ||
         (kind_ == Kind::kState &&
          (state_ == v1::JOB_STATE_FINISHED || state_ == v1::JOB_STATE_FAILED));
}

WaitCondition::Answer WaitCondition::Ask(const v1::JobStatus& job) const {
  if (IsMet(job)) return Answer::kMet;
  return HasEnded(job) && IsOfEndedRun() ? Answer::kNever : Answer::kNotYet;
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
      seen = absl::StrCat("job ", job.job(), " is ", StateText(job), " at step ", job.step(),
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
