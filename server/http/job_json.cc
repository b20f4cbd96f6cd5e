#include "server/http/job_json.h"

#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/text.h"
#include "proto/wire/placement_json.h"
#include "proto/wire/settings.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(std::optional<double> value) {
  return value ? Json(FiniteOrZero(*value)) : Json(nullptr);
}

// Text of others: bytes that are not UTF-8 must not end the program.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json TransportJson(const wire::TransportInfo& transport) {
  Json settings = Json::object();
  for (const wire::TransportInfo::Setting& setting : transport.settings) {
    settings[setting.name] = setting.value;
  }
  return {{"name", transport.name},
          {"fallback_reason", transport.fallback_reason},
          {"device", transport.device.has_value() ? Json(*transport.device) : Json()},
          {"device_name", transport.device_name},
          {"nccl_version", transport.nccl_version},
          {"nccl_library", transport.nccl_library},
          {"settings", std::move(settings)}};
}

Json RankJson(const core::RankView& rank) {
  return {{"rank", rank.rank},
          {"connected", rank.connected},
          {"state", rank.state},
          {"running_version", rank.running_version},
          {"prepared_version", rank.prepared_version},
          {"step", rank.step},
          {"away_seconds", FiniteOrZero(absl::ToDoubleSeconds(rank.away))},
          {"answer", rank.answer},
          {"answer_seconds", FiniteOrZero(rank.answer_seconds)},
          {"pause_seconds", FiniteOrZero(rank.pause_seconds)},
          {"dropped_steps", rank.dropped_steps},
          {"library_version", rank.library_version},
          {"transport", TransportJson(rank.transport)}};
}

Json SettingsJson(const wire::Settings& settings) {
  Json json;
  for (const wire::SettingRow& row : wire::SettingRows()) {
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, absl::Duration>) {
            json[row.field] = absl::ToDoubleSeconds(value);
          } else {
            json[row.field] = value;
          }
        },
        row.get(settings));
  }
  return json;
}

Json CandidateJson(const core::JobView& job) {
  if (!job.candidate) return nullptr;
  return {{"run_id", job.candidate->run_id},
          {"world_size", job.candidate->world_size},
          {"registered_ranks", job.candidate->registered},
          {"connected_ranks", job.candidate->connected},
          {"seconds", FiniteOrZero(absl::ToDoubleSeconds(job.candidate->since))},
          {"waits", job.candidate->waits}};
}

Json JobJson(const core::JobView& job) {
  Json ranks = Json::array();
  for (const core::RankView& rank : job.ranks) ranks.push_back(RankJson(rank));
  return {{"job", job.job},
          {"run_id", job.run_id},
          {"state", job.state},
          {"state_seconds", FiniteOrZero(absl::ToDoubleSeconds(job.state_age))},
          {"waiting_for", job.waiting_for},
          {"num_layers", job.shape.num_layers},
          {"num_logical_experts", job.shape.num_experts},
          {"num_slots", job.shape.num_slots},
          {"num_gpus", job.shape.num_gpus},
          {"num_nodes", job.shape.num_nodes},
          {"num_groups", job.shape.num_groups},
          {"world_size", job.world_size},
          {"connected_ranks", job.connected_ranks},
          {"step", job.step},
          {"version", job.version},
          {"digest", job.digest.Hex()},
          {"balancedness", FiniteOrZero(job.balancedness)},
          {"balancedness_static", FiniteOrZero(job.balancedness_static)},
          {"balancedness_predicted", OrNull(job.balancedness_predicted)},
          {"balancedness_seen", OrNull(job.balancedness_seen)},
          {"measured_first_step", job.measured_first_step},
          {"measured_last_step", job.measured_last_step},
          {"layer_balancedness", job.layer_balancedness},
          {"last_window_first_step", job.last_window_first_step},
          {"last_window_last_step", job.last_window_last_step},
          {"commits", job.commits},
          {"last_reason", job.last_reason},
          {"paused", job.paused},
          {"pause_reason", job.pause_reason},
          {"policy", SettingsJson(job.settings)},
          {"report_every", job.report_every},
          {"reduce", job.reduce},
          {"coverage", FiniteOrZero(job.coverage)},
          {"ending", job.ending},
          {"end_reason", job.end_reason},
          {"took_over", job.took_over},
          {"stuck_seconds", FiniteOrZero(job.stuck_seconds)},
          {"stalled", job.stalled},
          {"stalled_reason", job.stalled_reason},
          {"step_seconds", FiniteOrZero(job.step_seconds)},
          {"coverage_now", FiniteOrZero(job.coverage_now)},
          {"run_number", job.run_number},
          {"term", job.term},
          {"candidate", CandidateJson(job)},
          {"take_over_refused", job.take_over_refused},
          {"refusal", job.refusal},
          {"refused_hellos", job.refused_hellos},
          {"model_layers", job.model_layers},
          {"ranks", std::move(ranks)}};
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

// null for what nobody measured.
template <class Number>
Json Measured(Number number) {
  return number == core::kNotMeasured ? Json(nullptr) : Json(number);
}

Json PlanJson(const core::Plan& plan) {
  return {{"plan", plan.plan},
          {"unix_micros", absl::ToUnixMicros(plan.decided_at)},
          {"time", TimeText(plan.decided_at)},
          {"policy", plan.policy},
          {"result", std::string(core::PlanResultName(plan.result))},
          {"base_version", plan.base_version},
          {"first_version", plan.first_version},
          {"last_version", plan.last_version},
          {"decided_first_step", plan.decided_first_step},
          {"decided_last_step", plan.decided_last_step},
          {"balancedness_before", FiniteOrZero(plan.balancedness_before)},
          {"balancedness_in_force", FiniteOrZero(plan.balancedness_in_force)},
          {"balancedness_predicted", FiniteOrZero(plan.balancedness_predicted)},
          {"balancedness_seen", OrNull(plan.balancedness_seen)},
          {"seen_first_step", plan.seen_first_step},
          {"seen_last_step", plan.seen_last_step},
          {"peak_fall", FiniteOrZero(plan.peak_fall)},
          {"net_gain_seconds", FiniteOrZero(plan.net_gain_seconds)},
          {"migration_seconds", FiniteOrZero(plan.migration_seconds)},
          {"transfers", plan.transfers},
          {"received_bytes", Measured(plan.received_bytes)},
          {"num_chunks", plan.num_chunks},
          {"chunks_committed", plan.chunks_committed},
          {"solve_seconds", FiniteOrZero(plan.solve_seconds)},
          {"prepare_seconds", FiniteOrZero(plan.prepare_seconds)},
          {"pause_seconds", Measured(FiniteOrZero(plan.pause_seconds))},
          {"switched_step", plan.switched_step},
          {"reason", plan.reason},
          {"asked_by", plan.asked_by}};
}

template <class Matrix>
Json RowsJson(const Matrix& matrix, Eigen::Index first, Eigen::Index last) {
  Json rows = Json::array();
  for (Eigen::Index row = first; row <= last; ++row) {
    const auto* begin = matrix.row(row).data();
    rows.push_back(std::vector<typename Matrix::Scalar>(begin, begin + matrix.cols()));
  }
  return rows;
}

Json EventJson(const StoredEvent& stored) {
  return {{"sequence", stored.sequence},   {"unix_micros", absl::ToUnixMicros(stored.time)},
          {"time", TimeText(stored.time)}, {"job", stored.event.job},
          {"name", stored.event.name},     {"version", stored.event.version},
          {"reason", stored.event.reason}, {"actor", stored.event.actor},
          {"before", stored.event.before}, {"after", stored.event.after}};
}

Json RefusalJson(const RefusedRanks& one) {
  return {{"job", one.job.job},
          {"reason", one.job.reason},
          {"count", one.job.count},
          {"seconds_ago", FiniteOrZero(absl::ToDoubleSeconds(one.ago))}};
}

}  // namespace

std::string JobToJson(const core::JobView& job) { return Dump(JobJson(job)); }

std::string JobsToJson(std::span<const core::JobView> jobs, std::span<const RefusedRanks> refusals,
                       std::span<const std::string> warnings) {
  Json list = Json::array();
  for (const core::JobView& job : jobs) list.push_back(JobJson(job));
  Json refused = Json::array();
  for (const RefusedRanks& one : refusals) refused.push_back(RefusalJson(one));
  return Dump({{"jobs", std::move(list)},
               {"jobs_hidden", false},  // as GetStatus; HTTP hides none
               {"refusals", std::move(refused)},
               {"warnings", std::vector<std::string>(warnings.begin(), warnings.end())}});
}

std::string PlacementBodyToJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", Json(job).dump(), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

std::string LoadToJson(const std::string& job, const core::WindowView& window,
                       std::optional<int32_t> layer) {
  const LoadMatrix& counts = window.load->counts();
  const Eigen::Index first = layer.value_or(0);
  const Eigen::Index last = layer ? first : counts.rows() - 1;
  const core::GpuTokens* on_gpus = window.on_gpus.get();
  return Dump(
      {{"job", job},
       {"first_step", window.first_step},
       {"last_step", window.last_step},
       {"first_layer", first},
       {"load", RowsJson(counts, first, last)},
       {"gpu_loads", on_gpus == nullptr ? Json::array() : RowsJson(on_gpus->loads, first, last)},
       {"versions", on_gpus == nullptr ? Json::array() : Json(on_gpus->versions)}});
}

std::string PlansToJson(const std::string& job, std::span<const core::Plan> plans) {
  Json list = Json::array();
  for (const core::Plan& plan : plans) list.push_back(PlanJson(plan));
  return Dump({{"job", job}, {"plans", std::move(list)}});
}

std::string EventsToJson(const std::string& job, std::span<const StoredEvent> events) {
  Json list = Json::array();
  for (const StoredEvent& event : events) list.push_back(EventJson(event));
  return Dump({{"job", job}, {"events", std::move(list)}});
}

std::string ErrorToJson(std::string_view text) { return Dump({{"error", std::string(text)}}); }

std::string VersionToJson(const std::string& version, const std::string& grpc_version) {
  return Dump({{"version", version}, {"grpc_version", grpc_version}});
}

}  // namespace eplb
