#include "client/cli/explanation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/cli/job_text.h"
#include "client/cli/shape_options.h"
#include "placement/split/batch_split.h"

namespace eplb::cli {

namespace {

constexpr int kPlansAsked = 50;
constexpr int kAttempts = 5;

// Stores an answer in `field`, which stays empty if the daemon has no such placement or window.
template <class T>
absl::Status Keep(absl::StatusOr<T> answer, std::optional<T>& field) {
  if (absl::IsNotFound(answer.status())) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(answer.status());
  field = *std::move(answer);
  return absl::OkStatus();
}

v1::LayerFigures FiguresOf(const Explanation& explanation, int32_t layer) {
  const Evaluation& shown = *explanation.shown();
  v1::LayerFigures figures;
  figures.set_layer(static_cast<uint32_t>(layer));
  if (layer < explanation.job.model_layers_size()) {
    figures.set_model_layer(explanation.job.model_layers(layer));
  }
  const std::optional<double> balancedness = shown.balancedness[layer];
  if (!balancedness) return figures;
  figures.set_balancedness(*balancedness);
  const auto loads = shown.gpu_loads.row(layer);
  Eigen::Index gpu = 0;
  figures.set_hottest_gpu_load(loads.maxCoeff(&gpu) / loads.mean());
  figures.set_hottest_gpu(static_cast<uint32_t>(gpu));
  const auto counts = explanation.load->window.load.counts().row(layer).cast<double>();
  Eigen::Index expert = 0;
  figures.set_hottest_expert_share(counts.maxCoeff(&expert) / counts.sum());
  figures.set_hottest_expert(static_cast<uint32_t>(expert));
  figures.set_hottest_expert_replicas(
      static_cast<uint32_t>(explanation.body->placement.ReplicaCount(
          LayerId{layer}, ExpertId{static_cast<int32_t>(expert)})));
  return figures;
}

// The daemon is asked several times, and a switch may have happened in between.
bool OfOneVersion(const Explanation& explanation) {
  return !explanation.body ||
         explanation.body->version == static_cast<int64_t>(explanation.job.version());
}

// Returns everything but the evaluations.
absl::StatusOr<Explanation> AskOnce(const QueryOptions& options, const std::string& job) {
  Explanation explanation;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options, job, v1::GetJobRequest(), &explanation.job).status());
  v1::ListPlansRequest plans_request;
  plans_request.set_limit(kPlansAsked);
  v1::ListPlansResponse plans;
  EPLB_RETURN_IF_ERROR(AskAboutJob(options, job, plans_request, &plans).status());
  explanation.plans.assign(plans.plans().begin(), plans.plans().end());
  EPLB_RETURN_IF_ERROR(Keep(AskPlacement(options, job), explanation.body));
  EPLB_RETURN_IF_ERROR(Keep(AskLoad(options, job), explanation.load));
  if (const v1::Plan* plan = explanation.switched()) {
    const auto base = static_cast<int64_t>(plan->base_version());
    EPLB_RETURN_IF_ERROR(Keep(AskPlacement(options, job, base), explanation.before));
    // Another run may have had another shape.
    if (explanation.before && explanation.body &&
        !(explanation.before->placement.topology() == explanation.body->placement.topology())) {
      explanation.before.reset();
    }
  }
  return explanation;
}

// The GPU speeds that the daemon's decisions use.
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
  const Topology& shape = placement.topology();
  // The daemon is asked several times: a run of another shape may have begun in between.
  if (load.num_layers() != shape.num_layers() || load.num_experts() != shape.num_experts()) {
    return absl::OkStatus();
  }
  const int32_t num_gpus = shape.num_gpus();
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, SpeedsInUse(explanation.job, num_gpus));
  const EvaluateOptions options{.speeds = &speeds};
  EPLB_ASSIGN_OR_RETURN(explanation.computed,
                        EvaluateSplit(load, placement, SplitOf(explanation.job), &speeds));
  const std::optional<RealMatrix>& gpu_loads = explanation.load->gpu_loads;
  if (gpu_loads && gpu_loads->cols() == num_gpus) {
    RealMatrix loads = *gpu_loads;
    for (int32_t gpu = 0; gpu < num_gpus; ++gpu) loads.col(gpu) /= speeds.SpeedOf(GpuId{gpu});
    EPLB_ASSIGN_OR_RETURN(const GpuSpeeds held, SpeedsOfPlacement(placement));
    explanation.measured = EvaluateGpuLoads(std::move(loads), held.num_usable());
  }
  if (explanation.before) {
    EPLB_ASSIGN_OR_RETURN(
        explanation.evaluated_before,
        EvaluateSplit(load, explanation.before->placement, SplitOf(explanation.job), &speeds));
  }
  EPLB_ASSIGN_OR_RETURN(explanation.unmoved,
                        Evaluate(load, Placement::Static(placement.topology()), options));
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    explanation.layers.push_back(FiguresOf(explanation, layer));
  }
  const auto known = [](const v1::LayerFigures& one) {
    return one.has_balancedness() ? std::optional(one.balancedness()) : std::nullopt;
  };
  std::ranges::stable_sort(explanation.layers, LessBalanced, known);
  return absl::OkStatus();
}

}  // namespace

const v1::Plan* Explanation::switched() const {
  // Each commit of a plan in several chunks makes a version of its own the current one.
  const auto found = std::ranges::find_if(plans, [this](const v1::Plan& plan) {
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

}  // namespace eplb::cli
