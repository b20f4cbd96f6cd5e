// JSON forms of the daemon's answers.
#ifndef EPLB_CLIENT_CLI_JOB_JSON_H_
#define EPLB_CLIENT_CLI_JOB_JSON_H_

#include <string>

namespace eplb::v1 {
class GetStatusResponse;
}  // namespace eplb::v1

namespace eplb::cli {

// One line with a newline. Keys are the fields of proto/eplb/v1/query.proto; the digest is
// hexadecimal.
std::string StatusToJson(const v1::GetStatusResponse& response);
// {"jobs":[..]} of it.
std::string JobsToJson(const v1::GetStatusResponse& response);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_JOB_JSON_H_
