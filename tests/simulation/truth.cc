#include "tests/simulation/truth.h"

#include <cmath>

namespace eplb::simulation {
namespace {

constexpr int32_t kNewestPlans = 8;

bool Near(double a, double b) { return std::abs(a - b) <= Truth::kTolerance * std::abs(b); }

bool Near(const RealMatrix& a, const RealMatrix& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         ((a - b).abs() <= Truth::kTolerance * (1 + b.abs())).all();
}

// Tokens of each GPU, an expert's replicas taking equal shares.
void AddTokens(const LoadMatrix& counts, const Placement& placement, RealMatrix& gpu_loads) {
  const IndexMatrix& slots = placement.physical_to_logical_map();
  const Eigen::Index slots_per_gpu = slots.cols() / gpu_loads.cols();
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < slots.cols(); ++slot) {
      const int32_t expert = slots(layer, slot);
      const auto replicas = static_cast<double>((slots.row(layer) == expert).count());
      gpu_loads(layer, slot / slots_per_gpu) +=
          static_cast<double>(counts(layer, expert)) / replicas;
    }
  }
}

// The same with one slot per expert, in order.
void AddTokensWithoutEplb(const LoadMatrix& counts, RealMatrix& gpu_loads) {
  const Eigen::Index rest = counts.cols() % gpu_loads.cols();
  Eigen::Index expert = 0;
  for (Eigen::Index gpu = 0; gpu < gpu_loads.cols(); ++gpu) {
    const Eigen::Index size = counts.cols() / gpu_loads.cols() + (gpu < rest ? 1 : 0);
    gpu_loads.col(gpu) += counts.middleCols(expert, size).rowwise().sum().cast<double>();
    expert += size;
  }
}

std::vector<double> LayerBalancedness(const RealMatrix& gpu_loads) {
  std::vector<double> layers;
  for (Eigen::Index layer = 0; layer < gpu_loads.rows(); ++layer) {
    layers.push_back(gpu_loads.row(layer).mean() / gpu_loads.row(layer).maxCoeff());
  }
  return layers;
}

// Every layer has tokens in every step.
double Balancedness(const RealMatrix& gpu_loads) {
  double sum = 0;
  for (const double layer : LayerBalancedness(gpu_loads)) sum += layer;
  return sum / static_cast<double>(gpu_loads.rows());
}

std::string StepsText(int64_t first, int64_t last) { return absl::StrCat(first, "..", last); }

}  // namespace

void Truth::AddJob(const std::string& job, int world_size, const Topology& topology, LoadOf load) {
  jobs_[job] = {world_size, topology, std::move(load), {}};
}

void Truth::Runs(const std::string& job, const std::string& run_id, int64_t version,
                 std::shared_ptr<const Placement> placement) {
  jobs_.at(job).runs[run_id].placements.emplace(version, std::move(placement));
}

void Truth::Ran(const std::string& job, const std::string& run_id, int rank, int64_t step,
                int64_t version) {
  Job& known = jobs_.at(job);
  Run& run = known.runs[run_id];
  run.versions.resize(static_cast<size_t>(known.world_size));
  run.versions[static_cast<size_t>(rank)][step] = version;
}

Truth::Window Truth::Sum(const Job& job, const Run& run, Steps steps, unsigned ranks) const {
  Window window;
  window.gpu_loads = RealMatrix::Zero(job.topology->num_layers(), job.topology->num_gpus());
  window.static_loads = window.gpu_loads;
  window.loads_without_eplb = window.gpu_loads;
  const Placement initial = Placement::Static(*job.topology);
  for (int rank = 0; rank < job.world_size; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    for (int64_t step = steps.first; step <= steps.second; ++step) {
      const int64_t version = run.versions[static_cast<size_t>(rank)].at(step);
      const LoadMatrix counts = job.load(rank, step);
      AddTokens(counts, *run.placements.at(version), window.gpu_loads);
      AddTokens(counts, initial, window.static_loads);
      AddTokensWithoutEplb(counts, window.loads_without_eplb);
      window.versions.insert(version);
    }
  }
  return window;
}

std::optional<Truth::Window> Truth::Find(const Job& job, const v1::JobStatus& view,
                                         const core::WindowView& window) const {
  const auto run = job.runs.find(view.run_id());
  if (run == job.runs.end()) return std::nullopt;
  std::vector<LoadMatrix> of_rank;  // empty where the rank did not run all steps
  for (int rank = 0; rank < job.world_size; ++rank) {
    of_rank.emplace_back();
    if (run->second.versions.empty()) continue;
    const std::map<int64_t, int64_t>& ran = run->second.versions[static_cast<size_t>(rank)];
    LoadMatrix sum = LoadMatrix::Zero(job.topology->num_layers(), job.topology->num_experts());
    int64_t step = window.first_step;
    for (; step <= window.last_step && ran.count(step) > 0; ++step) sum += job.load(rank, step);
    if (step > window.last_step) of_rank.back() = std::move(sum);
  }
  for (unsigned ranks = 1; ranks < 1U << job.world_size; ++ranks) {
    LoadMatrix sum = LoadMatrix::Zero(job.topology->num_layers(), job.topology->num_experts());
    bool ran = true;
    int reporters = 0;
    for (int rank = 0; rank < job.world_size && ran; ++rank) {
      if ((ranks >> rank & 1) == 0) continue;
      ran = of_rank[static_cast<size_t>(rank)].size() > 0;
      if (ran) sum += of_rank[static_cast<size_t>(rank)];
      ++reporters;
    }
    if (!ran || !Near(view.coverage(), 1.0 * reporters / job.world_size)) continue;
    if ((sum == window.load->counts()).all()) {
      return Sum(job, run->second, {window.first_step, window.last_step}, ranks);
    }
  }
  return std::nullopt;
}

void Truth::CheckWindow(Shown& shown, const v1::JobStatus& view, const core::WindowView& window) {
  const Steps steps{window.first_step, window.last_step};
  const auto wrong = [&](const char* what) {
    context_.Violation("measured: ", view.job(), "/", view.run_id(), " steps ",
                       StepsText(steps.first, steps.second), ": ", what);
  };
  if (shown.newest != steps) {
    shown.newest = steps;
    const std::optional<Window> truth = Find(jobs_.at(view.job()), view, window);
    if (!truth) return wrong("no ranks counted what the window says");
    shown.windows[steps] = *truth;
    context_.Count(window.on_gpus == nullptr ? "window_unmeasured" : "window_measured");
    if (truth->versions.size() > 1 && window.on_gpus) context_.Count("window_of_parts_measured");
  }
  if (window.on_gpus == nullptr) return;
  const auto found = shown.windows.find(steps);
  if (found == shown.windows.end()) return;  // said above
  const Window& truth = found->second;
  if (!Near(window.on_gpus->loads, truth.gpu_loads)) wrong("the GPUs got other tokens");
  if (window.on_gpus->versions !=
      std::vector<int64_t>(truth.versions.begin(), truth.versions.end())) {
    wrong("its steps ran under other versions");
  }
}

void Truth::CheckView(const Shown& shown, const v1::JobStatus& view) {
  if (!view.has_balancedness()) return;
  const auto wrong = [&](const char* what, double is, double expected) {
    context_.Violation("measured: ", view.job(), "/", view.run_id(), " steps ",
                       StepsText(view.measured_first_step(), view.measured_last_step()), ": ", what,
                       " is shown as ", is, ", the ranks' steps give ", expected);
  };
  const auto found = shown.windows.find({view.measured_first_step(), view.measured_last_step()});
  if (found == shown.windows.end()) return wrong("a window that never was", view.balancedness(), 0);
  const Window& truth = found->second;
  const double expected = Balancedness(truth.gpu_loads);
  if (!Near(view.balancedness(), expected)) wrong("balancedness", view.balancedness(), expected);
  const double initial = Balancedness(truth.static_loads);
  if (!Near(view.balancedness_static(), initial)) {
    wrong("the static placement's", view.balancedness_static(), initial);
  }
  const double without = Balancedness(truth.loads_without_eplb);
  if (!Near(view.balancedness_without_eplb(), without)) {
    wrong("that without EPLB", view.balancedness_without_eplb(), without);
  }
  const std::vector<double> layers = LayerBalancedness(truth.gpu_loads);
  if (std::ssize(layers) != view.layer_balancedness_size()) {
    return wrong("number of layers", static_cast<double>(view.layer_balancedness_size()),
                 static_cast<double>(layers.size()));
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const double shown_figure = view.layer_balancedness(static_cast<int>(layer));
    if (!Near(shown_figure, layers[layer])) {
      wrong("a layer's balancedness", shown_figure, layers[layer]);
    }
  }
}

void Truth::Check(const std::string& daemon, const core::Core& core, absl::Time now) {
  for (const auto& [name, job] : jobs_) {
    const absl::StatusOr<v1::JobStatus> view = core.Job(name, now);
    if (!view.ok()) continue;
    Shown& shown = shown_[{daemon, name}];
    if (shown.run_id != view->run_id()) {
      shown = {.run_id = view->run_id(), .windows_before = std::move(shown.windows)};
    }
    const absl::StatusOr<core::WindowView> window = core.NewestWindow(name);
    if (window.ok()) CheckWindow(shown, *view, *window);
    CheckView(shown, *view);
    const absl::StatusOr<std::vector<v1::Plan>> plans = core.Plans(name, kNewestPlans);
    if (!plans.ok()) continue;
    for (const v1::Plan& plan : *plans) CheckPlan(daemon, name, plan);
  }
}

void Truth::CheckPlan(const std::string& daemon, const std::string& job, const v1::Plan& plan) {
  const Shown& shown = shown_[{daemon, job}];
  if (plan.has_balancedness_before() &&
      checked_before_.emplace(job, plan.plan(), plan.balancedness_before()).second) {
    CheckBefore(shown, job, plan);
  }
  if (plan.has_balancedness_seen() &&
      checked_seen_.emplace(job, plan.plan(), plan.balancedness_seen()).second) {
    CheckSeen(shown, job, plan);
  }
}

void Truth::CheckBefore(const Shown& shown, const std::string& job, const v1::Plan& plan) {
  context_.Count("plan_before_checked");
  const auto first = static_cast<int64_t>(plan.decided_first_step());
  const auto last = static_cast<int64_t>(plan.decided_last_step());
  double expected = 0;
  for (const auto* windows : {&shown.windows_before, &shown.windows}) {
    double sum = 0;
    int num_windows = 0;
    for (const auto& [steps, window] : *windows) {
      if (steps.first < first || steps.second > last) continue;
      sum += Balancedness(window.gpu_loads);
      ++num_windows;
    }
    expected = num_windows == 0 ? 0 : sum / num_windows;
    if (Near(plan.balancedness_before(), expected)) return;
  }
  context_.Violation("measured: ", job, " plan ", plan.plan(), ": the balancedness before it is ",
                     plan.balancedness_before(), ", the ranks' steps give ", expected);
}

void Truth::CheckSeen(const Shown& shown, const std::string& job, const v1::Plan& plan) {
  context_.Count("plan_seen_checked");
  const auto first = static_cast<int64_t>(plan.seen_first_step());
  const auto last = static_cast<int64_t>(plan.seen_last_step());
  const auto found = shown.windows.find({first, last});
  const double expected = found == shown.windows.end() ? 0 : Balancedness(found->second.gpu_loads);
  if (Near(plan.balancedness_seen(), expected) &&
      found->second.versions == std::set{static_cast<int64_t>(plan.last_version())}) {
    return;
  }
  context_.Violation("measured: ", job, " plan ", plan.plan(), ": seen is ",
                     plan.balancedness_seen(), " on steps ", StepsText(first, last),
                     ", the ranks' steps give ", expected);
}

}  // namespace eplb::simulation
