// Values become messages, and messages become JSON.
#include "server/http/job_json.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/json_value.h"
#include "proto/wire/message_json.h"
#include "proto/wire/message_texts.h"
#include "proto/wire/placement_json.h"

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

template <class Message>
Json JsonOf(Message& message) {
  wire::ClipTexts(&message);
  return wire::ToJson(message);
}

// Returns {"job": job, key: the messages}.
template <class Message>
std::string ListJson(const std::string& job, const char* key, std::vector<Message>& messages) {
  Json list = Json::array();
  for (Message& message : messages) list.push_back(JsonOf(message));
  return Line({{"job", job}, {key, std::move(list)}});
}

Json FlowsJson(std::span<const Flow> flows) {
  Json list = Json::array();
  for (const Flow& flow : flows) list.push_back({flow.from, flow.to, flow.transfers});
  return list;
}

}  // namespace

std::string JobToJson(v1::JobStatus job) { return Line(JsonOf(job)); }

std::string JobsToJson(std::vector<v1::JobStatus> jobs, std::vector<v1::Refusal> refusals,
                       std::span<const std::string> warnings, bool with_ranks) {
  v1::GetStatusResponse response;
  for (v1::JobStatus& job : jobs) {
    if (!with_ranks) job.clear_ranks();
    *response.add_jobs() = std::move(job);
  }
  for (v1::Refusal& refusal : refusals) *response.add_refusals() = std::move(refusal);
  for (const std::string& warning : warnings) response.add_warnings(warning);
  Json status = JsonOf(response);
  return Line({{"jobs", std::move(status["jobs"])},
               {"jobs_hidden", false},  // see GetStatus; HTTP hides none
               {"refusals", std::move(status["refusals"])},
               {"warnings", std::move(status["warnings"])}});
}

std::string PlacementBodyToJson(const std::string& job, const wire::PlacementBody& body) {
  return absl::StrCat("{\"job\":", wire::JsonQuote(job), ",\"version\":", body.version,
                      ",\"digest\":\"", body.digest.Hex(),
                      "\",\"placement\":", wire::PlacementToJson(body.placement), "}\n");
}

std::string LayerToJson(const std::string& job, const wire::PlacementBody& body, int32_t layer) {
  Json document = {{"job", job}, {"version", body.version}, {"digest", body.digest.Hex()}};
  document.update(wire::LayerToJson(body.placement, LayerId{layer}));
  return Line(document);
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

std::string WindowsToJson(const std::string& job, std::vector<v1::Window> windows) {
  Json list = Json::array();
  for (v1::Window& window : windows) {
    list.push_back(JsonOf(window));
    list.back()["completed"] = wire::TimeText(window.completed_unix_micros());
  }
  return Line({{"job", job}, {"windows", std::move(list)}});
}

std::string GpuLoadsToJson(const std::string& job, const WindowLoads& loads) {
  const auto& versions = loads.figures.versions();
  const core::GpuTokens* on_gpus = loads.on_gpus.get();
  return Line(
      {{"job", job},
       {"window", loads.figures.window()},
       {"first_step", loads.figures.first_step()},
       {"last_step", loads.figures.last_step()},
       {"versions", std::vector<uint64_t>(versions.begin(), versions.end())},
       {"split", loads.figures.split()},
       {"gpu_loads", on_gpus == nullptr ? Json::array()
                                        : RowsJson(on_gpus->loads, 0, on_gpus->loads.rows() - 1)},
       {"gpu_loads_static", RowsJson(loads.on_gpus_static, 0, loads.on_gpus_static.rows() - 1)}});
}

std::string TrafficToJson(const std::string& job, const Traffic& traffic) {
  return Line({{"job", job},
               {"plan", traffic.plan},
               {"base_version", traffic.base_version},
               {"last_version", traffic.last_version},
               {"num_gpus", traffic.num_gpus},
               {"num_nodes", traffic.num_nodes},
               {"transfers", traffic.flows.transfers},
               {"cross_node_transfers", traffic.flows.cross_node_transfers},
               {"received_bytes", traffic.received_bytes ? Json(*traffic.received_bytes) : Json()},
               {"gpus", FlowsJson(traffic.flows.gpus)},
               {"nodes", FlowsJson(traffic.flows.nodes)}});
}

std::string PlansToJson(const std::string& job, std::vector<v1::Plan> plans) {
  return ListJson(job, "plans", plans);
}

std::string EventsToJson(const std::string& job, std::vector<v1::JobEvent> events) {
  return ListJson(job, "events", events);
}

std::string ErrorToJson(std::string_view text) { return Line({{"error", std::string(text)}}); }

std::string VersionToJson(const std::string& version, const std::string& grpc_version) {
  return Line({{"version", version}, {"grpc_version", grpc_version}});
}

}  // namespace eplb
