#include "tests/placement/split/split_checks.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "placement/split/batch_split.h"
#include "placement/split/source_quotas.h"
#include "tests/placement/split/random_batch.h"
#include "tests/support/integer_split_oracle.h"

namespace eplb::testing {
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

// Quotas are whole tokens of their experts, and no GPU is above the peak and the slack.
void CheckQuotas(const Placement& placement, const SplitGraph& graph, LayerId layer,
                 const std::vector<int64_t>& counts, const std::vector<int64_t>& quotas,
                 const SplitPeak& peak) {
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
  int64_t fullest = 0;
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) {
    const int64_t within = TokensWithin(peak, graph.speeds()[gpu]);
    ASSERT_LE(loads[gpu], within + within * graph.slack() / kSplitSlackUnit) << "GPU " << gpu;
    fullest += loads[gpu] * peak.speed == peak.tokens * graph.speeds()[gpu] ? 1 : 0;
  }
  if (graph.slack() == 0) {
    ASSERT_GT(fullest, 0) << "a GPU reaches the peak";
  }
}

// [G, E], row by row: each expert's tokens among some GPUs; usable or not, a rank has tokens.
std::vector<int64_t> AmongSources(Random& random, const std::vector<int64_t>& counts,
                                  int32_t num_gpus) {
  constexpr int32_t kSources = 8;
  std::vector<int64_t> by_gpu(static_cast<size_t>(num_gpus) * counts.size());
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    int64_t left = counts[expert];
    for (int32_t i = 1; i <= kSources; ++i) {
      const auto gpu = static_cast<size_t>(Pick(random, 0, num_gpus - 1));
      const int64_t tokens = i == kSources ? left : Pick(random, 0, 8) * (left / 8);
      by_gpu[gpu * counts.size() + expert] += tokens;
      left -= tokens;
    }
  }
  return by_gpu;
}

// Every rank, from its own tokens and how many those before it have, takes its part of the quotas.
void CheckPrefixRouting(const SplitBatch& batch, const std::vector<int64_t>& by_gpu,
                        size_t num_experts) {
  std::vector<int64_t> before(num_experts);
  std::vector<int64_t> own(batch.quotas.size());
  std::vector<int64_t> taken(batch.quotas.size());
  for (size_t first = 0; first < by_gpu.size(); first += num_experts) {
    const auto mine = std::span(by_gpu).subspan(first, num_experts);
    ASSERT_TRUE(OwnQuotasByPrefix(batch, before, mine, own).ok());
    std::vector<int64_t> sums(num_experts);
    for (size_t slot = 0; slot < own.size(); ++slot) {
      taken[slot] += own[slot];
      if (own[slot] == 0) continue;
      const ExpertId expert =
          batch.placement.ExpertIn(batch.layer, SlotId{static_cast<int32_t>(slot)});
      sums[static_cast<size_t>(expert.value)] += own[slot];
    }
    ASSERT_EQ(sums, std::vector<int64_t>(mine.begin(), mine.end()));
    for (size_t expert = 0; expert < num_experts; ++expert) before[expert] += mine[expert];
  }
  EXPECT_EQ(taken, std::vector<int64_t>(batch.quotas.begin(), batch.quotas.end()));
}

}  // namespace

void CheckAgainstOracle(Random& random, const Placement& of_usable) {
  const auto [placement, speeds] = WithRandomSpeeds(random, of_usable);
  const double slack = Pick(random, 0, 2) == 0 ? 0.005 * Pick(random, 1, 20) : 0;
  const SplitGraph graph = *SplitGraph::Make(placement, {.speeds = &speeds, .slack = slack});
  BatchSplitter splitter(graph);
  for (int32_t i = 0; i < graph.num_layers(); ++i) {
    const LayerId layer{i};
    const std::vector<int64_t> counts = RandomCounts(random, graph.num_experts());
    std::vector<int64_t> quotas(static_cast<size_t>(graph.num_slots()));
    const SplitBound bound = *splitter.SplitWithBound(layer, counts, quotas);
    EXPECT_EQ(*splitter.LeastPeak(layer, counts), bound.peak);
    CheckQuotas(placement, graph, layer, counts, quotas, bound.peak);
    const IntegerSplitProblem problem = ProblemOf(placement, graph, layer, counts);
    EXPECT_EQ(CheckProof(problem, bound.peak.tokens, bound.peak.speed, bound.tight_gpus), "");
    EXPECT_TRUE(FitsWithin(problem, bound.peak.tokens, bound.peak.speed));
    if (speeds.all_equal()) {
      EXPECT_EQ(bound.peak, (SplitPeak{LeastPeakByNewton(problem), 1}));
    }
    if (i > 0) continue;
    CheckPrefixRouting({placement, layer, quotas}, AmongSources(random, counts, graph.num_gpus()),
                       counts.size());
  }
}

void CheckShape(Random& random, const TopologyOptions& shape, int32_t repetitions) {
  const Topology topology = *Topology::Make(shape);
  for (int32_t i = 0; i < repetitions && !::testing::Test::HasFailure(); ++i) {
    CheckAgainstOracle(random, RandomPlacement(random, topology));
  }
}

}  // namespace eplb::testing
