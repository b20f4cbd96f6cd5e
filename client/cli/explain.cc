// `eplbctl explain`: why the placement is as it is.
#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/explanation.h"
#include "client/cli/flags.h"
#include "client/cli/watch.h"
#include "proto/wire/message_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

Json PlanOrNull(const v1::Plan* plan) {
  return plan == nullptr ? Json(nullptr) : wire::ToJson(*plan);
}

Json GpuLoads(const std::optional<Evaluation>& evaluation, int32_t layer) {
  if (!evaluation) return nullptr;
  Json loads = Json::array();
  for (const double tokens : evaluation->gpu_loads.row(layer)) loads.push_back(tokens);
  return loads;
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
  return {{"expert", expert.value},
          {"share", tokens > 0 ? Json(own / tokens) : Json(nullptr)},
          {"slots", placement.ReplicasOf(layer, expert)},
          {"gpus", GpusOf(placement, layer, expert)},
          {"gpus_before",
           explanation.before ? GpusOf(explanation.before->placement, layer, expert) : Json()}};
}

absl::Status CheckRange(const char* flag, int32_t value, int32_t count, const char* what) {
  if (value < count) return absl::OkStatus();
  return InvalidInput(flag, " is ", value, ", the job has ", what, " 0..", count - 1);
}

absl::Status CheckOptions(const ExplainOptions& options, const Explanation& explanation) {
  if (options.layer < 0) return absl::OkStatus();
  if (explanation.shown() == nullptr) {
    return NotFound("nothing is known of the layers of job ", explanation.job.job(),
                    explanation.body
                        ? ": no load window is complete since the daemon started, or its "
                          "ranks have left"
                        : ": its placement is not known");
  }
  const Topology& shape = explanation.body->placement.topology();
  absl::Status status = CheckRange("--layer", options.layer, shape.num_layers(), "layers");
  status.Update(CheckRange("--expert", options.expert, shape.num_experts(), "experts"));
  return status;
}

}  // namespace

std::string ExplanationToJson(const Explanation& explanation, int32_t layer, int32_t expert) {
  v1::JobStatus job = explanation.job;
  job.clear_ranks();  // megabytes at 10,000 ranks
  if (!job.has_balancedness()) {
    job.clear_balancedness_without_eplb();
    job.clear_balancedness_static();
  }
  Json status = wire::ToJson(job);
  Json json;
  const auto take = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys) json[key] = std::move(status[key]);
  };
  take({"job", "state", "paused", "pause_reason", "waiting_for", "not_counting_reason", "stalled",
        "stalled_reason", "run_number", "version"});
  json["settings"] = std::move(status["policy"]);
  take({"split", "measured_split", "balancedness", "balancedness_without_eplb",
        "balancedness_static"});
  json["window"] = nullptr;
  if (job.has_balancedness()) {
    json["window"] = {{"first_step", job.measured_first_step()},
                      {"last_step", job.measured_last_step()}};
  }
  take({"not_measured_reason", "balancedness_predicted", "prediction_error", "balancedness_seen"});
  json["switched"] = PlanOrNull(explanation.switched());
  json["newest"] = PlanOrNull(explanation.plans.empty() ? nullptr : &explanation.plans.front());
  json["candidates"] = std::move(status["candidates"]);
  json["load_window"] = nullptr;
  json["layers_are"] = nullptr;
  if (explanation.shown() != nullptr) {
    json["load_window"] = {{"first_step", explanation.load->window.first_step},
                           {"last_step", explanation.load->window.last_step}};
    json["layers_are"] = explanation.shown_name();
  }
  json["layers"] = Json::array();
  for (const v1::LayerFigures& one : explanation.layers)
    json["layers"].push_back(wire::ToJson(one));
  if (layer >= 0) {
    json["gpu_loads"] = GpuLoads(explanation.measured, layer);
    json["gpu_loads_computed"] = GpuLoads(explanation.computed, layer);
    json["gpu_loads_before"] = GpuLoads(explanation.evaluated_before, layer);
    json["moved"] = MovedOf(explanation, layer);
  }
  if (expert >= 0) json["expert"] = ExpertOf(explanation, LayerId{layer}, ExpertId{expert});
  return wire::DumpJson(json) + "\n";
}

Output RunExplain(const ExplainOptions& options, const Terminal& terminal) {
  if (options.expert >= 0 && options.layer < 0) return InvalidInput("--expert needs --layer");
  EPLB_ASSIGN_OR_RETURN(const Explanation explanation, AskExplanation(options.query, options.job));
  EPLB_RETURN_IF_ERROR(CheckOptions(options, explanation));
  if (options.query.format == Format::kJson) {
    return ExplanationToJson(explanation, options.layer, options.expert);
  }
  if (options.layer < 0) return ExplainJob(explanation, terminal);
  if (options.expert < 0) return ExplainLayer(explanation, options.layer, terminal);
  return ExplainExpert(explanation, options.layer, options.expert, terminal);
}

void AddExplain(const Flags& root) {
  auto [flags, options] = AddCommand<ExplainOptions>(
      root, "explain", "Explain why the placement is as it is", &RunExplain);
  AddCount(flags, "--layer", "L", options.layer, "Show one layer's GPUs and what moved");
  AddCount(flags, "--expert", "E", options.expert, "Show one expert of --layer");
  AddJobOption(flags, options.job);
  AddQueryOptions(flags, options.query, {kNotFound});
  AddWatched(flags);
}

}  // namespace eplb::cli
