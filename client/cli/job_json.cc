#include "client/cli/job_json.h"

#include <utility>

#include "proto/wire/message_json.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) { return wire::DumpJson(json) + "\n"; }

Json StatusOf(const v1::GetStatusResponse& response, bool with_ranks) {
  Json status = wire::ToJson(response);
  if (!with_ranks) {
    for (Json& job : status["jobs"]) job.erase("ranks");
  }
  return status;
}

}  // namespace

std::string StatusToJson(const v1::GetStatusResponse& response, bool with_ranks) {
  return Line(StatusOf(response, with_ranks));
}

std::string JobsToJson(const v1::GetStatusResponse& response, bool with_ranks) {
  Json status = StatusOf(response, with_ranks);
  Json jobs;
  for (const char* key : {"jobs", "jobs_hidden", "refusals", "warnings"}) {
    jobs[key] = std::move(status[key]);
  }
  return Line(jobs);
}

std::string RanksToJson(const v1::JobStatus& job) {
  return Line(
      {{"job", job.job()}, {"run_id", job.run_id()}, {"ranks", wire::ToJson(job)["ranks"]}});
}

std::string PlanToJson(const std::string& job, const v1::Plan& plan) {
  return Line({{"job", job}, {"plan", wire::ToJson(plan)}});
}

std::string ListToJson(const std::string& job, const char* list,
                       const google::protobuf::Message& response) {
  return Line({{"job", job}, {list, wire::ToJson(response)[list]}});
}

}  // namespace eplb::cli
