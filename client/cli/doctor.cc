// `eplbctl doctor`: checks a daemon and its jobs, or the logs of a run.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/health_checks.h"
#include "client/cli/text.h"
#include "proto/wire/message_json.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;
using Result = Check::Result;

constexpr int kPlansLookedAt = 10;

const char* ResultName(Result result) {
  return result == Result::kOk ? "ok" : result == Result::kWarning ? "warning" : "failed";
}

Colour ColourOf(Result result) {
  if (result == Result::kOk) return Colour::kGreen;
  return result == Result::kWarning ? Colour::kYellow : Colour::kRed;
}

// Returns the findings about daemons that all stand by.
absl::StatusOr<std::vector<Check>> CheckLeaderless(const QueryOptions& query) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<EndpointAnswer> answers, AskEndpoints(query));
  std::vector<Check> checks = {{.scope = kDaemonScope,
                                .name = "leader",
                                .result = Result::kFailed,
                                .detail = "no daemon that answers leads"}};
  for (Check& check : CheckEndpoints(answers)) checks.push_back(std::move(check));
  return checks;
}

absl::StatusOr<std::vector<Check>> AskAll(const DoctorOptions& options) {
  v1::GetStatusResponse status;
  const absl::Status asked = Ask(options.query, v1::GetStatusRequest(), &status);
  if (wire::LeaderIn(asked)) return CheckLeaderless(options.query);
  EPLB_RETURN_IF_ERROR(asked);
  std::vector<Check> checks = CheckDaemon(status, options.job);
  EPLB_ASSIGN_OR_RETURN(const std::vector<EndpointAnswer> answers, AskEndpoints(options.query));
  for (Check& check : CheckEndpoints(answers)) checks.push_back(std::move(check));
  bool found = options.job.empty() || std::ranges::any_of(checks, [&options](const Check& check) {
                 return check.scope == options.job;  // refused, and not known
               });
  for (const v1::JobStatus& job : status.jobs()) {
    if (!options.job.empty() && job.job() != options.job) continue;
    found = true;
    const absl::StatusOr<wire::PlacementBody> placement = AskPlacement(options.query, job.job());
    v1::ListPlansRequest request;
    request.set_job(job.job());
    request.set_limit(kPlansLookedAt);
    v1::ListPlansResponse plans;
    const absl::Status listed = Ask(options.query, request, &plans);
    if (absl::IsUnavailable(listed) || absl::IsDeadlineExceeded(listed)) return listed;
    for (Check& check : CheckJob(job, placement, plans)) checks.push_back(std::move(check));
    if (!listed.ok()) {  // a finding about this job, which must not hide the other jobs
      checks.push_back({job.job(), "plans",
                        absl::IsNotFound(listed) ? Result::kWarning : Result::kFailed,
                        absl::StrCat("the decisions cannot be listed: ", listed.message())});
    }
  }
  if (!found) return NotFound("no job ", options.job);
  return checks;
}

std::string ToJson(const std::vector<Check>& checks, bool healthy) {
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"scope", check.scope},
                    {"check", check.name},
                    {"result", ResultName(check.result)},
                    {"detail", check.detail}});
  }
  const Json json = {{"healthy", healthy}, {"checks", std::move(list)}};
  return wire::DumpJson(json) + "\n";
}

// "20 jobs ok, 1 with trouble (190 checks; --all lists them)".
std::string Summary(const std::vector<Check>& checks) {
  std::set<std::string> scopes;
  std::set<std::string> troubled;
  for (const Check& check : checks) {
    if (check.scope == kDaemonScope) continue;
    scopes.insert(check.scope);
    if (check.result != Result::kOk) troubled.insert(check.scope);
  }
  const std::string jobs =
      scopes.empty() ? "no job yet"
                     : absl::StrCat(Counted(scopes.size() - troubled.size(), "job"), " ok");
  return absl::StrCat(jobs,
                      troubled.empty() ? "" : absl::StrCat(", ", troubled.size(), " with trouble"),
                      " (", Counted(std::ssize(checks), "check"), "; --all lists them)\n");
}

// Checks that passed are counted, unless `all` lists them.
std::string ToText(const std::vector<Check>& checks, bool all, const Terminal& terminal) {
  std::string text = all ? "" : Summary(checks);
  for (const Check& check : checks) {
    if (!all && check.result == Result::kOk) continue;
    constexpr int kColumn = 9;  // "warning" and two spaces
    const std::string result = Paint(terminal, ColourOf(check.result), ResultName(check.result));
    const std::string body =
        absl::StrCat(Printable(check.scope), " ", check.name, ": ", Printable(check.detail));
    absl::StrAppend(&text, Beside(result, kColumn, body, terminal), "\n");
  }
  return text;
}

}  // namespace

Output RunDoctor(const DoctorOptions& options, const Terminal& terminal) {
  std::vector<Check> checks;
  if (!options.run.empty()) {
    EPLB_ASSIGN_OR_RETURN(checks, AsUsage(CheckRun(options.run)));
  } else {
    EPLB_ASSIGN_OR_RETURN(checks, AskAll(options));
  }
  const bool healthy = std::ranges::all_of(checks, [&options](const Check& check) {
    return check.result == Result::kOk || (check.result == Result::kWarning && !options.strict);
  });
  return {healthy ? kOk : kConditionNotMet,
          options.query.format == Format::kJson
              ? ToJson(checks, healthy)
              : ToText(checks, options.all || !options.run.empty(), terminal),
          ""};
}

void AddDoctor(const Flags& root) {
  auto [flags, options] = AddCommand<DoctorOptions>(
      root, "doctor", "Check the daemon and its jobs; exit 8 if a check fails", &RunDoctor);
  AddJobOption(flags, options.job, kAllJobsHelp);
  flags.Text("--run", "DIR", options.run,
             "Check the ranks' logs in this folder instead of a daemon");
  flags.Switch("--strict", options.strict, "Exit 8 also for a warning");
  flags.Switch("--all", options.all, "List the checks that passed, too");
  AddQueryOptions(flags, options.query, {kNotFound, kConditionNotMet});
}

}  // namespace eplb::cli
