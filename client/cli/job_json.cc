#include "client/cli/job_json.h"

#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include <google/protobuf/message.h>

#include "base/text.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {

namespace {

using Json = nlohmann::ordered_json;

Json TransportToJson(const v1::TransportInfo& transport) {
  Json settings = Json::object();
  for (const auto& setting : transport.settings()) settings[setting.name()] = setting.value();
  return {{"name", transport.name()},
          {"fallback_reason", transport.fallback_reason()},
          {"device", transport.has_device() ? Json(transport.device()) : Json()},
          {"device_name", transport.device_name()},
          {"nccl_version", transport.nccl_version()},
          {"nccl_library", transport.nccl_library()},
          {"settings", std::move(settings)}};
}

Json RankToJson(const v1::RankStatus& rank) {
  return {{"rank", rank.rank()},
          {"connected", rank.connected()},
          {"state", rank.state()},
          {"running_version", rank.running_version()},
          {"prepared_version", rank.prepared_version()},
          {"step", rank.step()},
          {"away_seconds", FiniteOrZero(rank.away_seconds())},
          {"answer", rank.answer()},
          {"answer_seconds", FiniteOrZero(rank.answer_seconds())},
          {"pause_seconds", FiniteOrZero(rank.pause_seconds())},
          {"dropped_steps", rank.dropped_steps()},
          {"library_version", rank.library_version()},
          {"transport", TransportToJson(rank.transport())}};
}

Json RanksOf(const v1::JobStatus& job) {
  Json ranks = Json::array();
  for (const v1::RankStatus& rank : job.ranks()) ranks.push_back(RankToJson(rank));
  return ranks;
}

Json SettingsOf(const v1::PolicySettings& policy) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Descriptor& type = *policy.GetDescriptor();
  const google::protobuf::Reflection& values = *policy.GetReflection();
  Json json;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        json[field->name()] = values.GetString(policy, field);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        json[field->name()] = values.GetUInt32(policy, field);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        json[field->name()] = values.GetUInt64(policy, field);
        break;
      default:
        json[field->name()] = FiniteOrZero(values.GetDouble(policy, field));
    }
  }
  return json;
}

Json LayersOf(const v1::JobStatus& job) {
  Json layers = Json::array();
  for (const double balancedness : job.layer_balancedness())
    layers.push_back(FiniteOrZero(balancedness));
  return layers;
}

Json CandidateOf(const v1::JobStatus& job) {
  if (!job.has_candidate()) return nullptr;
  const v1::CandidateStatus& candidate = job.candidate();
  return {{"run_id", candidate.run_id()},
          {"world_size", candidate.world_size()},
          {"registered_ranks", candidate.registered_ranks()},
          {"connected_ranks", candidate.connected_ranks()},
          {"seconds", FiniteOrZero(candidate.seconds())},
          {"waits", candidate.waits()}};
}

Json RefusalsOf(const v1::GetStatusResponse& response) {
  Json refusals = Json::array();
  for (const v1::Refusal& refusal : response.refusals()) {
    refusals.push_back({{"job", refusal.job()},
                        {"reason", refusal.reason()},
                        {"count", refusal.count()},
                        {"seconds_ago", FiniteOrZero(refusal.seconds_ago())}});
  }
  return refusals;
}

Json JobToJson(const v1::JobStatus& job, bool with_ranks) {
  const v1::Shape& shape = job.shape();
  const auto if_set = [](bool is_set, double value) {
    return is_set ? Json(FiniteOrZero(value)) : Json(nullptr);
  };
  Json json = {{"job", job.job()},
               {"run_id", job.run_id()},
               {"state", job.state()},
               {"state_seconds", FiniteOrZero(job.state_seconds())},
               {"waiting_for", job.waiting_for()},
               {"num_layers", shape.num_layers()},
               {"num_logical_experts", shape.num_experts()},
               {"num_slots", shape.num_slots()},
               {"num_gpus", shape.num_gpus()},
               {"num_nodes", shape.num_nodes()},
               {"num_groups", shape.num_groups()},
               {"world_size", job.world_size()},
               {"connected_ranks", job.connected_ranks()},
               {"step", job.step()},
               {"version", job.version()},
               {"digest", absl::BytesToHexString(job.digest())},
               {"balancedness", FiniteOrZero(job.balancedness())},
               {"balancedness_static", FiniteOrZero(job.balancedness_static())},
               {"balancedness_predicted",
                if_set(job.has_balancedness_predicted(), job.balancedness_predicted())},
               {"balancedness_seen", if_set(job.has_balancedness_seen(), job.balancedness_seen())},
               {"measured_first_step", job.measured_first_step()},
               {"measured_last_step", job.measured_last_step()},
               {"layer_balancedness", LayersOf(job)},
               {"last_window_first_step", job.last_window_first_step()},
               {"last_window_last_step", job.last_window_last_step()},
               {"commits", job.commits()},
               {"last_reason", job.last_reason()},
               {"paused", job.paused()},
               {"pause_reason", job.pause_reason()},
               {"policy", SettingsOf(job.policy())},
               {"report_every", job.report_every()},
               {"reduce", job.reduce()},
               {"coverage", FiniteOrZero(job.coverage())},
               {"ending", job.ending()},
               {"end_reason", job.end_reason()},
               {"took_over", job.took_over()},
               {"stuck_seconds", FiniteOrZero(job.stuck_seconds())},
               {"stalled", job.stalled()},
               {"stalled_reason", job.stalled_reason()},
               {"step_seconds", FiniteOrZero(job.step_seconds())},
               {"coverage_now", FiniteOrZero(job.coverage_now())},
               {"run_number", job.run_number()},
               {"term", job.term()},
               {"candidate", CandidateOf(job)},
               {"take_over_refused", job.take_over_refused()},
               {"refusal", job.refusal()},
               {"refused_hellos", job.refused_hellos()},
               {"model_layers", job.model_layers()}};
  if (with_ranks) json["ranks"] = RanksOf(job);
  return json;
}

Json JobsOf(const v1::GetStatusResponse& response, bool with_ranks) {
  Json jobs = Json::array();
  for (const v1::JobStatus& job : response.jobs()) jobs.push_back(JobToJson(job, with_ranks));
  return jobs;
}

// Text of others: bytes that are not UTF-8 must not end the program.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string StatusToJson(const v1::GetStatusResponse& response, bool with_ranks) {
  return Dump({{"server_version", response.server_version()},
               {"term", response.term()},
               {"uptime_seconds", FiniteOrZero(response.uptime_seconds())},
               {"ready", response.ready()},
               {"not_ready_reason", response.not_ready_reason()},
               {"warnings", response.warnings()},
               {"refusals", RefusalsOf(response)},
               {"jobs", JobsOf(response, with_ranks)},
               {"jobs_hidden", response.jobs_hidden()}});
}

std::string JobsToJson(const v1::GetStatusResponse& response, bool with_ranks) {
  return Dump({{"jobs", JobsOf(response, with_ranks)},
               {"jobs_hidden", response.jobs_hidden()},
               {"refusals", RefusalsOf(response)},
               {"warnings", response.warnings()}});
}

std::string PolicyToJson(const v1::PolicySettings& policy) { return SettingsOf(policy).dump(); }

std::string RanksToJson(const v1::JobStatus& job) {
  return Dump({{"job", job.job()}, {"run_id", job.run_id()}, {"ranks", RanksOf(job)}});
}

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
