// The JSON form of plans and events: keys and values are those of /api/v1 (server/http/job_json.h).
#ifndef EPLB_CLIENT_CLI_DAEMON_RECORD_JSON_H_
#define EPLB_CLIENT_CLI_DAEMON_RECORD_JSON_H_

#include <cstdint>
#include <string>

namespace eplb::v1 {
class JobEvent;
class ListEventsResponse;
class ListPlansResponse;
class Plan;
}  // namespace eplb::v1

namespace eplb::cli {

// One line with a newline; every number is finite. {"job","plans":[..]} and {"job","events":[..]},
// keys as the fields in query.proto; times are ISO 8601 in UTC.
std::string PlansToJson(const std::string& job, const v1::ListPlansResponse& response);
std::string EventsToJson(const std::string& job, const v1::ListEventsResponse& response);

// An object without a newline.
std::string PlanToJson(const v1::Plan& plan);

// "2026-11-21T10:02:03.123Z".
std::string TimeText(int64_t unix_micros);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_RECORD_JSON_H_
