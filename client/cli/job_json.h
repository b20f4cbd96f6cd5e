// JSON forms of the daemon's answers: those of /api/v1, by the same printer (wire::ToJson).
#ifndef EPLB_CLIENT_CLI_JOB_JSON_H_
#define EPLB_CLIENT_CLI_JOB_JSON_H_

#include <string>

namespace eplb::v1 {
class GetStatusResponse;
class JobStatus;
class ListEventsResponse;
class ListWindowsResponse;
class ListPlansResponse;
class Plan;
}  // namespace eplb::v1

namespace eplb::cli {

// Each is one line with a newline.

// Jobs have their "ranks" only with_ranks.
std::string StatusToJson(const v1::GetStatusResponse& response, bool with_ranks);
// {"jobs":[..],"jobs_hidden","refusals":[..],"warnings":[..]} of it.
std::string JobsToJson(const v1::GetStatusResponse& response, bool with_ranks);
// {"job","run_id","ranks":[..]}.
std::string RanksToJson(const v1::JobStatus& job);
// {"job","plan":{..}}.
std::string PlanToJson(const std::string& job, const v1::Plan& plan);
// {"job","plans":[..]} and {"job","events":[..]}.
std::string PlansToJson(const std::string& job, const v1::ListPlansResponse& response);
std::string EventsToJson(const std::string& job, const v1::ListEventsResponse& response);
std::string WindowsToJson(const std::string& job, const v1::ListWindowsResponse& response);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_JOB_JSON_H_
