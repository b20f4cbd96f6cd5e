// JSON forms of the daemon's answers.
#ifndef EPLB_CLIENT_CLI_JOB_JSON_H_
#define EPLB_CLIENT_CLI_JOB_JSON_H_

#include <cstdint>
#include <string>

namespace eplb::v1 {
class GetStatusResponse;
class JobStatus;
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::v1 {
class JobEvent;
class ListEventsResponse;
class ListPlansResponse;
class Plan;
}  // namespace eplb::v1

namespace eplb::cli {

// One line with a newline. Keys are the fields of proto/eplb/v1/query.proto; the digest is
// hexadecimal. Jobs have their "ranks" only with_ranks.
std::string StatusToJson(const v1::GetStatusResponse& response, bool with_ranks);
// {"jobs":[..],"jobs_hidden"} of it.
std::string JobsToJson(const v1::GetStatusResponse& response, bool with_ranks);
// The settings in force, an object without a newline.
std::string PolicyToJson(const v1::PolicySettings& policy);
// {"job","run_id","ranks":[..]}.
std::string RanksToJson(const v1::JobStatus& job);

// The JSON form of plans and events: keys and values are those of /api/v1 (server/http/job_json.h).

// One line with a newline; every number is finite. {"job","plans":[..]} and {"job","events":[..]},
// keys as the fields in query.proto; times are ISO 8601 in UTC.
std::string PlansToJson(const std::string& job, const v1::ListPlansResponse& response);
std::string EventsToJson(const std::string& job, const v1::ListEventsResponse& response);

// An object without a newline.
std::string PlanToJson(const v1::Plan& plan);

// "2026-11-21T10:02:03.123Z".
std::string TimeText(int64_t unix_micros);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_JOB_JSON_H_
