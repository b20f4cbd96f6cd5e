#include "server/core/decisions/gpu_speeds.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/gpu_speeds.h"
#include "server/core/state/gpu_speed_estimate.h"
#include "server/core/state/memory.h"

#include "eplb/v1/query.pb.h"

namespace eplb::core {
namespace {

// [G], of the slowest rank that has the GPU; 0: no such rank reported one.
std::vector<double> SecondsOfGpus(const Run& run, const Window& window) {
  std::vector<double> seconds(static_cast<size_t>(run.grid.num_gpus()), 0);
  const int32_t ranks_per_reporter = run.grid.expert_tensor_parallel();
  for (size_t reporter = 0; reporter < window.step_seconds.size(); ++reporter) {
    const RankId rank{static_cast<int32_t>(reporter) * ranks_per_reporter};
    double& slowest = seconds[static_cast<size_t>(run.grid.GpuOf(rank).value)];
    slowest = std::max(slowest, window.step_seconds[reporter]);
  }
  return seconds;
}

// [G], of a step on the mean of the window.
std::vector<double> TokensOfGpus(const Window& window) {
  const auto sums = window.on_gpus->loads.colwise().sum().eval();
  std::vector<double> tokens(sums.data(), sums.data() + sums.size());
  const auto steps = static_cast<double>(window.last_step - window.first_step + 1);
  for (double& one : tokens) one /= steps;
  return tokens;
}

// Tokens of GPUs are those of equal shares: where batches are split, others ran.
bool CanMeasure(const Run& run) {
  return run.split == SplitMode::kEqual && run.reduce == wire::Reduce::kRank &&
         run.grid.pipeline_parallel_size() == 1;
}

void RecordChange(DecisionContext& context, Job& job, const GpuSpeedEstimate::Change& change) {
  if (change.after == 1) {
    RecordNotice(context, job, "gpu_recovered",
                 absl::StrFormat("GPU %d is as fast as the median GPU again; it was named at %.2f",
                                 change.gpu, change.before));
    return;
  }
  const std::string sentence =
      SpeedSentence(job.speeds.estimate, {.gpu = change.gpu, .speed = change.after});
  const char* const use = job.settings.gpu_speeds == wire::SpeedMode::kApply
                              ? "; the next decision plans less load for it"
                              : "; gpu_speeds is observe, so decisions do not use it";
  RecordNotice(context, job, "gpu_slow", absl::StrCat(sentence, use));
}

enum class Source { kMeasured, kStated, kAvoided };

const char* NameOf(Source source) {
  switch (source) {
    case Source::kMeasured:
      return "measured";
    case Source::kStated:
      return "stated";
    case Source::kAvoided:
      return "avoided";
  }
  return "";
}

// From where the settings take a GPU's speed; measured where they do not name it.
Source SourceOf(const Settings& settings, int32_t gpu) {
  const auto& avoided = settings.avoid_gpus;
  if (std::ranges::find(avoided, gpu) != avoided.end()) return Source::kAvoided;
  const bool stated = std::ranges::any_of(
      settings.stated_speeds, [gpu](const wire::StatedSpeed& one) { return one.gpu == gpu; });
  return stated ? Source::kStated : Source::kMeasured;
}

absl::Status CheckNamedGpu(const char* setting, int32_t gpu, const Topology& topology) {
  if (gpu < topology.num_gpus()) return absl::OkStatus();
  return InvalidInput(setting, " names GPU ", gpu, ", the job has GPUs 0..",
                      topology.num_gpus() - 1);
}

absl::Status CheckGpus(const Settings& settings, const Topology& topology) {
  for (const wire::StatedSpeed& one : settings.stated_speeds) {
    EPLB_RETURN_IF_ERROR(CheckNamedGpu("stated_speeds", one.gpu, topology));
  }
  for (const int32_t gpu : settings.avoid_gpus) {
    EPLB_RETURN_IF_ERROR(CheckNamedGpu("avoid_gpus", gpu, topology));
  }
  if (std::ssize(settings.avoid_gpus) < topology.num_gpus()) return absl::OkStatus();
  return InvalidInput("avoid_gpus names all ", topology.num_gpus(), " GPUs of the job");
}

// Returns the speeds in the job's settings. errors: as CheckGpus; FailedPrecondition for a policy
// without speeds.
absl::StatusOr<GpuSpeeds> SpeedsAskedFor(const Job& job, const Load& load) {
  const Settings& settings = job.settings;
  const Topology& topology = job.current->topology;
  EPLB_RETURN_IF_ERROR(CheckGpus(settings, topology));
  std::vector<double> speeds(static_cast<size_t>(topology.num_gpus()), 1);
  if (settings.gpu_speeds == wire::SpeedMode::kApply) {
    for (const wire::StatedSpeed& one : job.speeds.estimate.slow()) {
      if (one.gpu < topology.num_gpus()) speeds[static_cast<size_t>(one.gpu)] = one.speed;
    }
  }
  for (const wire::StatedSpeed& one : settings.stated_speeds) {
    speeds[static_cast<size_t>(one.gpu)] = one.speed;
  }
  const auto num_avoided = static_cast<int32_t>(settings.avoid_gpus.size());
  for (const int32_t gpu : settings.avoid_gpus) {
    speeds[static_cast<size_t>(gpu)] = AvoidedSpeed(load, topology, GpuId{gpu}, num_avoided);
  }
  EPLB_ASSIGN_OR_RETURN(GpuSpeeds made, GpuSpeeds::Make(topology.num_gpus(), speeds, {}));
  if (!made.all_equal() && settings.policy.follows_reference) {
    return FailedPrecondition("policy ", settings.policy.name,
                              " plans for equal GPUs; choose another one to use GPU speeds");
  }
  return made;
}

}  // namespace

void WatchGpuSpeeds(DecisionContext& context, Job& job) {
  if (job.settings.gpu_speeds == wire::SpeedMode::kOff) {
    const bool named = !job.speeds.estimate.slow().empty();
    job.speeds.estimate = {};
    if (named) Remember(job);
    return;
  }
  const Window& window = job.windows.complete.back();
  if (window.step_seconds.empty() || window.on_gpus == nullptr || !CanMeasure(*job.current)) return;
  const std::vector<GpuSpeedEstimate::Change> changes =
      job.speeds.estimate.AddWindow(SecondsOfGpus(*job.current, window), TokensOfGpus(window));
  for (const GpuSpeedEstimate::Change& change : changes) RecordChange(context, job, change);
  if (!changes.empty()) Remember(job);
}

void RefreshSpeeds(DecisionContext& context, Job& job, const Load& load) {
  absl::StatusOr<GpuSpeeds> asked;
  {
    const ReadersIn readers(context.lock);
    asked = SpeedsAskedFor(job, load);
  }
  job.windows.speeds = nullptr;
  const std::string unused = asked.ok() ? "" : std::string(asked.status().message());
  if (asked.ok() && !asked->all_equal()) {
    job.windows.speeds = std::make_shared<const GpuSpeeds>(*asked);
  }
  if (unused == job.speeds.unused) return;
  job.speeds.unused = unused;
  if (unused.empty()) return;
  RecordNotice(context, job, "speeds_unused",
               absl::StrCat("decisions use no GPU speeds: ", unused));
}

double AvoidedSpeed(const Load& load, const Topology& topology, GpuId gpu, int32_t num_avoided) {
  const int32_t num_others = topology.num_gpus() - num_avoided;
  const auto coldest = std::min(topology.SlotsOf(gpu), topology.num_experts());
  const RealMatrix tokens_of = load.ToDouble();
  std::vector<double> ratios;
  for (int32_t layer = 0; layer < load.num_layers(); ++layer) {
    const double* const row = &tokens_of(layer, 0);
    std::vector<double> tokens(row, row + tokens_of.cols());
    std::ranges::sort(tokens);
    const double total = std::accumulate(tokens.begin(), tokens.end(), 0.0);
    const double least = std::accumulate(tokens.begin(), tokens.begin() + coldest, 0.0);
    const double rest = total - num_avoided * least;
    if (total > 0) ratios.push_back(rest > 0 ? std::min(1.0, least * num_others / rest) : 1);
  }
  if (ratios.empty()) return kLeastAvoided;
  const auto quartile = ratios.begin() + static_cast<std::ptrdiff_t>((ratios.size() - 1) * 3 / 4);
  std::nth_element(ratios.begin(), quartile, ratios.end());
  return std::clamp(std::round(100 * *quartile) / 100, kLeastAvoided, 1.0);
}

std::string SpeedsClause(const Job& job) {
  const GpuSpeeds* speeds = job.windows.speeds.get();
  if (speeds == nullptr) return "";
  constexpr size_t kMostNamed = 4;
  std::vector<std::string> named;
  for (int32_t gpu = 0; gpu < speeds->num_gpus(); ++gpu) {
    const double speed = speeds->SpeedOf(GpuId{gpu});
    if (speed == 1) continue;
    named.push_back(
        absl::StrFormat("GPU %d %.2f (%s)", gpu, speed, NameOf(SourceOf(job.settings, gpu))));
  }
  const size_t others = named.size() - std::min(named.size(), kMostNamed);
  named.resize(named.size() - others);
  return absl::StrCat("; GPU loads are tokens / speed: ", absl::StrJoin(named, ", "),
                      others > 0 ? absl::StrCat(" and ", others, " more") : "");
}

void ShowSpeeds(const Job& job, v1::JobStatus& status) {
  const GpuSpeeds* in_use = job.windows.speeds.get();
  for (int32_t gpu = 0; gpu < job.current->topology.num_gpus(); ++gpu) {
    const Source source = SourceOf(job.settings, gpu);
    const auto& slow = job.speeds.estimate.slow();
    const auto measured =
        std::ranges::find_if(slow, [gpu](const wire::StatedSpeed& one) { return one.gpu == gpu; });
    const double used = in_use == nullptr ? 1 : in_use->SpeedOf(GpuId{gpu});
    if (source == Source::kMeasured && measured == slow.end() && used == 1) continue;
    v1::GpuSpeed& speed = *status.add_gpu_speeds();
    speed.set_gpu(static_cast<uint32_t>(gpu));
    speed.set_in_use(used);
    speed.set_source(NameOf(source));
    if (measured == slow.end()) continue;
    speed.set_measured(measured->speed);
    speed.set_reason(SpeedSentence(job.speeds.estimate, *measured));
  }
}

absl::Status CheckFits(const Settings& settings, const Topology& topology) {
  EPLB_RETURN_IF_ERROR(CheckGpus(settings, topology));
  if (!settings.hierarchy) return absl::OkStatus();
  if (*settings.hierarchy == Hierarchy::kSoft && settings.policy.follows_reference) {
    return InvalidInput("hierarchy is soft, which policy ", settings.policy.name, " does not take");
  }
  if (const absl::Status status = CheckHierarchy(topology, *settings.hierarchy); !status.ok()) {
    return InvalidInput("hierarchy does not fit the job: ", std::string(status.message()));
  }
  return absl::OkStatus();
}

}  // namespace eplb::core
