// JSON forms of the daemon's answers.
#ifndef EPLB_CLIENT_CLI_DAEMON_JOB_JSON_H_
#define EPLB_CLIENT_CLI_DAEMON_JOB_JSON_H_

#include <string>

namespace eplb::v1 {
class GetStatusResponse;
class JobStatus;
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::cli {

// One line with a newline. Keys are the fields of proto/eplb/v1/query.proto; the digest is
// hexadecimal. Jobs have their "ranks" only with_ranks.
std::string StatusToJson(const v1::GetStatusResponse& response, bool with_ranks);
// {"jobs":[..],"jobs_hidden"} of it.
std::string JobsToJson(const v1::GetStatusResponse& response, bool with_ranks);
// The settings in force, an object without a newline.
std::string PolicyToJson(const v1::PolicySettings& policy);
// {"job","incarnation","ranks":[..]}.
std::string RanksToJson(const v1::JobStatus& job);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_JOB_JSON_H_
