#include "tests/placement/split/split_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "placement/split/batch_split.h"
#include "tests/placement/split/random_batch.h"
#include "tests/support/integer_split_oracle.h"

namespace eplb {
namespace {

IntegerSplitProblem ProblemOf(const Placement& placement, const SplitGraph& graph, LayerId layer,
                              const std::vector<int64_t>& counts) {
  IntegerSplitProblem problem{.tokens = counts, .gpus_of = {}, .speeds = {}};
  problem.speeds.assign(graph.speeds().begin(), graph.speeds().end());
  for (int32_t expert = 0; expert < graph.num_experts(); ++expert) {
    problem.gpus_of.emplace_back();
    for (const int32_t slot : placement.ReplicasOf(layer, ExpertId{expert})) {
      problem.gpus_of.back().push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
  }
  return problem;
}

// Quotas are whole tokens of their experts, no GPU is above the least peak and the margins, and
// without slack a GPU reaches the peak that the split reports.
void CheckQuotas(const Placement& placement, const SplitGraph& graph, LayerId layer,
                 const std::vector<int64_t>& counts, const std::vector<int64_t>& quotas,
                 const SplitPeak& least, const SplitPeak& reported) {
  std::vector<int64_t> sums(counts.size());
  std::vector<int64_t> loads(static_cast<size_t>(graph.num_gpus()));
  for (int32_t slot = 0; slot < graph.num_slots(); ++slot) {
    const int64_t quota = quotas[static_cast<size_t>(slot)];
    ASSERT_GE(quota, 0);
    const int32_t expert = placement.ExpertIn(layer, SlotId{slot}).value;
    if (expert >= 0) sums[static_cast<size_t>(expert)] += quota;
    loads[static_cast<size_t>(placement.topology().GpuOf(SlotId{slot}).value)] += quota;
  }
  ASSERT_EQ(sums, counts);
  const auto [slack, tolerance] = graph.margins();
  int64_t fullest = 0;
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) {
    const int64_t within = TokensWithin(least, graph.speeds()[gpu]);
    ASSERT_LE(loads[gpu], within + within * std::max(slack, tolerance) / kSplitSlackUnit)
        << "GPU " << gpu;
    fullest += loads[gpu] * reported.speed == reported.tokens * graph.speeds()[gpu] ? 1 : 0;
  }
  if (slack == 0 || tolerance > 0) {
    ASSERT_GT(fullest, 0) << "a GPU reaches the peak";
  }
}

}  // namespace

void CheckAgainstOracle(Random& random, const Placement& of_usable) {
  const auto [placement, speeds] = WithRandomSpeeds(random, of_usable);
  const double slack = Pick(random, 0, 2) == 0 ? 0.005 * Pick(random, 1, 20) : 0;
  const double tolerance = Pick(random, 0, 3) == 0 ? 0.005 * Pick(random, 1, 20) : 0;
  const SplitGraph graph =
      *SplitGraph::Make(placement, {.speeds = &speeds, .slack = slack, .tolerance = tolerance});
  BatchSplitter splitter(graph);
  const std::unique_ptr<SplitSolver> solver = SplitSolver::Make(graph.num_gpus());
  for (int32_t i = 0; i < graph.num_layers(); ++i) {
    const LayerId layer{i};
    const std::vector<int64_t> counts = RandomCounts(random, graph.num_experts());
    std::vector<int64_t> quotas(static_cast<size_t>(graph.num_slots()));
    const SplitBound bound = *splitter.Split(layer, counts, quotas);
    solver->Prepare(graph.Layer(layer));
    const SplitPeak least = solver->Solve(counts.data(), {}, {});
    CheckQuotas(placement, graph, layer, counts, quotas, least, bound.peak);
    if (tolerance > 0) continue;
    EXPECT_EQ(least, bound.peak) << "without quotas";
    const IntegerSplitProblem problem = ProblemOf(placement, graph, layer, counts);
    EXPECT_EQ(CheckProof(problem, bound.peak.tokens, bound.peak.speed, bound.tight_gpus), "");
    EXPECT_TRUE(FitsWithin(problem, bound.peak.tokens, bound.peak.speed));
    if (speeds.all_equal()) {
      EXPECT_EQ(bound.peak, (SplitPeak{LeastPeakByNewton(problem), 1}));
    }
  }
}

void CheckShape(Random& random, const TopologyOptions& shape, int32_t repetitions) {
  const Topology topology = *Topology::Make(shape);
  for (int32_t i = 0; i < repetitions && !::testing::Test::HasFailure(); ++i) {
    CheckAgainstOracle(random, RandomPlacement(random, topology));
  }
}

}  // namespace eplb
