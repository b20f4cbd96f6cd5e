// CPU seconds of decisions of policy `auto`, which the daemon's solver thread spends, and of
// `incremental` beside `balanced`, from 32 to 2,048 GPUs. Loads are log-normal and drift between
// windows. Exit 1 when a row is above its limit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "placement/backtest/planner.h"
#include "placement/policies/registry.h"
#include "tests/bench/measure.h"

namespace eplb {
namespace {

constexpr int kWindows = 3;
constexpr int kStepsInWindow = 50;
constexpr double kDrift = 0.1;  // a window multiplies an expert's share by exp(this * normal)
constexpr double kTokenSeconds = 1e-8;

struct Row {
  TopologyOptions shape;
  double max_auto = 0;   // CPU seconds of a decision; 0: not judged
  double max_ratio = 0;  // CPU of `incremental` / CPU of `balanced`; 0: not judged
};

std::vector<Load> DriftingLoads(const TopologyOptions& shape) {
  std::mt19937_64 random(20260101);
  std::normal_distribution<double> normal;
  RealMatrix popularity =
      bench::MakeLoad(shape.num_layers, shape.num_experts).counts().cast<double>();
  std::vector<Load> loads;
  for (int window = 0; window < kWindows; ++window) {
    loads.push_back(*Load::FromCounts(popularity.round().cast<int64_t>()));
    for (double& cell : popularity.reshaped()) cell *= std::exp(kDrift * normal(random));
  }
  return loads;
}

template <class Function>
double CpuSeconds(const Function& function) {
  const std::clock_t start = std::clock();
  function();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Returns the CPU seconds of each question that the daemon would ask, window after window.
std::vector<double> AskAuto(const Topology& topology, const std::vector<Load>& loads) {
  Placement current = Placement::Static(topology);
  PlannerQuestion question;
  question.num_fresh = 1;
  question.costs.token_seconds = kTokenSeconds;
  std::vector<double> seconds;
  for (const Load& load : loads) {
    question.windows.push_back({std::make_shared<const Load>(load), kStepsInWindow});
    seconds.push_back(CpuSeconds([&] {
      PlannerOutcome outcome = *AskPlanner(question, current);
      question.state = std::move(outcome.state);
      if (outcome.answer) current = std::move(outcome.answer->placement);
    }));
  }
  return seconds;
}

// Returns the median CPU of `incremental` and of `balanced`, on the same loads in turn.
std::pair<double, double> FollowAndPlan(const Topology& topology, const std::vector<Load>& loads) {
  const std::unique_ptr<Policy> balanced = *MakePolicy("balanced", {});
  const std::unique_ptr<Policy> incremental = *MakePolicy("incremental", {});
  Placement current = *balanced->Solve({.load = loads.front(), .topology = topology});
  std::vector<double> follow, plan;
  for (size_t i = 1; i < loads.size(); ++i) {
    const std::vector<Load> recent = {loads[i]};
    const PolicyInput input = {
        .load = loads[i], .topology = topology, .previous = &current, .recent = recent};
    plan.push_back(
        CpuSeconds([&] { (void)balanced->Solve({.load = loads[i], .topology = topology}); }));
    absl::StatusOr<Placement> next = absl::UnknownError("");
    follow.push_back(CpuSeconds([&] { next = incremental->Solve(input); }));
    current = *std::move(next);
  }
  return {bench::Median(follow), bench::Median(plan)};
}

bool Measure(const Row& row) {
  const TopologyOptions& s = row.shape;
  const Topology topology = *Topology::Make(s);
  const std::vector<Load> loads = DriftingLoads(s);
  std::vector<double> decisions = AskAuto(topology, loads);
  const double first = decisions.front();
  const double later = *std::max_element(decisions.begin() + 1, decisions.end());
  const auto [incremental, balanced] = FollowAndPlan(topology, loads);
  absl::PrintF(
      "%4d GPUs  %2dx%4d->%4d  auto: first %6.2f s, later at most %6.2f s  incremental %6.3f s, "
      "balanced %6.3f s, ratio %5.2f\n",
      s.num_gpus, s.num_layers, s.num_experts, s.num_slots, first, later, incremental, balanced,
      incremental / balanced);
  std::fflush(stdout);
  return (row.max_auto == 0 || std::max(first, later) <= row.max_auto) &&
         (row.max_ratio == 0 || incremental <= row.max_ratio * balanced);
}

int Run() {
  bool good = true;
  for (const Row& row : {Row{{58, 256, 288, 32, 1, 1}, 3}, Row{{61, 256, 384, 128, 1, 1}, 3, 3},
                         Row{{8, 1024, 2048, 512, 1, 1}, 10}, Row{{2, 1024, 4096, 2048, 1, 1}}}) {
    good = Measure(row) && good;
  }
  if (!good) absl::FPrintF(stderr, "a decision or a ratio is above its limit\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Run(); }
