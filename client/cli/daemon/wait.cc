#include "client/cli/daemon/wait.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "client/cli/daemon/job_text.h"
#include "client/cli/daemon/wait_condition.h"
#include "client/cli/duration_flag.h"
#include "client/cli/text.h"
#include "placement/status_macros.h"
#include "proto/wire/json_value.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

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
  Output output;
  if (options.query.format == Format::kJson) {
    output.out = absl::StrCat(
        "{\"job\":", wire::JsonQuote(job.job()),
        ",\"condition\":", wire::JsonQuote(options.condition),
        ",\"state\":", wire::JsonQuote(job.state()), ",\"version\":", job.version(),
        ",\"step\":", job.step(), absl::StrFormat(",\"balancedness\":%.17g", job.balancedness()),
        absl::StrFormat(",\"seconds\":%.3f}\n", absl::ToDoubleSeconds(waited)));
    return output;
  }
  output.out =
      absl::StrCat(Printable(job.job()), ": ", options.condition, " is true after ",
                   Seconds(absl::ToDoubleSeconds(waited)), " (", StateText(job), ", step ",
                   Grouped(static_cast<int64_t>(job.step())), ", version ", job.version(), ")\n");
  return output;
}

Output Never(const WaitOptions& options, const v1::JobStatus& job) {
  return {.exit_code = kConditionNotMet,
          .out = {},
          .message = absl::StrCat("job ", job.job(), " is ", job.state(), " (", job.end_reason(),
                                  "): ", options.condition, " can no longer become true")};
}

Output TimedOut(const WaitOptions& options, const std::string& last) {
  return {.exit_code = kTimeout,
          .out = {},
          .message = absl::StrCat(options.condition, " is not true after ", options.query.timeout,
                                  ": ", last)};
}

}  // namespace

Output RunWait(const WaitOptions& options) {
  const absl::StatusOr<WaitCondition> condition = WaitCondition::Parse(options.condition);
  if (!condition.ok()) return UsageFailure(condition.status());
  const absl::StatusOr<absl::Duration> timeout =
      ParseDuration("--timeout", options.query.timeout, kLongestWait);
  if (!timeout.ok()) return UsageFailure(timeout.status());
  const absl::Time begin = absl::Now();
  const absl::Time end = begin + *timeout;
  for (bool first = true;; first = false) {
    v1::JobStatus job;
    const absl::Status asked = AskJob(options, end - absl::Now(), &job);
    if (!asked.ok() && !MayPass(asked, first)) return QueryFailure(asked);
    std::string last(asked.message());
    if (asked.ok()) {
      const WaitCondition::Answer answer = condition->Ask(job);
      if (answer == WaitCondition::Answer::kMet) return Met(options, job, absl::Now() - begin);
      if (answer == WaitCondition::Answer::kNever) return Never(options, job);
      last = absl::StrCat("job ", job.job(), " is ", StateText(job), " at step ", job.step(),
                          ", version ", job.version(), ", balancedness ", BalancednessText(job));
    }
    if (absl::Now() + kAskAgain >= end) return TimedOut(options, last);
    absl::SleepFor(kAskAgain);
  }
}

void AddWait(CLI::App& root, Command& command) {
  const auto options = std::make_shared<WaitOptions>();
  options->query.timeout = "10m";
  CLI::App& app = *root.add_subcommand("wait", "Until something is true of a job");
  app.add_option("--for", options->condition,
                 "connected, finished, ended, state=NAME, version>=N, step>=N or balanced>=X "
                 "(measured)")
      ->required()
      ->type_name("CONDITION");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound, kConditionNotMet});
  app.get_option("--timeout")->description("How long to wait, at most 168h [10m]");
  app.footer(
      absl::StrCat("Examples:\n"
                   "  eplbctl wait --for connected && eplbctl rebalance\n"
                   "  eplbctl wait --for 'balanced>=0.9' --timeout 30m\n"
                   "8: the run has ended, but FAILED when FINISHED was asked for, or the reverse.\n"
                   "Any other condition may be met by a new launch of the job.\n",
                   app.get_footer()));
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunWait(*options); };
  });
}

}  // namespace eplb::cli
