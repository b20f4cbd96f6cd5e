#include "server/http/job_json.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/wire/message_json.h"
#include "proto/wire/placement_json.h"
#include "server/messages/records.h"
#include "server/messages/views.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& json) { return wire::DumpJson(json) + "\n"; }

template <class Matrix>
Json RowsJson(const Matrix& matrix, Eigen::Index first, Eigen::Index last) {
  Json rows = Json::array();
  for (Eigen::Index row = first; row <= last; ++row) {
    const auto* begin = matrix.row(row).data();
    rows.push_back(std::vector<typename Matrix::Scalar>(begin, begin + matrix.cols()));
  }
  return rows;
}

}  // namespace

std::string JobToJson(const core::JobView& job) {
  v1::JobStatus message;
  ToProto(job, &message);
  return Line(wire::ToJson(message));
}

std::string JobsToJson(std::span<const core::JobView> jobs, std::span<const RefusedRanks> refusals,
                       std::span<const std::string> warnings) {
  v1::GetStatusResponse response;
  for (const core::JobView& job : jobs) ToProto(job, response.add_jobs());
  for (const RefusedRanks& one : refusals) {
    ToProto(one.job, one.job.at + one.ago, response.add_refusals());
  }
  for (const std::string& warning : warnings) response.add_warnings(warning);
  Json status = wire::ToJson(response);
  return Line({{"jobs", std::move(status["jobs"])},
               {"jobs_hidden", false},  // as GetStatus; HTTP hides none
               {"refusals", std::move(status["refusals"])},
               {"warnings", std::move(status["warnings"])}});
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
  return Line(
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
  for (const core::Plan& plan : plans) {
    v1::Plan message;
    ToProto(plan, &message);
    message.clear_times();  // as in ListPlans
    list.push_back(wire::ToJson(message));
  }
  return Line({{"job", job}, {"plans", std::move(list)}});
}

std::string EventsToJson(const std::string& job, std::span<const StoredEvent> events) {
  Json list = Json::array();
  for (const StoredEvent& event : events) {
    v1::JobEvent message;
    ToProto(event, &message);
    list.push_back(wire::ToJson(message));
  }
  return Line({{"job", job}, {"events", std::move(list)}});
}

std::string ErrorToJson(std::string_view text) { return Line({{"error", std::string(text)}}); }

std::string VersionToJson(const std::string& version, const std::string& grpc_version) {
  return Line({{"version", version}, {"grpc_version", grpc_version}});
}

}  // namespace eplb
