// The daemon's answers as `-o json` prints them: one line each.
#pragma once

#include <string>

namespace google::protobuf {
class Message;
}
namespace eplb::v1 {
class GetStatusResponse;
class JobStatus;
class Plan;
}  // namespace eplb::v1

namespace eplb::cli {

// Every field of the answer. with_ranks: also the ranks of each job, megabytes for 10,000 ranks.
std::string StatusToJson(const v1::GetStatusResponse& response, bool with_ranks);
// StatusToJson without the fields about the daemon itself.
std::string JobsToJson(const v1::GetStatusResponse& response, bool with_ranks);

std::string RanksToJson(const v1::JobStatus& job);
std::string PlanToJson(const std::string& job, const v1::Plan& plan);
// {"job":..,"plans":[..]}, for example, where "plans" is the list in `response`.
std::string ListToJson(const std::string& job, const char* list,
                       const google::protobuf::Message& response);

}  // namespace eplb::cli
