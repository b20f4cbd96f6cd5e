#include "placement/split/source_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/placement/random_placement.h"
#include "tests/placement/split/split_checks.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Pick;
using testing::Random;

constexpr LayerId kSole{0};

// Tokens that leave their GPU, that leave their node, and that are above equal shares.
using Goals = std::array<int64_t, 3>;

// One layer as matrices: [E][G].
struct SourceProblem {
  std::vector<std::vector<int32_t>> gpus_of;
  std::vector<std::vector<int64_t>> counts;
  std::vector<std::vector<int64_t>> equal;
  std::vector<int64_t> most;  // [G]
  int32_t num_nodes = 1;
};

// Of an expert that has `tokens` on each GPU.
Goals GoalsOf(const SourceProblem& problem, size_t expert, const std::vector<int64_t>& tokens) {
  Goals goals{};
  const size_t num_gpus = tokens.size();
  const size_t of_node = num_gpus / static_cast<size_t>(problem.num_nodes);
  for (size_t first = 0; first < num_gpus; first += of_node) {
    int64_t more_on_node = 0;
    for (size_t gpu = first; gpu < first + of_node; ++gpu) {
      const int64_t more = tokens[gpu] - problem.counts[expert][gpu];
      goals[0] += std::max<int64_t>(0, more);
      more_on_node += more;
      goals[2] += std::max<int64_t>(0, tokens[gpu] - problem.equal[expert][gpu]);
    }
    goals[1] += std::max<int64_t>(0, more_on_node);
  }
  return goals;
}

// Every split there is, token counts of GPU after GPU.
class Exhaustive {
 public:
  explicit Exhaustive(const SourceProblem& problem) : problem_(problem), left_(problem.most) {}

  Goals Best() {
    best_ = {INT64_MAX, 0, 0};
    Expert(0, {});
    return best_;
  }

 private:
  void Expert(size_t expert, Goals so_far) {
    if (so_far > best_) return;
    if (expert == problem_.counts.size()) {
      best_ = so_far;
      return;
    }
    int64_t tokens = 0;
    for (const int64_t count : problem_.counts[expert]) tokens += count;
    std::vector<int64_t> on_gpu(left_.size());
    Gpu(expert, 0, tokens, on_gpu, so_far);
  }

  void Gpu(size_t expert, size_t i, int64_t tokens, std::vector<int64_t>& on_gpu,
           const Goals& so_far) {
    const std::vector<int32_t>& gpus = problem_.gpus_of[expert];
    if (i == gpus.size()) {
      if (tokens > 0) return;
      Goals goals = GoalsOf(problem_, expert, on_gpu);
      for (size_t goal = 0; goal < goals.size(); ++goal) goals[goal] += so_far[goal];
      Expert(expert + 1, goals);
      return;
    }
    const auto gpu = static_cast<size_t>(gpus[i]);
    for (int64_t here = 0; here <= std::min(tokens, left_[gpu]); ++here) {
      on_gpu[gpu] = here;
      left_[gpu] -= here;
      Gpu(expert, i + 1, tokens - here, on_gpu, so_far);
      left_[gpu] += here;
    }
    on_gpu[gpu] = 0;
  }

  const SourceProblem& problem_;
  std::vector<int64_t> left_;  // of each GPU's most
  Goals best_{};
};

// Equal shares by slot, the first replicas by rank taking one more.
std::vector<int64_t> EqualOf(const Placement& placement, int32_t expert, int64_t tokens) {
  std::vector<int64_t> equal(static_cast<size_t>(placement.topology().num_gpus()));
  const auto slots = placement.ReplicasOf(kSole, ExpertId{expert});
  std::vector<int32_t> gpus;  // of the slots, those of a GPU together as its first replica is
  for (const int32_t slot : slots) {
    const int32_t gpu = placement.topology().GpuOf(SlotId{slot}).value;
    const auto same = std::find(gpus.rbegin(), gpus.rend(), gpu);
    gpus.insert(same == gpus.rend() ? gpus.end() : same.base(), gpu);
  }
  const auto num_slots = std::ssize(slots);
  for (int64_t i = 0; i < num_slots; ++i) {
    equal[static_cast<size_t>(gpus[static_cast<size_t>(i)])] +=
        tokens / num_slots + (i < tokens % num_slots ? 1 : 0);
  }
  return equal;
}

SourceProblem SourceProblemOf(const Placement& placement, const SplitGraph& graph,
                              const std::vector<int64_t>& counts, const SplitPeak& peak) {
  const int32_t num_experts = graph.num_experts();
  SourceProblem problem;
  problem.num_nodes = placement.topology().num_nodes();
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    std::vector<int32_t> gpus;
    for (const int32_t slot : placement.ReplicasOf(kSole, ExpertId{expert})) {
      gpus.push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
    std::sort(gpus.begin(), gpus.end());
    gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
    problem.gpus_of.push_back(gpus);
    std::vector<int64_t> of_gpu;
    int64_t sum = 0;
    for (int32_t gpu = 0; gpu < graph.num_gpus(); ++gpu) {
      const int32_t cell = gpu * num_experts + expert;
      of_gpu.push_back(counts[static_cast<size_t>(cell)]);
      sum += of_gpu.back();
    }
    problem.counts.push_back(of_gpu);
    problem.equal.push_back(EqualOf(placement, expert, sum));
  }
  for (const int64_t speed : graph.speeds()) {
    const int64_t within = TokensWithin(peak, speed);
    problem.most.push_back(within + within * graph.slack() / kSplitSlackUnit);
  }
  return problem;
}

void CheckSplit(Random& random, const Placement& placement, int32_t most_tokens) {
  const Topology& topology = placement.topology();
  const SplitGraph graph =
      *SplitGraph::Make(placement, {.slack = Pick(random, 0, 1) == 0 ? 0.25 : 0});
  const int32_t num_experts = topology.num_experts();
  std::vector<int64_t> counts(static_cast<size_t>(topology.num_gpus()) *
                              static_cast<size_t>(num_experts));
  std::vector<int64_t> sums(static_cast<size_t>(num_experts));
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = Pick(random, 0, 1) == 0 ? 0 : Pick(random, 0, most_tokens);
    sums[i % sums.size()] += counts[i];
  }
  std::vector<int64_t> quotas(static_cast<size_t>(topology.num_slots()));
  SourceSplitter splitter(graph);
  ASSERT_TRUE(splitter.Split(kSole, counts, quotas).ok());

  const SplitPeak peak = *BatchSplitter(graph).LeastPeak(kSole, sums);
  const SourceProblem problem = SourceProblemOf(placement, graph, counts, peak);
  std::vector<std::vector<int64_t>> tokens(
      sums.size(), std::vector<int64_t>(static_cast<size_t>(topology.num_gpus())));
  std::vector<int64_t> loads(static_cast<size_t>(topology.num_gpus()));
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const int64_t quota = quotas[static_cast<size_t>(slot)];
    const auto gpu = static_cast<size_t>(topology.GpuOf(SlotId{slot}).value);
    ASSERT_GE(quota, 0);
    loads[gpu] += quota;
    tokens[static_cast<size_t>(placement.ExpertIn(kSole, SlotId{slot}).value)][gpu] += quota;
  }
  Goals goals{};
  for (size_t expert = 0; expert < sums.size(); ++expert) {
    int64_t sum = 0;
    for (const int64_t count : tokens[expert]) sum += count;
    EXPECT_EQ(sum, sums[expert]);
    const Goals of_expert = GoalsOf(problem, expert, tokens[expert]);
    for (size_t goal = 0; goal < goals.size(); ++goal) goals[goal] += of_expert[goal];
  }
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) EXPECT_LE(loads[gpu], problem.most[gpu]);
  EXPECT_EQ(goals, Exhaustive(problem).Best());
}

TEST(SourceSplitterTest, NoSplitMovesFewerTokens) {
  Random random(600);
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    const int32_t num_nodes = Pick(random, 1, 2);
    const int32_t num_gpus = num_nodes * 2;
    const int32_t num_experts = Pick(random, 1, 4);
    const int32_t least = std::max(num_experts, num_gpus);
    const Topology topology = *Topology::Make({.num_layers = 1,
                                               .num_experts = num_experts,
                                               .num_slots = Pick(random, least, 2 * least),
                                               .num_gpus = num_gpus,
                                               .num_nodes = num_nodes});
    CheckSplit(random, testing::RandomPlacement(random, topology), 3);
  }
}

// The exhaustive oracle ends at a few tokens. Beyond it: the least maximum, whole quotas, and ranks
// that agree. The last shape has up to 8 unusable GPUs more: 1,024.
TEST(SourceSplitterTest, NoGpuIsAboveTheLeastMaximumOnLargeShapes) {
  Random random(601);
  constexpr struct {
    int32_t num_experts, num_slots, num_gpus, num_nodes, repetitions;
  } kShapes[] = {{64, 72, 8, 1, 300},
                 {256, 288, 32, 4, 60},
                 {256, 384, 64, 8, 30},
                 {384, 1024, 256, 32, 6},
                 {512, 2032, 1016, 1, 4}};
  for (const auto& shape : kShapes) {
    const Topology topology = *Topology::Make({.num_layers = 1,
                                               .num_experts = shape.num_experts,
                                               .num_slots = shape.num_slots,
                                               .num_gpus = shape.num_gpus,
                                               .num_nodes = shape.num_nodes});
    for (int32_t i = 0; i < shape.repetitions && !HasFailure(); ++i) {
      testing::CheckSourcesAgainstOracle(random, testing::RandomPlacement(random, topology));
    }
  }
}

// Expert 0 on GPUs 0, 1 and 2; GPUs 0 and 1 are a node. Experts 1 to 4 on one GPU each.
Placement FourGpus() {
  const Topology topology = *Topology::Make(
      {.num_layers = 1, .num_experts = 5, .num_slots = 8, .num_gpus = 4, .num_nodes = 2});
  const std::vector<int32_t> slots = {0, 1, 0, 2, 0, 3, 4, 4};
  return *Placement::FromSlots(topology, Eigen::Map<const IndexMatrix>(slots.data(), 1, 8));
}

TEST(SourceSplitterTest, TokensStayOnTheirGpuThenOnTheirNode) {
  const SplitGraph graph = *SplitGraph::Make(FourGpus());
  SourceSplitter splitter(graph);
  std::vector<int64_t> quotas(8);
  // GPU 0 has 9 tokens of expert 0, GPU 3 has 10 of expert 4: nothing is above 10.
  std::vector<int64_t> counts(20);
  counts[0] = 9;
  counts[19] = 10;
  ASSERT_TRUE(splitter.Split(kSole, counts, quotas).ok());
  EXPECT_THAT(quotas, ElementsAre(9, 0, 0, 0, 0, 0, 5, 5));
  // GPU 0 has 4 of expert 1, too: 3 of expert 0 leave, to the other GPU of the node.
  counts[1] = 4;
  ASSERT_TRUE(splitter.Split(kSole, counts, quotas).ok());
  EXPECT_THAT(quotas, ElementsAre(6, 4, 3, 0, 0, 0, 5, 5));
  // That one has 9 of expert 2: 2 have to leave the node.
  counts[7] = 9;
  ASSERT_TRUE(splitter.Split(kSole, counts, quotas).ok());
  EXPECT_THAT(quotas, ElementsAre(6, 4, 1, 9, 2, 0, 5, 5));
}

TEST(SourceSplitterTest, WhatDoesNotFitIsRefusedByName) {
  const SplitGraph graph = *SplitGraph::Make(FourGpus());
  SourceSplitter splitter(graph);
  std::vector<int64_t> quotas(8, -1);
  std::vector<int64_t> counts(20);
  counts[7] = -3;
  EXPECT_THAT(std::string(splitter.Split(kSole, counts, quotas).message()),
              HasSubstr("layer 0: source 1 has -3 tokens of expert 2"));
  counts[7] = 1;
  EXPECT_THAT(std::string(splitter.Split(LayerId{1}, counts, quotas).message()),
              HasSubstr("layer 1 is not in 0..0"));
  counts.pop_back();
  EXPECT_THAT(std::string(splitter.Split(kSole, counts, quotas).message()),
              HasSubstr("19 counts, expected 4 x 5"));
  EXPECT_THAT(quotas, ::testing::Each(-1));
}

}  // namespace
}  // namespace eplb
