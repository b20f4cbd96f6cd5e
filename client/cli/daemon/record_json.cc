#include "client/cli/daemon/record_json.h"

#include <cmath>
#include <utility>

#include "absl/time/time.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

double FiniteFigure(double value) { return std::isfinite(value) ? value : 0; }

Json ToJson(const v1::Plan& plan) {
  return {
      {"plan", plan.plan()},
      {"unix_micros", plan.unix_micros()},
      {"time", TimeText(plan.unix_micros())},
      {"policy", plan.policy()},
      {"result", plan.result()},
      {"base_version", plan.base_version()},
      {"first_version", plan.first_version()},
      {"last_version", plan.last_version()},
      {"decided_first_step", plan.decided_first_step()},
      {"decided_last_step", plan.decided_last_step()},
      {"balancedness_before", FiniteFigure(plan.balancedness_before())},
      {"balancedness_in_force", FiniteFigure(plan.balancedness_in_force())},
      {"balancedness_predicted", FiniteFigure(plan.balancedness_predicted())},
      {"balancedness_seen",
       plan.has_balancedness_seen() ? Json(FiniteFigure(plan.balancedness_seen())) : Json(nullptr)},
      {"seen_first_step", plan.seen_first_step()},
      {"seen_last_step", plan.seen_last_step()},
      {"peak_fall", FiniteFigure(plan.peak_fall())},
      {"net_gain_seconds", FiniteFigure(plan.net_gain_seconds())},
      {"migration_seconds", FiniteFigure(plan.migration_seconds())},
      {"transfers", plan.transfers()},
      {"received_bytes", plan.has_received_bytes() ? Json(plan.received_bytes()) : Json(nullptr)},
      {"num_chunks", plan.num_chunks()},
      {"chunks_committed", plan.chunks_committed()},
      {"solve_seconds", FiniteFigure(plan.solve_seconds())},
      {"prepare_seconds", FiniteFigure(plan.prepare_seconds())},
      {"pause_seconds",
       plan.has_pause_seconds() ? Json(FiniteFigure(plan.pause_seconds())) : Json(nullptr)},
      {"switched_step", plan.switched_step()},
      {"reason", plan.reason()},
      {"asked_by", plan.asked_by()}};
}

Json ToJson(const v1::JobEvent& event) {
  return {{"sequence", event.sequence()},
          {"unix_micros", event.unix_micros()},
          {"time", TimeText(event.unix_micros())},
          {"job", event.job()},
          {"name", event.name()},
          {"version", event.version()},
          {"reason", event.reason()},
          {"actor", event.actor()},
          {"before", event.before()},
          {"after", event.after()}};
}

// Text of others: bytes that are not UTF-8 must not end the program.
std::string DumpRecords(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class Records>
std::string ListToJson(const std::string& job, const char* name, const Records& records) {
  Json list = Json::array();
  for (const auto& record : records) list.push_back(ToJson(record));
  return DumpRecords({{"job", job}, {name, std::move(list)}}) + "\n";
}

}  // namespace

std::string PlansToJson(const std::string& job, const v1::ListPlansResponse& response) {
  return ListToJson(job, "plans", response.plans());
}

std::string EventsToJson(const std::string& job, const v1::ListEventsResponse& response) {
  return ListToJson(job, "events", response.events());
}

std::string PlanToJson(const v1::Plan& plan) { return DumpRecords(ToJson(plan)); }

std::string TimeText(int64_t unix_micros) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMicros(unix_micros),
                          absl::UTCTimeZone());
}

}  // namespace eplb::cli
