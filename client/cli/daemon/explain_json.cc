#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "client/cli/daemon/explain_text.h"
#include "client/cli/daemon/job_json.h"
#include "client/cli/daemon/record_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(bool is_set, double value) {
  return is_set && std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json PlanOrNull(const v1::Plan* plan) {
  return plan == nullptr ? Json(nullptr) : Json::parse(PlanToJson(*plan));
}

Json LayersOf(const Explanation& explanation) {
  Json layers = Json::array();
  for (const LayerFigures& figures : explanation.layers) {
    layers.push_back(
        {{"layer", figures.layer},
         {"model_layer", figures.model_layer ? Json(*figures.model_layer) : Json(nullptr)},
         {"balancedness", figures.balancedness},
         {"hottest_gpu", figures.hottest_gpu},
         {"hottest_gpu_load", figures.hottest_gpu_load},
         {"hottest_expert", figures.hottest_expert},
         {"hottest_expert_share", figures.hottest_expert_share},
         {"hottest_expert_replicas", figures.hottest_expert_replicas}});
  }
  return layers;
}

Json GpuLoads(const Evaluation& evaluation, int32_t layer) {
  Json loads = Json::array();
  for (const double tokens : evaluation.gpu_loads.row(layer)) loads.push_back(tokens);
  return loads;
}

Json LoadsBefore(const Explanation& explanation, int32_t layer) {
  if (!explanation.before) return nullptr;
  const absl::StatusOr<Evaluation> before =
      Evaluate(explanation.load->window.load, explanation.before->placement);
  return before.ok() ? GpuLoads(*before, layer) : Json(nullptr);
}

Json MovedOf(const Explanation& explanation, int32_t layer) {
  const std::optional<std::vector<Transfer>> transfers = TransfersOf(explanation, layer);
  if (!transfers) return nullptr;
  Json moved = Json::array();
  for (const Transfer& transfer : *transfers) {
    moved.push_back({{"expert", transfer.expert.value},
                     {"from", transfer.source.value},
                     {"to", transfer.destination.value}});
  }
  return moved;
}

Json GpusOf(const Placement& placement, LayerId layer, ExpertId expert) {
  Json gpus = Json::array();
  for (const int32_t slot : placement.ReplicasOf(layer, expert)) {
    gpus.push_back(placement.topology().GpuOf(SlotId{slot}).value);
  }
  return gpus;
}

Json ExpertOf(const Explanation& explanation, LayerId layer, ExpertId expert) {
  const Placement& placement = explanation.body->placement;
  const LoadMatrix& counts = explanation.load->window.load.counts();
  const double tokens = counts.row(layer.value).cast<double>().sum();
  const auto own = static_cast<double>(counts(layer.value, expert.value));
  const bool comparable = explanation.before.has_value() &&
                          explanation.before->placement.topology() == placement.topology();
  return {{"expert", expert.value},
          {"share", tokens > 0 ? own / tokens : 0},
          {"slots", placement.ReplicasOf(layer, expert)},
          {"gpus", GpusOf(placement, layer, expert)},
          {"gpus_before",
           comparable ? GpusOf(explanation.before->placement, layer, expert) : Json(nullptr)}};
}

}  // namespace

std::string ExplanationToJson(const Explanation& explanation, int32_t layer, int32_t expert) {
  const v1::JobStatus& job = explanation.job;
  Json json = {
      {"job", job.job()},
      {"state", job.state()},
      {"paused", job.paused()},
      {"pause_reason", job.pause_reason()},
      {"waiting_for", job.waiting_for()},
      {"stalled", job.stalled()},
      {"stalled_reason", job.stalled_reason()},
      {"launch", job.launch()},
      {"version", job.version()},
      {"settings", Json::parse(PolicyToJson(job.policy()))},
      {"balancedness", nullptr},
      {"balancedness_static", nullptr},
      {"window", nullptr},
      {"balancedness_predicted",
       OrNull(job.has_balancedness_predicted(), job.balancedness_predicted())},
      {"balancedness_seen", OrNull(job.has_balancedness_seen(), job.balancedness_seen())},
      {"switched", PlanOrNull(explanation.switched())},
      {"newest", PlanOrNull(explanation.plans.empty() ? nullptr : &explanation.plans.front())},
      {"load_window", nullptr},
      {"layers_are", nullptr},
      {"layers", LayersOf(explanation)}};
  if (job.balancedness() > 0) {
    json["balancedness"] = job.balancedness();
    json["balancedness_static"] = OrNull(job.balancedness_static() > 0, job.balancedness_static());
    json["window"] = {{"first_step", job.measured_first_step()},
                      {"last_step", job.measured_last_step()}};
  }
  if (explanation.shown() != nullptr) {
    json["load_window"] = {{"first_step", explanation.load->window.first_step},
                           {"last_step", explanation.load->window.last_step}};
    json["layers_are"] = explanation.shown_name();
  }
  if (layer >= 0) {
    json["gpu_loads"] =
        explanation.measured ? GpuLoads(*explanation.measured, layer) : Json(nullptr);
    json["gpu_loads_predicted"] = GpuLoads(*explanation.predicted, layer);
    json["gpu_loads_before"] = LoadsBefore(explanation, layer);
    json["moved"] = MovedOf(explanation, layer);
  }
  if (expert >= 0) json["expert"] = ExpertOf(explanation, LayerId{layer}, ExpertId{expert});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace eplb::cli
