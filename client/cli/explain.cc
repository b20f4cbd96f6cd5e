#include "client/cli/explain.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/invalid_input.h"
#include "base/json_or_null.h"
#include "base/status_macros.h"
#include "client/cli/explain_text.h"
#include "client/cli/job_text.h"
#include "client/cli/watch.h"
#include "placement/split/batch_split.h"
#include "proto/wire/message_json.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace eplb::cli {

namespace {

constexpr int kPlansAsked = 50;
constexpr int kAttempts = 5;

// No such placement or window is no failure: the field stays empty.
template <class T>
absl::Status Keep(absl::StatusOr<T> answer, std::optional<T>& field) {
  if (absl::IsNotFound(answer.status())) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(answer.status());
  field = *std::move(answer);
  return absl::OkStatus();
}

LayerFigures FiguresOf(const Explanation& explanation, int32_t layer) {
  const Evaluation& shown = *explanation.shown();
  LayerFigures figures{.layer = layer, .balancedness = shown.balancedness[layer]};
  if (layer < explanation.job.model_layers_size()) {
    figures.model_layer = explanation.job.model_layers(layer);
  }
  const auto loads = shown.gpu_loads.row(layer);
  Eigen::Index gpu = 0;
  const double most = loads.maxCoeff(&gpu);
  figures.hottest_gpu = static_cast<int32_t>(gpu);
  const double mean = loads.mean();
  figures.hottest_gpu_load = mean > 0 ? most / mean : 1;
  const auto counts = explanation.load->window.load.counts().row(layer).cast<double>();
  Eigen::Index expert = 0;
  const double hottest = counts.maxCoeff(&expert);
  const double tokens = counts.sum();
  figures.hottest_expert = static_cast<int32_t>(expert);
  figures.hottest_expert_share = tokens > 0 ? hottest / tokens : 0;
  figures.hottest_expert_replicas =
      explanation.body->placement.ReplicaCount(LayerId{layer}, ExpertId{figures.hottest_expert});
  return figures;
}

// Asked one after the other: a switch may lie between the answers.
bool OfOneVersion(const Explanation& explanation) {
  return !explanation.body ||
         explanation.body->version == static_cast<int64_t>(explanation.job.version());
}

// Everything but the evaluations.
absl::StatusOr<Explanation> AskOnce(const QueryOptions& options, const std::string& job) {
  Explanation explanation;
  v1::GetJobRequest job_request;
  job_request.set_job(job);
  EPLB_RETURN_IF_ERROR(Ask(options, job_request, &explanation.job));
  v1::ListPlansRequest plans_request;
  plans_request.set_job(job);
  plans_request.set_limit(kPlansAsked);
  v1::ListPlansResponse plans;
  EPLB_RETURN_IF_ERROR(Ask(options, plans_request, &plans));
  explanation.plans.assign(plans.plans().begin(), plans.plans().end());
  EPLB_RETURN_IF_ERROR(Keep(AskPlacement(options, job), explanation.body));
  EPLB_RETURN_IF_ERROR(Keep(AskLoad(options, job), explanation.load));
  if (const v1::Plan* plan = explanation.switched()) {
    const auto base = static_cast<int64_t>(plan->base_version());
    EPLB_RETURN_IF_ERROR(Keep(AskPlacement(options, job, base), explanation.before));
    // Of another shape when another run ran before.
    if (explanation.before && explanation.body &&
        !(explanation.before->placement.topology() == explanation.body->placement.topology())) {
      explanation.before.reset();
    }
  }
  return explanation;
}

// GPUs that hold experts; the others are in neither mean nor maximum.
int32_t CountUsable(const Placement& placement) {
  int32_t usable = 0;
  for (int32_t gpu = 0; gpu < placement.topology().num_gpus(); ++gpu) {
    if (placement.Holds(GpuId{gpu})) ++usable;
  }
  return usable;
}

// As the daemon's decisions use them.
absl::StatusOr<GpuSpeeds> SpeedsInUse(const v1::JobStatus& job, int32_t num_gpus) {
  std::vector<double> speeds(static_cast<size_t>(num_gpus), 1);
  for (const v1::GpuSpeed& one : job.gpu_speeds()) {
    if (one.gpu() < speeds.size()) speeds[one.gpu()] = one.in_use();
  }
  return GpuSpeeds::Make(num_gpus, speeds, {});
}

absl::Status EvaluateWindow(Explanation& explanation) {
  if (!explanation.body || !explanation.load) return absl::OkStatus();
  const Placement& placement = explanation.body->placement;
  const Load& load = explanation.load->window.load;
  const auto fits = [&load](const Placement& one) {
    return load.num_layers() == one.topology().num_layers() &&
           load.num_experts() == one.topology().num_experts();
  };
  // Asked one after the other: a new run of another shape may lie between the answers.
  if (!fits(placement)) return absl::OkStatus();
  const int32_t num_gpus = placement.topology().num_gpus();
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, SpeedsInUse(explanation.job, num_gpus));
  const EvaluateOptions options{.speeds = &speeds};
  EPLB_ASSIGN_OR_RETURN(explanation.computed,
                        EvaluateSplit(load, placement, SplitOf(explanation.job), &speeds));
  const std::optional<RealMatrix>& gpu_loads = explanation.load->gpu_loads;
  if (gpu_loads && gpu_loads->cols() == num_gpus) {
    RealMatrix loads = *gpu_loads;
    for (int32_t gpu = 0; gpu < num_gpus; ++gpu) loads.col(gpu) /= speeds.SpeedOf(GpuId{gpu});
    explanation.measured = EvaluateGpuLoads(std::move(loads), CountUsable(placement));
  }
  EPLB_ASSIGN_OR_RETURN(explanation.unmoved,
                        Evaluate(load, Placement::Static(placement.topology()), options));
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    explanation.layers.push_back(FiguresOf(explanation, layer));
  }
  std::stable_sort(explanation.layers.begin(), explanation.layers.end(),
                   [](const LayerFigures& a, const LayerFigures& b) {
                     return LessBalanced(a.balancedness, b.balancedness);
                   });
  return absl::OkStatus();
}

}  // namespace

const v1::Plan* Explanation::switched() const {
  // Of a plan in several chunks each commit puts a version of its own in force.
  const auto found = std::find_if(plans.begin(), plans.end(), [this](const v1::Plan& plan) {
    return plan.chunks_committed() > 0 && plan.base_version() < job.version() &&
           job.version() <= plan.last_version();
  });
  return found == plans.end() ? nullptr : &*found;
}

bool Explanation::ran_in_force() const {
  return load && load->versions.size() == 1 && load->versions.front() == job.version();
}

const Evaluation* Explanation::shown() const {
  if (measured) return &*measured;
  return computed ? &*computed : nullptr;
}

absl::StatusOr<Explanation> AskExplanation(const QueryOptions& options, const std::string& job) {
  EPLB_ASSIGN_OR_RETURN(const std::string name, ChooseJob(options, job));
  EPLB_ASSIGN_OR_RETURN(Explanation explanation, AskOnce(options, name));
  for (int attempt = 1; attempt < kAttempts && !OfOneVersion(explanation); ++attempt) {
    EPLB_ASSIGN_OR_RETURN(explanation, AskOnce(options, name));
  }
  EPLB_RETURN_IF_ERROR(EvaluateWindow(explanation));
  return explanation;
}

std::optional<std::vector<Transfer>> TransfersOf(const Explanation& explanation, int32_t layer) {
  if (!explanation.before) return std::nullopt;
  const LayerId id{layer};
  absl::StatusOr<MigrationPlan> plan = PlanMigration(
      explanation.before->placement, explanation.body->placement, {&id, 1}, {.weight_bytes = 1});
  if (!plan.ok()) return std::nullopt;  // another shape ran before
  return std::move(plan->transfers);
}

std::string LayerName(const v1::JobStatus& job, int32_t layer) {
  if (layer >= job.model_layers_size()) return absl::StrCat("layer ", layer);
  return absl::StrCat("layer ", layer, " (model layer ", job.model_layers(layer), ")");
}

namespace {

absl::Status CheckRange(const char* flag, int32_t value, int32_t count, const char* what) {
  if (value < count) return absl::OkStatus();
  return InvalidInput(flag, " is ", value, ", the job has ", what, " 0..", count - 1);
}

absl::Status CheckOptions(const ExplainOptions& options, const Explanation& explanation) {
  if (options.layer < 0) return absl::OkStatus();
  if (explanation.shown() == nullptr) {
    return absl::NotFoundError(absl::StrCat("nothing is known of the layers of job ",
                                            explanation.job.job(),
                                            " yet: no complete load window, or no placement"));
  }
  const Topology& shape = explanation.body->placement.topology();
  absl::Status status = CheckRange("--layer", options.layer, shape.num_layers(), "layers");
  status.Update(CheckRange("--expert", options.expert, shape.num_experts(), "experts"));
  return status;
}

}  // namespace

Output RunExplain(const ExplainOptions& options, const Terminal& terminal) {
  if (options.expert >= 0 && options.layer < 0) {
    return UsageFailure(InvalidInput("--expert needs --layer"));
  }
  const absl::StatusOr<Explanation> explanation = AskExplanation(options.query, options.job);
  if (!explanation.ok()) return QueryFailure(explanation.status());
  if (const absl::Status status = CheckOptions(options, *explanation); !status.ok()) {
    return QueryFailure(status);
  }
  Output output;
  if (options.query.format == Format::kJson) {
    output.out = ExplanationToJson(*explanation, options.layer, options.expert);
  } else if (options.layer < 0) {
    output.out = ExplainJob(*explanation, terminal);
  } else if (options.expert < 0) {
    output.out = ExplainLayer(*explanation, options.layer, terminal);
  } else {
    output.out = ExplainExpert(*explanation, options.layer, options.expert, terminal);
  }
  return output;
}

void AddExplain(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App& app = *root.add_subcommand("explain", "Why is the placement as it is?");
  AddInteger(app, "--layer", options->layer, "One layer's GPUs and what moved")
      ->check(&CheckNotNegative)
      ->type_name("L");
  AddInteger(app, "--expert", options->expert, "One expert of --layer")
      ->check(&CheckNotNegative)
      ->type_name("E");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunExplain(*options, terminal); });
}

namespace {

using Json = nlohmann::ordered_json;

Json OrNull(bool is_set, double value) {
  return is_set && std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json PlanOrNull(const v1::Plan* plan) {
  return plan == nullptr ? Json(nullptr) : wire::ToJson(*plan);
}

Json CandidatesOf(const v1::JobStatus& job) {
  Json candidates = Json::array();
  for (const v1::TriedCandidate& one : job.candidates()) candidates.push_back(wire::ToJson(one));
  return candidates;
}

Json LayersOf(const Explanation& explanation) {
  Json layers = Json::array();
  for (const LayerFigures& figures : explanation.layers) {
    // A layer without tokens has neither a hottest GPU nor a hottest expert.
    const auto known = [&figures](const auto& value) {
      return figures.balancedness ? Json(value) : Json(nullptr);
    };
    layers.push_back(
        {{"layer", figures.layer},
         {"model_layer", figures.model_layer ? Json(*figures.model_layer) : Json(nullptr)},
         {"balancedness", JsonOrNull(figures.balancedness)},
         {"hottest_gpu", known(figures.hottest_gpu)},
         {"hottest_gpu_load", known(figures.hottest_gpu_load)},
         {"hottest_expert", known(figures.hottest_expert)},
         {"hottest_expert_share", known(figures.hottest_expert_share)},
         {"hottest_expert_replicas", known(figures.hottest_expert_replicas)}});
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
  const absl::StatusOr<Evaluation> before = EvaluateSplit(
      explanation.load->window.load, explanation.before->placement, SplitOf(explanation.job));
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
          {"share", tokens > 0 ? Json(own / tokens) : Json(nullptr)},
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
      {"state", wire::EnumText(job.state())},
      {"paused", job.paused()},
      {"pause_reason", job.pause_reason()},
      {"waiting_for", job.waiting_for()},
      {"not_counting_reason", job.not_counting_reason()},
      {"stalled", job.stalled()},
      {"stalled_reason", job.stalled_reason()},
      {"run_number", job.run_number()},
      {"version", job.version()},
      {"settings", wire::ToJson(job.policy())},
      {"split", job.split()},
      {"measured_split", job.measured_split()},
      {"balancedness", nullptr},
      {"balancedness_without_eplb", nullptr},
      {"balancedness_static", nullptr},
      {"window", nullptr},
      {"not_measured_reason", job.not_measured_reason()},
      {"balancedness_predicted",
       OrNull(job.has_balancedness_predicted(), job.balancedness_predicted())},
      {"prediction_error", OrNull(job.has_prediction_error(), job.prediction_error())},
      {"balancedness_seen", OrNull(job.has_balancedness_seen(), job.balancedness_seen())},
      {"switched", PlanOrNull(explanation.switched())},
      {"newest", PlanOrNull(explanation.plans.empty() ? nullptr : &explanation.plans.front())},
      {"candidates", CandidatesOf(job)},
      {"load_window", nullptr},
      {"layers_are", nullptr},
      {"layers", LayersOf(explanation)}};
  if (job.has_balancedness()) {
    json["balancedness"] = job.balancedness();
    json["balancedness_without_eplb"] =
        OrNull(job.has_balancedness_without_eplb(), job.balancedness_without_eplb());
    json["balancedness_static"] = OrNull(job.has_balancedness_static(), job.balancedness_static());
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
    json["gpu_loads_computed"] = GpuLoads(*explanation.computed, layer);
    json["gpu_loads_before"] = LoadsBefore(explanation, layer);
    json["moved"] = MovedOf(explanation, layer);
  }
  if (expert >= 0) json["expert"] = ExpertOf(explanation, LayerId{layer}, ExpertId{expert});
  return wire::DumpJson(json) + "\n";
}

}  // namespace eplb::cli
